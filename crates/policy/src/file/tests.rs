use super::*;
use crate::target::Target;

const TOML: &str = include_str!("../../tests/fixtures/good.toml");
const JSON: &str = include_str!("../../tests/fixtures/good.json");

fn parse(text: &str) -> Result<PolicyFile, FileError> {
    PolicyFile::parse(text, ".exeat.toml")
}

fn rules(file: &PolicyFile) -> Vec<String> {
    let shown = |rule: &FileRule| format!("{} {} {:?}", rule.origin, rule.spec, rule.note.tls);
    file.rules.iter().map(shown).collect()
}

/// The faults as `line:column message = meant`.
#[track_caller]
fn check_faults(text: &str, expect: &[&str]) {
    let error = parse(text).expect_err("it is refused");
    let found: Vec<String> = error
        .problems()
        .iter()
        .map(|p| {
            let meant = p.meant.as_ref().map(|meant| format!(" = {meant}")).unwrap_or_default();
            format!("{}:{} {}{meant}", p.line, p.column, p.message)
        })
        .collect();
    assert_eq!(found, expect);
}

#[test]
fn a_whole_file() {
    let file = parse(TOML).unwrap();
    assert_eq!(file.stage.as_deref(), Some("nightly-import"));
    assert_eq!(
        rules(&file),
        [
            ".exeat.toml:8 api.example.com:443 Auto",
            ".exeat.toml:9 *.cdn.example.com:443 Auto",
            ".exeat.toml:10 archive.example.org:80,443 Auto",
            ".exeat.toml:12 !telemetry.example.com:* Auto",
            ".exeat.toml:15 db.corp.example:5432 Off",
            ".exeat.toml:15 10.20.0.0/16:5432 Off",
            ".exeat.toml:16 !10.20.0.13:* Auto",
        ]
    );
    let noted = &file.rules[4].note;
    assert_eq!(noted.reason.as_deref(), Some("read-only warehouse replica"));
    assert_eq!(noted.approved_by.as_deref(), Some("data-platform@example.com"));
    assert_eq!(noted.expires, "2027-03-31".parse().ok());
    assert_eq!(file.rules[6].note.expires, None);
    assert_eq!(file.fs.view, Some(View::Project));
    assert_eq!(
        (&file.fs.ro[..], &file.fs.rw[..]),
        (&["~/datasets:/data".to_owned()][..], &["out".to_owned()][..])
    );
    assert_eq!(file.fs.mask, ["secrets"]);
    assert_eq!(file.env.pass, ["CI"]);
    assert_eq!(
        file.env.set,
        [("LANG".to_owned(), "C.UTF-8".to_owned()), ("TZ".to_owned(), "UTC".to_owned())]
    );
}

#[test]
fn json_says_the_same() {
    let (toml, json) = (parse(TOML).unwrap(), parse(JSON).unwrap());
    let bare = |file: &PolicyFile| -> Vec<_> {
        file.rules.iter().map(|rule| (rule.text.clone(), rule.spec.clone(), rule.note.clone())).collect()
    };
    assert_eq!(bare(&toml), bare(&json));
    assert_eq!((toml.stage, toml.fs, toml.env), (json.stage.clone(), json.fs.clone(), json.env.clone()));
    assert_eq!(json.rules[0].origin.to_string(), ".exeat.toml:5");
    let lines: Vec<String> = json.rules.iter().map(|rule| rule.origin.to_string()).collect();
    assert_eq!(lines[4..], [".exeat.toml:8", ".exeat.toml:8", ".exeat.toml:9"]);
}

#[test]
fn a_policy_made_of_a_file() {
    let mut builder = PolicyBuilder::new();
    parse(TOML).unwrap().apply(&mut builder).unwrap();
    let policy = builder.build();
    let today = "2027-03-30".parse().unwrap();
    let admitted = policy.admit("db.corp.example:5432".parse::<Target>().unwrap(), today).unwrap();
    assert_eq!(admitted.rule().origin.to_string(), ".exeat.toml:15");
}

#[test]
fn nothing_said_is_nothing_allowed() {
    for text in [
        "",
        "# only a comment\n",
        "\u{feff}schema = 1\r\n",
        "{}",
        " \n{ \"network\": {} }",
        "[network]\nallow = []",
    ] {
        assert_eq!(parse(text), Ok(PolicyFile::default()), "{text:?}");
    }
}

#[test]
fn h16_every_fault_is_reported_and_nothing_loads() {
    check_faults(
        "schema = 2\n[network]\nallow = [\"https://api.example.com/x\", \"a.example.com\", \"*x.com\"]\ndeny = [\"!b.example.com\"]\n",
        &[
            "1:10 this version reads schema 1 only",
            "3:11 `https://api.example.com/x` is not a rule: a rule is a host and ports, not a URL = \"api.example.com\"",
            "3:57 `*x.com` is not a rule: `*` stands only as a whole first label, as in `*.example.com` = \"*.x.com\"",
            "4:10 `!b.example.com` is not a rule: it is a deny rule already: `!` has no place here = \"b.example.com\"",
        ],
    );
}

#[test]
fn an_error_shows_the_line_and_marks_the_fault() {
    let error = parse("[network]\nallow = [\"a.example.com\",\n  \"ex\u{430}mple.com\"]\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        ".exeat.toml:3:6: `ex\\u{430}mple.com` is not a rule: \
         a host name beyond ASCII is written as its A-label, `xn--...`\n\
         \u{20} 3 |   \"ex\\u{430}mple.com\"]\n\
         \u{20}   |      ^^^^^^^",
    );
    let error = parse("[network]\nallow = [\"10.0.0.5/8:443\"]\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        ".exeat.toml:2:11: `10.0.0.5/8:443` is not a rule: \
         the address has bits beyond its prefix; the network is `10.0.0.0/8`\n\
         \u{20} 2 | allow = [\"10.0.0.5/8:443\"]\n\
         \u{20}   |           ^^^^^^^^^^\n\
         \u{20}   = probably meant: \"10.0.0.0/8:443\"",
    );
}

#[test]
fn a_string_with_escapes_is_marked_whole() {
    check_faults(
        "[network]\nallow = [\"a\\u0020b\"]",
        &["2:10 `a b` is not a rule: a rule has no spaces and no control characters"],
    );
}

#[test]
fn unknown_keys_name_the_nearest() {
    for (text, expect) in [
        ("stag = \"x\"", "1:1 there is no key `stag` at the top = stage"),
        ("allow = []", "1:1 there is no key `allow` at the top = network.allow"),
        ("[network]\nalow = []", "2:1 there is no key `alow` in `[network]` = allow"),
        ("[network]\nallow-any = true", "2:1 there is no key `allow-any` in `[network]` = allow_any"),
        ("[network]\nAllow = []", "2:1 there is no key `Allow` in `[network]` = allow"),
        (
            "[[network.rule]]\nallow=[]\nexpire = 2027-01-01",
            "3:1 there is no key `expire` in `[network.rule]` = expires",
        ),
        ("[[network.rules]]\nallow=[]", "1:11 there is no key `rules` in `[network]` = rule"),
        ("[netwrok]", "1:2 there is no key `netwrok` at the top = network"),
        ("[fs]\nzzzzzzzz = 1", "2:1 there is no key `zzzzzzzz` in `[fs]`"),
        ("{\"network\": {\"alow\": []}}", "1:14 there is no key `alow` in `[network]` = allow"),
        ("{\n \"a\\\"b\" : 1}", "2:2 there is no key `a\"b` at the top"),
    ] {
        check_faults(text, &[expect]);
    }
}

#[test]
fn keys_of_another_version_are_refused_not_ignored() {
    for (text, expect) in [
        ("[limits]\ntimeout = \"10m\"", "1:2 `limits` is not supported by this version"),
        ("[network]\npresets = [\"x\"]", "2:1 `presets` is not supported by this version"),
        (
            "[[network.rule]]\nallow = []\nmax_upload = \"1MB\"",
            "3:1 `max_upload` is not supported by this version",
        ),
        ("[network]\nmode = \"report\"", "2:8 `report` is not supported by this version: it only enforces"),
        ("{\"limits\": {}}", "1:2 `limits` is not supported by this version"),
    ] {
        check_faults(text, &[expect]);
    }
    assert!(parse("[network]\nmode = \"enforce\"").is_ok());
}

#[test]
fn values_of_the_wrong_kind() {
    for (text, expect) in [
        ("schema = \"1\"", "1:10 `schema` is a number, not a string"),
        ("schema = 1.0", "1:10 `schema` is a number, not a number with a fraction"),
        ("stage = 1", "1:9 `stage` is a string, not a number"),
        ("stage = \"\"", "1:9 the stage has an empty name"),
        ("stage = \"a\\nb\"", "1:9 the stage's name has a control character"),
        ("network = true", "1:11 `network` is a table, not true or false"),
        ("[network]\nallow = \"a.example.com\"", "2:9 `allow` is a list of strings, not a string"),
        ("[network]\nallow = [1]", "2:10 `allow` is a list of strings, not a number"),
        ("[network]\nallow_any = \"yes\"", "2:13 `allow_any` is true or false, not a string"),
        (
            "[network]\nmode = \"enforced\"",
            "2:8 `enforced` is no mode; this version knows `enforce` = enforce",
        ),
        ("[network.rule]\nallow = []", "1:1 `rule` is a list of tables, `[[network.rule]]`, not a table"),
        ("[network]\nrule = [1]", "2:9 a `[[network.rule]]` is a table, not a number"),
        ("[[network.rule]]\nreason = \"x\"", "1:1 a `[[network.rule]]` has `allow`, `deny` or both"),
        (
            "[[network.rule]]\ndeny = []\nexpires = 2027-01-01",
            "3:1 a deny rule never expires and checks no TLS: this key is for `allow`",
        ),
        (
            "[[network.rule]]\nallow = []\nexpires = 2027-01-01T00:00:00Z",
            "3:11 `expires` is a day, YYYY-MM-DD, not a date with a time",
        ),
        (
            "[[network.rule]]\nallow = []\nexpires = \"soon\"",
            "3:11 `expires` is a day, YYYY-MM-DD; `soon` is none",
        ),
        ("[[network.rule]]\nallow = []\ntls = \"on\"", "3:7 `tls` is `sni` or `off`, not `on`"),
        ("[fs]\nview = \"hosts\"", "2:8 `view` is `project`, `host` or `minimal`, not `hosts` = host"),
        ("[fs]\nro = [\"/a:b\"]", "2:7 the path inside is absolute or starts with `~/`"),
        ("[fs]\nmask = [\"\"]", "2:9 the path is empty"),
        ("[env]\npass = [\"LANG=C\"]", "2:9 the name of a variable has no `=`; values are given in `set`"),
        ("[env]\nset = [\"LANG=C\"]", "2:7 `set` is a table of names and strings, not a list"),
        ("[env]\nset = { LANG = 1 }", "2:16 `LANG` is a string, not a number"),
        ("{\"stage\": null}", "1:11 `stage` is a string, not null"),
        ("{\"schema\": 99999999999999999999}", "1:12 `schema` is a number, not a number of another kind"),
    ] {
        check_faults(text, &[expect]);
    }
}

#[test]
fn syntax_errors_have_a_place() {
    for (text, line) in [
        ("[network\nallow = []", 1),
        ("[network]\nallow = [\"a.example.com\"", 2),
        ("[network]\nallow = []\nallow = []", 3),
        ("{\"network\": {\n\"allow\": [,]}}", 2),
        ("{\"stage\": \"a\",\n \"stage\": \"b\"}", 2),
        ("{} x", 1),
        ("{\n", 2),
    ] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.problems()[0].line, line, "{text:?}: {error}");
    }
    assert!(parse(&format!("{{\"a\":{}", "[".repeat(100_000))).is_err());
    assert!(parse(&format!("a = {}", "[".repeat(100_000))).is_err());
    let nested = format!("{{\"a\":{}{}}}", "[".repeat(100), "]".repeat(100));
    assert!(parse(&nested).is_err());
}

/// H14: the allowances of a file hold for its own rules only.
#[test]
fn allowances_of_a_file() {
    let any = parse("[network]\nallow = [\"*:80\", \"*.github.io\"]\nallow_any = true").unwrap();
    assert_eq!(any.rules.len(), 2);
    check_faults(
        "[network]\nallow = [\"*\"]\nallow_shared_suffix = true",
        &["2:11 `*` is not a rule: `*` covers every host: say so with `allow_any = true`"],
    );
    let mut builder = PolicyBuilder::new();
    any.apply(&mut builder).unwrap();
    let flag = Origin::Flag { flag: "--allow".into() };
    assert!(builder.add("*", Action::Allow, flag, Note::default()).is_err());
}

#[test]
fn too_large_a_file_is_refused() {
    let text = format!("# {}", "x".repeat(MAX_FILE_BYTES));
    assert_eq!(parse(&text).unwrap_err().problems().len(), 1);
    assert!(parse_rule_lines(&text, "hosts.txt", Action::Allow).is_err());
    assert!(parse(&format!("#{}", "x".repeat(MAX_FILE_BYTES - 1))).is_ok());
}

#[test]
fn many_faults_are_counted() {
    let text = format!("[network]\nallow = [{}]", "\"*\",\n".repeat(30));
    let error = parse(&text).unwrap_err();
    assert_eq!(error.problems().len(), 30);
    assert!(error.to_string().ends_with("... and 10 more"));
}

/// A file at the cap, of rules or of faults, is read in a moment: no step scans the file for each of them.
#[test]
fn a_file_at_the_cap_is_read_in_a_moment() {
    let start = std::time::Instant::now();
    let lines = "a.example.com\n".repeat(70_000);
    assert_eq!(parse_rule_lines(&lines, "hosts.txt", Action::Allow).unwrap().len(), 70_000);
    let listed = format!("{{\"network\": {{\"allow\": [{}\"b.test\"]}}}}", "\"a.test\",".repeat(90_000));
    assert_eq!(parse(&listed).unwrap().rules.len(), 90_001);
    let keys: String = (0..90_000).map(|i| format!("\"k{i}\":1,")).collect();
    let error = parse(&format!("{{{keys}\"z\":1}}")).unwrap_err();
    assert!(error.to_string().ends_with("... and 89981 more"), "{error}");
    let faults = format!("[network]\nallow = [{}]", "\"*\",".repeat(200_000));
    assert_eq!(parse(&faults).unwrap_err().problems().len(), 100);
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn rule_lines() {
    let text = "# hosts\r\napi.example.com\r\n\n  *.cdn.example.com:443  # comment\n!b.example.com\n\t#x\n10.0.0.0/8:5432";
    let rules = parse_rule_lines(text, "hosts.txt", Action::Allow).unwrap();
    let shown: Vec<String> = rules.iter().map(|rule| format!("{} {}", rule.origin, rule.spec)).collect();
    assert_eq!(
        shown,
        [
            "hosts.txt:2 api.example.com:443",
            "hosts.txt:4 *.cdn.example.com:443",
            "hosts.txt:5 !b.example.com:*",
            "hosts.txt:7 10.0.0.0/8:5432",
        ]
    );
    let denied = parse_rule_lines("a.example.com\n", "hosts.txt", Action::Deny).unwrap();
    assert_eq!(denied[0].spec.to_string(), "!a.example.com:*");
    let error =
        parse_rule_lines("a.example.com\n  b.example.com#x\nc..d\n", "hosts.txt", Action::Allow).unwrap_err();
    let places: Vec<_> = error.problems().iter().map(|p| (p.line, p.column)).collect();
    assert_eq!(places, [(2, 16), (3, 3)]);
}

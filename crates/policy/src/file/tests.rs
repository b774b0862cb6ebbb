use super::*;
use crate::limits::Limit;
use crate::rule::{Action, Note};
use crate::target::Target;

const TOML: &str = include_str!("../../tests/fixtures/good.toml");
const JSON: &str = include_str!("../../tests/fixtures/good.json");

const CEILING: &str = include_str!("../../tests/fixtures/ceiling.toml");
const PRESETS: [&str; 2] = ["code", "packages"];

fn parse(text: &str) -> Result<PolicyFile, FileError> {
    PolicyFile::parse(text, ".exeat.toml", FileRole::Policy, &|| PRESETS.to_vec())
}

fn ceiling(text: &str) -> Result<PolicyFile, FileError> {
    PolicyFile::parse(text, "site.toml", FileRole::Ceiling, &|| PRESETS.to_vec())
}

fn rules(file: &PolicyFile) -> Vec<String> {
    let shown = |rule: &FileRule| format!("{} {} {:?}", rule.origin, rule.spec, rule.note.tls);
    file.rules.iter().map(shown).collect()
}

/// Formats the faults as `line:column message = meant`.
#[track_caller]
fn check_faults(text: &str, expect: &[&str]) {
    faults_of(parse(text), expect);
}

#[track_caller]
fn faults_of(parsed: Result<PolicyFile, FileError>, expect: &[&str]) {
    let error = parsed.expect_err("it is refused");
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

fn written(file: &PolicyFile) -> Vec<&str> {
    file.fs.allow_write.iter().flatten().map(|written| written.name.as_str()).collect()
}

#[test]
fn reads_a_whole_file() {
    let file = parse(TOML).unwrap();
    assert_eq!(file.stage.as_deref(), Some("nightly-import"));
    assert_eq!(
        rules(&file),
        [
            ".exeat.toml:9 api.example.com:443 Auto",
            ".exeat.toml:10 *.cdn.example.com:443 Auto",
            ".exeat.toml:11 archive.example.org:80,443 Auto",
            ".exeat.toml:13 !telemetry.example.com:* Auto",
            ".exeat.toml:20 db.corp.example:5432 Off",
            ".exeat.toml:20 10.20.0.0/16:5432 Off",
            ".exeat.toml:21 !10.20.0.13:* Auto",
        ]
    );
    let noted = &file.rules[4].note;
    assert_eq!(noted.reason.as_deref(), Some("read-only warehouse replica"));
    assert_eq!(noted.approved_by.as_deref(), Some("data-platform@example.com"));
    assert_eq!(noted.expires, "2027-03-31".parse().ok());
    assert_eq!(noted.max_upload, "10MB".parse().ok());
    assert_eq!((file.rules[6].note.expires, file.rules[6].note.max_upload), (None, None));
    assert_eq!(file.fs.view, Some(View::Project));
    let binds = |binds: &Option<Vec<BindSpec>>| -> Vec<String> {
        binds.iter().flatten().map(ToString::to_string).collect()
    };
    assert_eq!(
        (binds(&file.fs.ro), binds(&file.fs.rw)),
        (vec!["~/datasets:/data".into()], vec!["out".into()])
    );
    assert_eq!(file.fs.mask, ["secrets".parse().unwrap()]);
    assert_eq!(written(&file), [".vscode"]);
    assert_eq!(file.env.pass, Some(vec!["CI".to_owned()]));
    assert_eq!(
        file.env.set,
        [("LANG".to_owned(), "C.UTF-8".to_owned()), ("TZ".to_owned(), "UTC".to_owned())]
    );
    let presets: Vec<_> = file.presets.iter().map(|(name, at)| format!("{name} {at}")).collect();
    assert_eq!(presets, ["code .exeat.toml:7", "packages .exeat.toml:7"]);
    assert_eq!(
        (file.role, file.report, file.require_hosts, &file.work),
        (FileRole::Policy, None, None, &None)
    );
}

/// K11: every limit has a key, with a unit where it needs one.
#[test]
fn reads_the_limits_of_a_file() {
    let file = parse(TOML).unwrap();
    let limits: Vec<_> = file.limits.set().map(|(limit, value)| format!("{} {value}", limit.key())).collect();
    assert_eq!(
        limits,
        [
            "timeout 10m",
            "grace 5s",
            "cpu_time 1m30s",
            "memory 2GiB",
            "pids 256",
            "open_files 1024",
            "file_size 1GB",
            "tmpfs_size 512MiB",
            "output_size 10MB",
            "connections 512",
            "connections_per_host 64",
            "audit_size 1GiB",
        ]
    );
    let set: Vec<_> = file.limits.set().map(|(limit, _)| limit).collect();
    assert_eq!(set, Limit::ALL, "tests/fixtures/good.toml and good.json have every limit");
}

#[test]
fn reads_json_like_toml() {
    let (mut toml, mut json) = (parse(TOML).unwrap(), parse(JSON).unwrap());
    for file in [&mut toml, &mut json] {
        // Only the place of the rule differs.
        let FsSection { ro, rw, .. } = &mut file.fs;
        ro.iter_mut().chain(rw).flatten().for_each(|bind| assert!(bind.line.take().is_some(), "a line"));
    }
    let bare = |file: &PolicyFile| -> Vec<_> {
        file.rules.iter().map(|rule| (rule.text.clone(), rule.spec.clone(), rule.note.clone())).collect()
    };
    assert_eq!(bare(&toml), bare(&json));
    assert_eq!((&toml.stage, &toml.fs, &toml.env), (&json.stage, &json.fs, &json.env));
    assert_eq!(toml.limits, json.limits);
    let ports =
        |file: &PolicyFile| file.host_ports.iter().map(|(port, _)| port.to_string()).collect::<Vec<_>>();
    assert_eq!((ports(&toml), ports(&json)), (vec!["5432".into(), "11434:80".into()], ports(&toml)));
    let terms = |file: &PolicyFile| (file.mode, file.nat64, file.ech, file.socks5);
    assert_eq!(terms(&toml), (Some(Mode::Enforce), Some(true), Some(Ech::Refuse), Some(true)));
    assert_eq!(terms(&toml), terms(&json));
    assert_eq!(json.rules[0].origin.to_string(), ".exeat.toml:6");
    let lines: Vec<String> = json.rules.iter().map(|rule| rule.origin.to_string()).collect();
    assert_eq!(lines[4..], [".exeat.toml:9", ".exeat.toml:9", ".exeat.toml:10"]);
}

#[test]
fn builds_a_policy_from_a_file() {
    let mut builder = PolicyBuilder::new();
    parse(TOML).unwrap().apply(&mut builder);
    let policy = builder.build();
    let today = "2027-03-30".parse().unwrap();
    let admitted = policy.admit("db.corp.example:5432".parse::<Target>().unwrap(), today).unwrap();
    assert_eq!(admitted.rule().unwrap().origin.to_string(), ".exeat.toml:20");
}

#[test]
fn allows_nothing_by_an_empty_document() {
    for text in [
        "",
        "# only a comment\n",
        "\u{feff}schema = 1\r\n",
        "{}",
        " \n{ \"network\": {} }",
        "[network]\nallow = []",
    ] {
        // A section that allows nothing is a statement too.
        let network = text.contains("network");
        assert_eq!(parse(text), Ok(PolicyFile { network, ..PolicyFile::default() }), "{text:?}");
    }
}

#[test]
fn h16_reports_every_fault_and_loads_nothing() {
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
fn shows_the_line_and_marks_the_fault() {
    let error = parse("[network]\nallow = [\"a.example.com\",\n  \"ex\u{430}mple.com\"]\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        ".exeat.toml:3:6: `ex\\u{430}mple.com` is not a rule: \
         a host name has only ASCII: write its A-label, `xn--...`\n\
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
fn marks_a_string_with_escapes_whole() {
    check_faults(
        "[network]\nallow = [\"a\\u0020b\"]",
        &["2:10 `a b` is not a rule: a rule has no spaces and no control characters"],
    );
}

#[test]
fn guesses_unknown_keys() {
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
        ("[net]", "1:2 there is no key `net` at the top = network"),
        ("[limits]\nmem = 1", "2:1 there is no key `mem` in `[limits]` = limits.memory"),
        ("[netwrok]", "1:2 there is no key `netwrok` at the top = network"),
        ("[fs]\nzzzzzzzz = 1", "2:1 there is no key `zzzzzzzz` in `[fs]`"),
        ("{\"network\": {\"alow\": []}}", "1:14 there is no key `alow` in `[network]` = allow"),
        ("{\n \"a\\\"b\" : 1}", "2:2 there is no key `a\"b` at the top"),
    ] {
        check_faults(text, &[expect]);
    }
}

#[test]
fn counts_swapped_letters_as_one() {
    for (typed, expect) in [("nmp", Some("npm")), ("npn", Some("npm")), ("pnm", Some("npm")), ("mpn", None)] {
        assert_eq!(super::keys::nearest(typed, ["npm", "go"]), expect, "{typed}");
    }
    assert_eq!(super::keys::nearest("pipy", ["npm", "pypi"]), Some("pypi"));
}

#[test]
fn ports_of_this_machine() {
    let fault = "a port of this machine: PORT or \"PORT:INNER\", from 1 to 65535";
    let list = "`host_port` is a list of ports, such as 5432 or \"11434:80\"";
    for (value, expect) in [
        ("[5432, 0]", format!("2:20 {fault}")),
        ("[65536]", format!("2:14 {fault}")),
        ("[-1]", format!("2:14 {fault}")),
        ("[\"localhost:80\"]", format!("2:14 {fault}")),
        ("[\"80-90\"]", format!("2:14 {fault}")),
        ("[true]", format!("2:14 {list}, not true or false")),
        ("5432", format!("2:13 {list}, not a number = [5432]")),
        ("\"80:81\"", format!("2:13 {list}, not a string = [\"80:81\"]")),
    ] {
        check_faults(&format!("[network]\nhost_port = {value}"), &[&expect]);
    }
    let file = parse("[network]\nhost_port = [5432,\n \"11434:80\"]").unwrap();
    let ports: Vec<_> = file.host_ports.iter().map(|(port, origin)| format!("{port} {origin}")).collect();
    assert_eq!(ports, ["5432 .exeat.toml:2", "11434:80 .exeat.toml:3"]);
    let mut builder = PolicyBuilder::new();
    file.apply(&mut builder);
    let policy = builder.build();
    let rules: Vec<_> = policy.rules().iter().map(|rule| format!("{rule} {}", rule.origin)).collect();
    assert_eq!(rules, ["127.0.0.1:5432 .exeat.toml:2", "127.0.0.1:11434 .exeat.toml:3"]);
    let ceiling =
        PolicyFile::parse("[network]\nhost_port = []", "c", FileRole::Ceiling, &Vec::new).unwrap_err();
    let said = "`host_port` belongs in a policy; a ceiling allows `127.0.0.1:PORT` by an ordinary rule";
    assert_eq!(ceiling.problems()[0].message, said);
}

/// N23: every role has its own keys.
#[test]
fn refuses_keys_of_another_version() {
    for (text, expect) in [
        (
            "[[network.rule]]\nallow = []\nmethods = [\"GET\"]",
            "3:1 `methods` is not supported by this version",
        ),
        (
            "{\"network\": {\"rule\": [{\"allow\": [], \"paths\": 1}]}}",
            "1:37 `paths` is not supported by this version",
        ),
    ] {
        check_faults(text, &[expect]);
    }
}

#[test]
fn values_of_the_wrong_kind() {
    for (text, expect) in [
        ("[network]\nmode = \"reports\"", "2:8 `mode` is `enforce` or `report`, not `reports` = \"report\""),
        ("[network]\nech = \"off\"", "2:7 `ech` is `record` or `refuse`, not `off`"),
        (
            "[network]\nmax_upload = \"1MB\"",
            "2:1 there is no key `max_upload` in `[network]` = network.rule.max_upload",
        ),
        (
            "[[network.rule]]\nallow = []\nmax_upload = \"0\"",
            "3:14 `max_upload`: a size is a whole number with a unit, like `512MiB`, `2GiB` or `10MB`, and is not zero",
        ),
        (
            "[[network.rule]]\ndeny = []\nmax_upload = \"1kB\"",
            "3:1 a deny rule never expires and lets nothing through: this key is for `allow`",
        ),
        ("[limits]\nconnections = 1000001", "2:15 `connections` is a whole number from 1 to 1000000"),
        (
            "[limits]\nconnections_per_host = \"64\"",
            "2:24 `connections_per_host` is a whole number from 1 to 1000000, not a string = 64",
        ),
        ("schema = \"1\"", "1:10 `schema` is a number, not a string = 1"),
        ("schema = 1.0", "1:10 `schema` is a number, not a number with a fraction = 1"),
        ("stage = 1", "1:9 `stage` is a string, not a number = \"1\""),
        ("stage = \"\"", "1:9 the stage's name is empty"),
        ("stage = \"a\\nb\"", "1:9 the stage's name has a control character"),
        ("network = true", "1:11 `network` is a table, not true or false = a list of hosts, `network.allow`"),
        (
            "{\"network\": true}",
            "1:13 `network` is a table, not true or false = a list of hosts, `network.allow`",
        ),
        (
            "network = false",
            "1:11 `network` is a table, not true or false = nothing: without rules no host is allowed",
        ),
        (
            "[network]\nallow = \"a.example.com\"",
            "2:9 `allow` is a list of strings, not a string = [\"a.example.com\"]",
        ),
        ("[network]\nallow = [1]", "2:10 `allow` is a list of strings, not a number"),
        ("[network]\nallow_any = \"yes\"", "2:13 `allow_any` is true or false, not a string = true"),
        (
            "[network]\nmode = \"enforced\"",
            "2:8 `mode` is `enforce` or `report`, not `enforced` = \"enforce\"",
        ),
        (
            "[network.rule]\nallow = []",
            "1:1 `rule` is a list of tables, `[[network.rule]]`, not a table = [[network.rule]]",
        ),
        ("[network]\nrule = [1]", "2:9 a `[[network.rule]]` is a table, not a number"),
        ("[[network.rule]]\nreason = \"x\"", "1:1 a `[[network.rule]]` has `allow`, `deny` or both"),
        (
            "[[network.rule]]\ndeny = []\nexpires = 2027-01-01",
            "3:1 a deny rule never expires and lets nothing through: this key is for `allow`",
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
        ("[fs]\nview = \"hosts\"", "2:8 `view` is `project`, `host` or `minimal`, not `hosts` = \"host\""),
        ("[fs]\nro = [\"/a:b\"]", "2:7 the path inside is absolute or starts with `~/`"),
        ("[fs]\nmask = [\"\"]", "2:9 the path is empty"),
        ("[env]\npass = [\"LANG=C\"]", "2:9 the name of a variable has no `=`; values are given in `set`"),
        ("[env]\nset = [\"LANG=C\"]", "2:7 `set` is a table of names and strings, not a list"),
        ("[env]\nset = { LANG = 1 }", "2:16 `LANG` is a string, not a number = \"1\""),
        ("{\"stage\": null}", "1:11 `stage` is a string, not null"),
        ("{\"schema\": 99999999999999999999}", "1:12 this version reads schema 1 only"),
    ] {
        check_faults(text, &[expect]);
    }
}

#[test]
fn locates_syntax_errors() {
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

/// H14: the allowances of a file apply only to its own rules.
#[test]
fn applies_allowances_to_their_file_only() {
    let any = parse("[network]\nallow = [\"*:80\", \"*.github.io\"]\nallow_any = true").unwrap();
    assert_eq!(any.rules.len(), 2);
    check_faults(
        "[network]\nallow = [\"*\"]\nallow_shared_suffix = true",
        &["2:11 `*` is not a rule: `*` covers every host: say so with `allow_any = true` in a policy file"],
    );
    let mut builder = PolicyBuilder::new();
    any.apply(&mut builder);
    let flag = Origin::Flag { flag: "--allow".into() };
    assert!(builder.add("*", Action::Allow, flag, Note::default()).is_err());
}

#[test]
fn refuses_too_large_a_file() {
    let text = format!("# {}", "x".repeat(MAX_FILE_BYTES));
    assert_eq!(parse(&text).unwrap_err().problems().len(), 1);
    assert!(parse_rule_lines(&text, "hosts.txt", Action::Allow).is_err());
    assert!(parse(&format!("#{}", "x".repeat(MAX_FILE_BYTES - 1))).is_ok());
}

#[test]
fn counts_many_faults() {
    let text = format!("[network]\nallow = [{}]", "\"*\",\n".repeat(30));
    let error = parse(&text).unwrap_err();
    assert_eq!(error.problems().len(), 30);
    assert!(error.to_string().ends_with("... and 10 more"));
}

/// A file of maximum size, with rules or with faults, is read in a moment: no step scans the file for each of them.
#[test]
fn reads_a_file_of_maximum_size_quickly() {
    let start = std::time::Instant::now();
    let lines = "a.example.com\n".repeat(MAX_RULES + 1);
    let many = |error: FileError| error.to_string().contains("at most 200000 are read");
    assert!(parse_rule_lines(&lines, "hosts.txt", Action::Allow).is_err_and(many));
    let listed = format!("{{\"network\": {{\"allow\": [{}\"b.test\"]}}}}", "\"a.test\",".repeat(MAX_RULES));
    assert!(parse(&listed).is_err_and(many));
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

/// K10, K14, A2: other programs' words for our keys, and what belongs on the command line.
#[test]
fn guesses_keys_of_other_programs() {
    for (text, expect) in [
        ("effects = []", "1:11 `effects` is a table, not a list = --effects FILE, on the command line"),
        ("ceiling = 1", "1:1 there is no key `ceiling` at the top = --ceiling FILE, on the command line"),
        ("presets = []", "1:1 there is no key `presets` at the top = network.presets"),
        (
            "[network]\nallowed_domains = []",
            "2:1 there is no key `allowed_domains` in `[network]` = network.allow",
        ),
        ("forbidden_paths = []", "1:1 there is no key `forbidden_paths` at the top = fs.mask"),
        ("allowed_write_paths = []", "1:1 there is no key `allowed_write_paths` at the top = fs.rw"),
        ("allow_network = true", "1:1 there is no key `allow_network` at the top = network.allow"),
        (
            "[limits]\nwall_time_secs = 3",
            "2:1 there is no key `wall_time_secs` in `[limits]` = limits.timeout",
        ),
        ("{\"schema\": 1, \"ro_binds\": []}", "1:15 there is no key `ro_binds` at the top = fs.ro"),
    ] {
        check_faults(text, &[expect]);
    }
}

/// A3, K1, K3, K4, K5: hidden paths, writable paths, read-only paths inside them, and the configuration of git.
#[test]
fn files_of_a_policy() {
    let file = parse(
        "[fs]\nmask=[\"~/.keys\"]\nrw=[\"/w\"]\nro=[\"/w/fixed\"]\nallow_write=[\".git\", \".vscode\"]",
    )
    .unwrap();
    assert_eq!(file.fs.mask[0], PathSpec::Home(".keys".into()));
    assert_eq!(written(&file), [".git", ".vscode"]);
    assert_eq!(file.fs.rw.unwrap()[0].host, PathSpec::Absolute("/w".into()));
    assert_eq!(file.fs.ro.unwrap()[0].host, PathSpec::Absolute("/w/fixed".into()));
}

#[test]
fn refuses_invalid_limits() {
    for (text, expect) in [
        ("timeout = 90", "2:11 `timeout` is a duration like \"10m\", not a number = \"90s\""),
        ("timeout = \"90\"", "2:11 `timeout`: the unit is missing: `90s`, `90m`? = \"90s\""),
        (
            "timeout = \"10 minutes\"",
            "2:11 `timeout`: a duration is written in whole numbers with a unit, like `90s`, `10m`, `1h30m` or \
             `500ms`, and is not zero = \"10m\"",
        ),
        ("cpu_time = \"400d\"", "2:12 `cpu_time`: a duration is at most 366d"),
        ("memory = 512", "2:10 `memory` is a size like \"512MiB\", not a number = \"512M\""),
        ("memory = 2147483648", "2:10 `memory` is a size like \"512MiB\", not a number = \"2147483648\""),
        ("memory = \"100\"", "2:10 `memory`: below 1MiB no command starts = \"100M\""),
        ("memory = \"64k\"", "2:10 `memory`: below 1MiB no command starts = \"64MiB\""),
        (
            "file_size = \"2 GB\"",
            "2:13 `file_size`: a size is a whole number with a unit, like `512MiB`, `2GiB` or `10MB`, and is not zero = \"2GB\"",
        ),
        (
            "memory = \"2 gib\"",
            "2:10 `memory`: a size is a whole number with a unit, like `512MiB`, `2GiB` or `10MB`, and is not zero = \"2GiB\"",
        ),
        ("memory = true", "2:10 `memory` is a size like \"512MiB\", not true or false"),
        ("pids = \"256\"", "2:8 `pids` is a whole number from 1 to 4294967295, not a string = 256"),
        ("pids = 0", "2:8 `pids` is a whole number from 1 to 4294967295"),
        ("open_files = -1", "2:14 `open_files` is a whole number from 16 to 4294967295"),
        ("open_files = 4294967296", "2:14 `open_files` is a whole number from 16 to 4294967295"),
        ("pid = 1", "2:1 there is no key `pid` in `[limits]` = pids"),
    ] {
        check_faults(&format!("[limits]\n{text}"), &[expect]);
    }
    assert_eq!(parse("[limits]\npids = 4294967295").unwrap().limits.pids, Some(u32::MAX));
}

#[test]
fn refuses_unknown_presets() {
    check_faults(
        "[network]\npresets = [\"code\", \"Package\", \"zzz\"]",
        &["2:20 there is no preset `Package` = \"packages\"", "2:31 there is no preset `zzz`"],
    );
    assert!(PolicyFile::parse("[network]\npresets = [\"code\"]", "x", FileRole::Policy, &Vec::new).is_err());
}

#[test]
fn reads_a_whole_ceiling() {
    let file = ceiling(CEILING).unwrap();
    assert_eq!(file.role, FileRole::Ceiling);
    assert_eq!((file.report, file.require_hosts), (Some(false), Some(true)));
    assert_eq!((file.nat64, file.ech), (Some(false), Some(Ech::Refuse)));
    assert_eq!(file.rules[3].note.max_upload, "1GB".parse().ok());
    assert_eq!(file.limits.connections, Some(256));
    assert_eq!(file.presets[0].0, "packages");
    let shown: Vec<_> = file.rules.iter().map(|rule| rule.spec.to_string()).collect();
    assert_eq!(
        shown,
        ["*.example.com:*", "10.20.0.0/16:5432", "!paste.example.net:*", "db.corp.example:5432"]
    );
    assert_eq!(file.rules[3].origin.to_string(), "site.toml:14");
    assert_eq!(file.rules[3].note.reason.as_deref(), Some("the warehouse"));
    assert_eq!(file.fs.view, Some(View::Project));
    assert_eq!(file.fs.rw, Some(vec![]));
    assert_eq!(file.env.pass, Some(vec!["CI".to_owned(), "LANG".to_owned()]));
    assert_eq!(file.limits.pids, None);
    assert_eq!(file.limits.memory, "4GiB".parse().ok());
}

/// H15, K13: an empty list of a ceiling allows nothing, and an absent one does not bound.
#[test]
fn separates_an_empty_list_from_an_absent_one() {
    let absent = ceiling("[fs]\n[env]").unwrap();
    assert_eq!((absent.fs.ro, absent.fs.rw, absent.env.pass), (None, None, None));
    let empty = ceiling("[fs]\nro = []\nrw = []\n[env]\npass = []").unwrap();
    assert_eq!((empty.fs.ro, empty.fs.rw, empty.env.pass), (Some(vec![]), Some(vec![]), Some(vec![])));
    assert!(View::Minimal < View::Project && View::Project < View::Host);
}

#[test]
fn separates_the_keys_of_roles() {
    for (text, expect) in [
        ("[network]\nreport = true", "2:1 `report` belongs in a ceiling; this is a policy"),
        ("[network]\nrequire_hosts = true", "2:1 `require_hosts` belongs in a ceiling; this is a policy"),
    ] {
        check_faults(text, &[expect]);
    }
    for (text, expect) in [
        ("stage = \"x\"", "1:1 `stage` belongs in a policy; this is a ceiling"),
        ("[network]\nmode = \"enforce\"", "2:1 `mode` belongs in a policy; this is a ceiling"),
        ("[sandbox]\ntty = \"off\"", "2:1 `tty` belongs in a policy; this is a ceiling"),
        ("[env]\nset = {}", "2:1 `set` belongs in a policy; this is a ceiling"),
        ("[network]\nreport = \"no\"", "2:10 `report` is true or false, not a string = false"),
        (
            "[fs]\nro = [\"/a\", \"~/b:/c\"]",
            "2:13 a ceiling bounds paths of the host; where they are shown is not its business = \"~/b\"",
        ),
        (
            "{\"ro_binds\": [], \"network\": false, \"env_allowlist\": []}",
            "1:1 a ceiling is not written as an isolation policy (`ro_binds` and so on)",
        ),
    ] {
        faults_of(ceiling(text), &[expect]);
    }
}

#[test]
fn guesses_json_faults() {
    for (text, expect) in [
        ("{\"stage\": \"a\",\n \"stage\": \"b\"}", "2:2 this key is given twice, first on line 1"),
        ("{\"stage\": \"a\",}", "1:14 a comma with nothing after it = no comma here"),
        ("{\"network\": {\"allow\": [\"a.test\",\n]}}", "1:32 a comma with nothing after it = no comma here"),
        ("{stage: \"a\"}", "1:2 key must be a string = \"stage\""),
        ("{\"stage\": 'a'}", "1:11 expected value = a `\"` on each side"),
        ("{\"stage\": nightly}", "1:12 expected ident"),
        ("{\"stage\": Nightly}", "1:11 expected value = \"Nightly\""),
        ("{\"network\": {\"allow_any\": True}}", "1:27 expected value = true"),
        ("{\"stage\" = \"a\"}", "1:10 expected `:` = `:`"),
        ("{// x\n}", "1:2 key must be a string = no comment: JSON has none, TOML has"),
        ("{\"network\": {\"allow\": [\"a.test\" \"b.test\"]}}", "1:33 expected `,` or `]` = a `,` before it"),
    ] {
        check_faults(text, &[expect]);
    }
    check_faults("stage = \"a\"\nstage = \"b\"", &["2:1 duplicate key"]);
}

const OLD: &str = include_str!("../../tests/fixtures/isolation-0.7.json");
const NEW: &str = include_str!("../../tests/fixtures/isolation-0.8.json");

/// N6, N7, N8, N9, N10, N11, N21: an isolation policy loads unchanged, also without `rw_binds`.
#[test]
fn loads_isolation_policies_unchanged() {
    let old = parse(OLD).unwrap();
    let binds = |binds: Option<Vec<BindSpec>>| -> Vec<String> {
        binds.into_iter().flatten().map(|bind| bind.to_string()).collect()
    };
    assert_eq!(old.fs.view, Some(View::Minimal));
    assert_eq!(binds(old.fs.ro), ["/nix/store:/nix/store", "/data/raw:/input"]);
    assert_eq!(binds(old.fs.rw), [""; 0]);
    assert_eq!(old.work, Some(WorkDir::Scratch));
    assert_eq!(old.rules, []);
    assert_eq!(old.env.pass.unwrap()[..2], ["PATH", "HOME"]);

    let new = parse(NEW).unwrap();
    assert_eq!(binds(new.fs.rw), ["/data/out:/data/out"]);
    assert_eq!(new.work, Some(WorkDir::Host(PathSpec::Absolute("/srv/jobs/17".into()))));
    let rules: Vec<_> = new.rules.iter().map(|rule| format!("{} {}", rule.origin, rule.spec)).collect();
    assert_eq!(
        rules,
        [".exeat.toml:5 *:80,443", ".exeat.toml:5 0.0.0.0/0:80,443", ".exeat.toml:5 [::/0]:80,443"]
    );
    assert_eq!(parse(&NEW.replace("\"/srv/jobs/17\"", "null")).unwrap().work, Some(WorkDir::Scratch));
}

/// N10: `network` may also contain our own rules; `true` is every public host and never the host machine.
#[test]
fn the_network_of_an_isolation_policy() {
    let text = r#"{"ro_binds": [], "network": {"allow": ["a.example.com"]}, "env_allowlist": []}"#;
    let rules = parse(text).unwrap().rules;
    assert_eq!(rules[0].spec.to_string(), "a.example.com:443");

    let mut builder = PolicyBuilder::new();
    parse(NEW).unwrap().apply(&mut builder);
    let policy = builder.build();
    let today = "2027-03-30".parse().unwrap();
    for target in ["127.0.0.1:443", "10.0.0.1:443", "169.254.169.254:80", "[::1]:443", "93.184.215.14:22"] {
        assert!(policy.admit(target.parse::<Target>().unwrap(), today).is_err(), "{target}");
    }
    for target in ["93.184.215.14:443", "[2606:2800:21f::1]:80", "a.example.com:443"] {
        assert!(policy.admit(target.parse::<Target>().unwrap(), today).is_ok(), "{target}");
    }
    let admitted = policy.admit("a.example.com:443".parse::<Target>().unwrap(), today).unwrap();
    assert!(admitted.vet(&["10.0.0.1".parse().unwrap()], &crate::addr::OwnAddrs::default()).is_err());
}

#[test]
fn faults_of_isolation_policies() {
    for (text, expect) in [
        (
            r#"{"rw_binds": [], "network": false, "env_allowlist": []}"#,
            &["1:1 an isolation policy has `ro_binds`, and this one has not"][..],
        ),
        (
            r#"{"ro_binds": []}"#,
            &[
                "1:1 an isolation policy has `network`, and this one has not",
                "1:1 an isolation policy has `env_allowlist`, and this one has not",
            ],
        ),
        (
            r#"{"ro_binds": [["/a", "/b"]], "network": false, "env_allowlist": []}"#,
            &[r#"1:15 `ro_binds` is a list of binds, {"host": PATH, "sandbox": PATH}, not a list"#],
        ),
        (
            r#"{"ro_binds": [{"host": "/a"}], "network": false, "env_allowlist": []}"#,
            &["1:15 a bind has `host` and `sandbox`; `sandbox` is missing"],
        ),
        (
            r#"{"ro_binds": [{"host": "a", "sandbox": "/b/../c"}], "network": false, "env_allowlist": []}"#,
            &["1:24 a path here is absolute or starts with `~/`", "1:40 the path inside has no `..`"],
        ),
        (
            r#"{"ro_binds": [{"host": "/a", "sandbx": "/b", "sandbox": "/b"}], "network": "no", "env_allowlist": ["A=1"]}"#,
            &[
                "1:30 there is no key `sandbx` in a bind = sandbox",
                "1:76 `network` is true, false, or a table of rules, not a string",
                "1:100 the name of a variable has no `=`; values are given in `set`",
            ],
        ),
        (
            r#"{"ro_binds": [], "network": false, "env_allowlist": [], "rw_bind": []}"#,
            &["1:57 there is no key `rw_bind` at the top = rw_binds"],
        ),
    ] {
        check_faults(text, expect);
    }
}

/// H15: an empty document of any form allows nothing.
#[test]
fn allows_nothing_by_an_empty_isolation_policy() {
    let file = parse(r#"{"ro_binds": [], "network": false, "env_allowlist": []}"#).unwrap();
    assert_eq!((file.rules, file.fs.ro, file.env.pass), (vec![], Some(vec![]), Some(vec![])));
}

/// The first of two equal grants counts, and TOML does not keep the order of keys.
#[test]
fn ignores_the_order_of_keys() {
    let text = r#"{"network": {"rule": [{"allow": ["a.test"], "tls": "off"}], "deny": ["c.test"], "allow": ["b.test"]}}"#;
    let specs: Vec<_> = parse(text).unwrap().rules.iter().map(|rule| rule.spec.to_string()).collect();
    assert_eq!(specs, ["b.test:443", "!c.test:*", "a.test:443"]);
}

#[test]
fn bounds_the_rules_of_a_file() {
    let hosts = |count: usize| (0..count).map(|n| format!("h{n}.example.com")).collect::<Vec<_>>();
    let file = |count| format!("[network]\nallow = {:?}\n", hosts(count));
    assert_eq!(parse(&file(MAX_RULES)).unwrap().rules.len(), MAX_RULES);
    let said = parse(&file(MAX_RULES + 1)).unwrap_err().to_string();
    assert!(said.contains("there are 200001 rules; at most 200000"), "{said}");
    let list = |count| parse_rule_lines(&hosts(count).join("\n"), "list", Action::Allow);
    assert!(list(MAX_RULES).is_ok() && list(MAX_RULES + 1).is_err());
    let effects = |count| {
        let text = format!(r#"[{{"effect": "NetworkHosts", "hosts": {:?}}}]"#, hosts(count));
        crate::EffectSet::parse(&text, "effects")
    };
    assert!(effects(MAX_RULES).is_ok() && effects(MAX_RULES + 1).is_err());
}

/// K36: the upstream proxy of a policy and of a ceiling.
#[test]
fn reads_the_upstream_proxy_of_a_file() {
    let text = "[network.upstream]\nproxy = \"http://proxy.corp.example:3128\"\nauth = \"file:~/.proxy\"\n\
                bypass = [\".corp.example\", \"10.0.0.0/8\", \"[2001:db8::]:443\"]\n";
    for file in [parse(text), ceiling(text)] {
        let upstream = file.unwrap().upstream.unwrap();
        assert_eq!(upstream.proxy.unwrap().to_string(), "http://proxy.corp.example:3128");
        assert_eq!(upstream.auth, Some(crate::AuthSpec::File(PathSpec::Home(".proxy".into()))));
        assert_eq!(
            upstream.bypass.unwrap().to_string(),
            "*.corp.example,10.0.0.0/8,[2001:db8::]:443,corp.example"
        );
    }
    assert_eq!(parse("[network]\nallow = []\n").unwrap().upstream, None);
    check_faults(
        "[network.upstream]\nbypass = [\"*\", \"a*.test\", \"\"]\n",
        &[
            "1:10 `[network.upstream]` has `proxy`",
            "2:11 `*` would leave nothing to the upstream proxy",
            "2:16 `a*.test` is not a rule: `*` stands only as a whole first label, as in `*.example.com`",
            "2:27 `` is not a rule: it is empty",
        ],
    );
    check_faults(
        "[network.upstream]\nproxy = \"https://p.test:1\"\nproxies = 1\n",
        &[
            "2:9 an upstream proxy that is reached by `https://` is not supported; `http://host:port` is",
            "3:1 there is no key `proxies` in `[network.upstream]`",
        ],
    );
}

/// A03: a misplaced password is in no message, not even in the shown line.
#[test]
fn a03_no_message_shows_a_password() {
    for text in [
        "network.upstream.proxy = \"http://user:hunter2@p.test:1\"",
        "network.upstream = { proxy = \"http://p.test:1\", auth = \"user:hunter2\" }",
        "network.upstream = { proxy = \"http://p.test:1\", auth = \"user:hunter2\", bypass = [\"*\"] }",
        "[network.upstream]\nproxy = \"http://user:hunter2@p.test:1",
        "{\"network\": {\"upstream\": {\"proxy\": \"http://user:hunter2@p.test:1\", \"x\": 1}}}",
    ] {
        let error = parse(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let error = parse("network.upstream.proxy = \"http://user:hunter2@p.test:1\"").unwrap_err().to_string();
    assert!(error.contains("1:26: a user name and a password have no place in the URL"), "{error}");
}

/// A value that no run could hold is refused with its line, before anything checks the machine.
#[test]
fn refuses_values_that_no_run_holds() {
    check_faults("[limits]\nopen_files = 8", &["2:14 `open_files` is a whole number from 16 to 4294967295"]);
    assert!(parse("[limits]\nopen_files = 16").is_ok());
    check_faults(
        "[network]\nhost_port = [53, \"8080:53\", 3128, \"3128:80\"]",
        &[
            "2:14 nothing can be at port 53 inside: names are answered there = \"53:INNER\"",
            "2:18 nothing can be at port 53 inside: names are answered there",
            "2:29 nothing can be at port 3128 inside: the proxy is there = \"3128:INNER\"",
        ],
    );
}

/// Another format is named once, and its faults are not explained as TOML.
#[test]
fn names_other_formats() {
    let faults = |text: &str| {
        let error = PolicyFile::parse(text, "x", FileRole::Policy, &Vec::new).unwrap_err();
        error.problems().iter().map(|it| (it.line, it.column, it.message.clone())).collect::<Vec<_>>()
    };
    for text in
        ["network:\n  allow:\n    - a.test\n", "# x\n\n---\nnetwork: {}\n", "- a.test\n", "\"network\": {}\n"]
    {
        let faults = faults(text);
        assert!(faults.len() == 1 && faults[0].2.contains("looks like YAML"), "{text}: {faults:?}");
    }
    for text in ["[{\"allow\": 1}]", " \n[\"a.test\", 2]"] {
        let faults = faults(text);
        assert!(faults.len() == 1 && faults[0].2.contains("a list in JSON"), "{text}: {faults:?}");
    }
    // TOML keeps its own faults.
    for text in ["[network]\nallow = 1\n", "[[network.rule]]\nallow = [", "stage = a:b\n", "[a:b]\n"] {
        assert!(!faults(text).iter().any(|it| it.2.contains("YAML") || it.2.contains("JSON")), "{text}");
    }
    assert!(PolicyFile::parse("[\"network\"]\n[fs]\n", "x", FileRole::Policy, &Vec::new).is_ok());
}

/// The schema's address is only for editors.
#[test]
fn ignores_the_schema_key_of_editors() {
    let parse = |text: &str, role| PolicyFile::parse(text, "x", role, &Vec::new);
    for role in [FileRole::Policy, FileRole::Ceiling] {
        let file =
            parse(r#"{"$schema": "urn:exeat:policy:1", "network": {"allow": ["a.test"]}}"#, role).unwrap();
        assert_eq!(file.rules.len(), 1);
    }
    assert!(parse(r#"{"$schema": 1}"#, FileRole::Policy).is_err());
    assert!(parse(r#"{"network": {"$schema": "x"}}"#, FileRole::Policy).is_err());
}

/// A preset in a ceiling is a fault with a position.
#[test]
fn locates_a_preset_in_a_ceiling() {
    let text = "[network]\npresets = [\"github-read\", \"npm\"]\n";
    let names = || vec!["github-read", "npm"];
    assert!(PolicyFile::parse(text, "x", FileRole::Policy, &names).is_ok());
    let error = PolicyFile::parse(text, "x", FileRole::Ceiling, &names).unwrap_err();
    let [fault] = error.problems() else { panic!("{error}") };
    assert_eq!((fault.line, fault.column), (2, 27), "{error}");
    assert!(
        fault.message.contains("preset `npm` asks npm for its hosts, and a ceiling does not depend on that"),
        "{error}"
    );
}

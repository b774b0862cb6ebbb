//! Tests policies from every source and in every combination, with the commands that read policies. Nothing here starts
//! a sandbox.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use serde_json::Value;

#[path = "support/home.rs"]
mod home;

use home::Home;

const HOSTS: &str =
    r#"[{"effect":"NetworkHosts","hosts":["a.example.com","b.example.com"]},{"effect":"Fallible"}]"#;

fn check(home: &Home, words: &[&str]) -> (i32, String, String) {
    home.run(&[&["check"], words].concat())
}

/// The promise is 250 ms for a release build. A debug build gets ten times that, which still reveals a quadratic cost.
/// Takes the least processor time of three tries, since other tests run at the same time.
#[test]
fn checks_against_a_hundred_thousand_names_within_its_time() {
    let most = if cfg!(debug_assertions) { 2.5 } else { 0.25 };
    let home = Home::new();
    let names: Vec<String> = (0..100_000).map(|number| format!("  \"host{number}.example.com\"")).collect();
    home.file("names.toml", &format!("[network]\nallow = [\n{}\n]\n", names.join(",\n")));
    // The second line of `times` is the time of the shell's children (POSIX, "times").
    let script =
        format!("{} check --policy names.toml host99999.example.com; times", env!("CARGO_BIN_EXE_exeat"));
    let took = |_| {
        let (code, out, said) = home::result_of(home.command("sh").args(["-c", &script]).output().unwrap());
        assert!(code == 0 && out.starts_with("allow  host99999.example.com:443"), "{out}{said}");
        let words = out.lines().last().unwrap().split_whitespace();
        let seconds = words.map(|word| {
            let (minutes, seconds) = word.trim_end_matches('s').split_once('m').unwrap();
            minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
        });
        seconds.sum::<f64>()
    };
    let least = (0..3).map(took).fold(f64::INFINITY, f64::min);
    assert!(least < most, "{least} s");
}

/// N12: effects alone are the grants.
#[test]
fn effects_alone_are_the_grants() {
    let home = Home::new();
    home.file("stage.json", HOSTS);
    let (code, out, _) = check(&home, &["--effects", "stage.json", "a.example.com"]);
    assert_eq!((code, out.as_str()), (0, "allow  a.example.com:443  a.example.com (effect:NetworkHosts)\n"));
    assert_eq!(check(&home, &["--effects", HOSTS, "c.example.com"]).0, 1);
    assert_eq!(
        check(&home, &["--effects", r#"[{"effect":"NetworkHosts","hosts":[]}]"#, "a.example.com"]).0,
        1
    );
    let (code, _, said) = check(&home, &["--effects", r#"{"effect":"Network"}"#, "c.example.com"]);
    assert_eq!(code, 0);
    assert!(said.contains("`Network`"), "{said}");
    let private = check(&home, &["--effects", r#"{"effect":"Network"}"#, "10.2.3.4:443"]);
    assert_eq!(private.0, 1, "a wide net opens no private address");
}

#[test]
fn grants_the_intersection_of_declaration_and_grants() {
    let home = Home::new();
    let words = ["--effects", HOSTS, "--allow", "*.example.com"];
    let (code, out, _) = check(&home, &[&words[..], &["a.example.com"]].concat());
    let expect =
        "allow  a.example.com:443  *.example.com (--allow), within a.example.com (effect:NetworkHosts)\n";
    assert_eq!((code, out.lines().next().unwrap()), (0, expect.trim_end()));
    let (code, out, _) = check(&home, &[&words[..], &["c.example.com"]].concat());
    assert_eq!((code, out.as_str()), (1, "deny   c.example.com:443  the stage does not declare it\n"));
}

/// K13: a stage that declares more than it is granted does not start, unless a flag narrows the declaration.
#[test]
fn a_declaration_beyond_the_grants_is_refused_or_narrowed() {
    let home = Home::new();
    let words = ["--effects", HOSTS, "--allow", "a.example.com"];
    let (code, out, said) = check(&home, &[&words[..], &["a.example.com"]].concat());
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(
        said,
        "exeat: error: the stage declares more than it is granted: effect:NetworkHosts: `b.example.com`: no rule allows it\n  \
         hint: --allow b.example.com:443 grants it; --set effects.on_excess=narrow runs without it\n"
    );
    let narrow = [&words[..], &["--set", "effects.on_excess=narrow", "a.example.com"]].concat();
    let (code, _, said) = check(&home, &narrow);
    assert_eq!(code, 0);
    assert!(said.contains("left out: effect:NetworkHosts: `b.example.com`"), "{said}");
    let run = home.run(&["run", "--effects", HOSTS, "--allow", "a.example.com", "--", "true"]);
    assert_eq!(run.0, 2);
}

/// N30.
#[test]
fn kinds_beyond_those_allowed_are_refused() {
    let home = Home::new();
    let with = |kinds: &str| {
        let kinds: Vec<_> = kinds.split(',').collect();
        check(&home, &["--effects", HOSTS, "--set", &format!("effects.allow={kinds:?}"), "a.example.com"])
    };
    assert_eq!(with("network-hosts,fallible").0, 0);
    assert_eq!(with("network,fallible").0, 0);
    let (code, _, said) = with("network-hosts,fs-read");
    assert_eq!(code, 2);
    assert!(said.contains("granted: `fallible`: `effects.allow` of --set does not list it\n"), "{said}");
    let (code, _, said) = with("fs_read");
    assert_eq!(code, 2);
    assert!(said.contains("fs-read"), "{said}");
}

#[test]
fn bad_effects_load_nothing_and_point_at_the_fault() {
    let home = Home::new();
    home.file("stage.json", "[\n  {\"effect\": \"Network\", \"hosts\": [\"a.example.com\"]}\n]\n");
    let (code, _, said) = check(&home, &["--effects", "stage.json", "a.example.com"]);
    assert_eq!(code, 2);
    assert!(said.contains("stage.json:2:") && said.contains("NetworkHosts"), "{said}");
    assert_eq!(check(&home, &["--effects", "absent.json", "a.example.com"]).0, 2);
}

#[test]
fn a_ceiling_bounds_and_names_itself() {
    let home = Home::new();
    home.file(
        "site.toml",
        "schema = 1\n[network]\nallow = [\"*.example.com\"]\ndeny = [\"b.example.com\"]\n",
    );
    let with = |words: &[&str]| check(&home, &[&["--ceiling", "site.toml"], words].concat());
    let (code, out, _) = with(&["--allow", "a.example.com", "a.example.com"]);
    assert_eq!(code, 0);
    assert_eq!(
        out,
        "allow  a.example.com:443  a.example.com (--allow), within *.example.com (site.toml:3)\n"
    );
    let (code, out, _) = with(&["--allow", "a.example.org", "a.example.org"]);
    assert_eq!(
        (code, out.as_str()),
        (1, "deny   a.example.org:443  the ceiling site.toml does not allow it\n")
    );
    let (code, out, _) = with(&["--allow", "b.example.com", "b.example.com"]);
    assert_eq!((code, out.as_str()), (1, "deny   b.example.com:443  denied by site.toml:4\n"));
    // A ceiling alone grants nothing.
    assert_eq!(with(&["a.example.com"]).0, 1);
    home.file("empty.toml", "schema = 1\n");
    assert_eq!(check(&home, &["--ceiling", "empty.toml", "--allow", "a.example.com", "a.example.com"]).0, 1);
    // What was to write it may have failed.
    for text in ["", " \n"] {
        home.file("empty.toml", text);
        for flag in ["--ceiling", "--policy"] {
            let (code, _, said) = check(&home, &[flag, "empty.toml", "a.example.com"]);
            assert!(code == 2 && said.contains("`empty.toml` is empty"), "{said}");
        }
    }
    home.file("bad.toml", "[network]\nallow = [\"*\"]\n");
    assert_eq!(check(&home, &["--ceiling", "bad.toml", "--allow", "a.example.com", "a.example.com"]).0, 2);
}

#[test]
fn the_user_s_ceiling_holds_without_being_named() {
    let home = Home::new();
    std::fs::create_dir_all(home.0.join(".config/exeat")).unwrap();
    home.file(".config/exeat/policy.toml", "[network]\nallow = [\"*.example.com\"]\n");
    assert_eq!(check(&home, &["--allow", "a.example.org", "a.example.org"]).0, 1);
    assert_eq!(check(&home, &["--allow", "a.example.com", "a.example.com"]).0, 0);
    // A ceiling that cannot be parsed would bound an unknown policy.
    home.file(".config/exeat/policy.toml", "[network]\nallow = 3\n");
    assert_eq!(check(&home, &["--allow", "a.example.com", "a.example.com"]).0, 2);
    std::fs::remove_file(home.0.join(".config/exeat/policy.toml")).unwrap();
    std::fs::create_dir(home.0.join(".config/exeat/policy.toml")).unwrap();
    assert_eq!(check(&home, &["--allow", "a.example.com", "a.example.com"]).0, 2);
}

/// K13: the same ceilings bound a client that is asked for its hosts; one that cannot be parsed stops it.
#[test]
fn ceilings_bound_a_client_that_is_asked() {
    let home = Home::new();
    std::fs::create_dir_all(home.0.join(".config/exeat")).unwrap();
    home.file(".config/exeat/policy.toml", "[network]\nallow = 3\n");
    let (code, out, said) = home.run(&["preset", "npm", "--ask"]);
    assert_eq!((code, out.as_str()), (2, ""), "{said}");
    assert!(said.contains("policy.toml:2"), "{said}");
    assert_eq!(home.run(&["preset", "npm"]).0, 0, "nobody is asked");
}

/// K12, H23: a project's own file grants nothing unless it is named, or a ceiling bounds it.
#[test]
fn the_project_s_file_is_used_within_a_ceiling_only() {
    let home = Home::new();
    home.file(".exeat.toml", "[network]\nallow = [\"a.example.com\", \"a.example.org\"]\n");
    let (code, _, said) = check(&home, &["a.example.com"]);
    assert_eq!(code, 1);
    assert!(said.contains(".exeat.toml was found and not used"), "{said}");
    home.file("site.toml", "[network]\nallow = [\"*.example.com\"]\n");
    let (code, _, said) = check(&home, &["--ceiling", "site.toml", "a.example.com"]);
    assert_eq!(code, 0);
    assert!(said.contains(".exeat.toml was found and is used"), "{said}");
    assert_eq!(check(&home, &["--ceiling", "site.toml", "a.example.org"]).0, 1);
}

/// N21, N25: the published isolation policy, unchanged, from a file and from stdin.
#[test]
fn the_published_isolation_policy_loads_as_it_is() {
    let home = Home::new();
    let old = r#"{"ro_binds":[{"host":"/usr","sandbox":"/usr"}],"network":true,"env_allowlist":["PATH"]}"#;
    home.file("old.json", old);
    assert_eq!(check(&home, &["--policy", "old.json", "a.example.com"]).0, 0);
    let (code, ..) = home.with_stdin(&["check", "--policy", "-", "a.example.com:8443"], old.as_bytes());
    assert_eq!(code, 1);
    let closed = old.replace("true", "false");
    assert_eq!(home.with_stdin(&["check", "--policy", "-", "a.example.com"], closed.as_bytes()).0, 1);
    let ours = old.replace("true", r#"{"allow":["b.example.com"]}"#);
    assert_eq!(home.with_stdin(&["check", "--policy", "-", "b.example.com"], ours.as_bytes()).0, 0);
}

#[test]
fn show_prints_each_setting_with_its_source() {
    let home = Home::new();
    home.file(
        "p.toml",
        "[network]\nallow = [\"*.example.com:*\"]\ndeny = [\"x.example.com\"]\n[limits]\npids = 9\n[env]\nset = { T = \"s3cret\" }\n",
    );
    home.file("site.toml", "[network]\nallow = [\"a.example.com:1-1000\"]\n[limits]\npids = 5\n");
    let words = ["policy", "show", "--policy", "p.toml", "--ceiling", "site.toml"];
    let (code, out, _) = home.run(&words);
    assert_eq!(code, 0);
    assert!(out.contains("allow  a.example.com:1-1000  p.toml:2, within site.toml:2"), "{out}");
    assert!(out.contains("deny   x.example.com:*") && out.contains("p.toml:3"), "{out}");
    assert!(out.contains("pids       5"), "{out}");
    assert!(
        out.contains("hides")
            && out.contains("names in the working directory, there or not")
            && out.lines().count() < 20,
        "{out}"
    );

    let (code, out, _) = home.run(&[&words[..], &["--format", "json"]].concat());
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    assert_eq!(shown["allow"][0]["target"], "a.example.com:1-1000");
    assert_eq!(shown["allow"][0]["from"][1]["rule_src"], "site.toml:2");
    assert_eq!(shown["limits"]["pids"], "5");
    assert_eq!(shown["sources"].as_array().unwrap().len(), 2);
    assert!(!out.contains("s3cret"), "{out}");
}

/// Every answer about a policy contains the terms for all rules, and the upload budgets.
#[test]
fn terms_and_uploads_are_shown_checked_and_compared() {
    let home = Home::new();
    let text = "[network]\nmode = \"report\"\nnat64 = true\nech = \"refuse\"\nsocks5 = true\n\
                [[network.rule]]\nallow = [\"*.up.example.net\"]\nmax_upload = \"10MB\"\n[limits]\nconnections = 512\n";
    home.file("a.toml", text);
    home.file("b.toml", &text.replace("10MB", "1GB").replace("\"report\"", "\"enforce\""));
    home.file("c.toml", &format!("{text}[[network.rule]]\nallow = [\"a.up.example.net\"]\n"));
    home.file("site.toml", "[network]\nreport = false\nallow = [\"*.example.net\"]\n");

    let (code, out, said) = home.run(&["policy", "show", "a.toml"]);
    assert_eq!(code, 0, "{said}");
    for part in [
        "a.toml:7; at most 10MB sent in a run",
        "report mode",
        "(nat64)",
        "(ech)",
        "SOCKS5",
        "connections 512",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (_, out, _) = home.run(&["policy", "show", "a.toml", "--format", "json"]);
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&shown["mode"], &shown["nat64"], &shown["ech"], &shown["socks5"], &shown["allow"][0]["max_upload"]),
        (&"report".into(), &true.into(), &"refuse".into(), &true.into(), &10_000_000.into())
    );

    // A host that report mode would pass counts as allowed; a ceiling or a flag changes the question.
    let (code, out, said) = check(&home, &["--policy", "a.toml", "b.example"]);
    assert!(
        code == 0 && out.starts_with("would_deny  b.example:443") && said.contains("report mode"),
        "{out}{said}"
    );
    assert_eq!(check(&home, &["--policy", "a.toml", "--mode", "enforce", "b.example"]).0, 1);
    assert_eq!(check(&home, &["--policy", "a.toml", "b.example:22"]).0, 1);
    let (code, _, said) = check(&home, &["--policy", "a.toml", "--ceiling", "site.toml", "b.example"]);
    assert!(
        code == 2 && said.contains("a.toml: report mode is forbidden by the ceiling site.toml"),
        "{said}"
    );

    let (code, out, _) = home.run(&["policy", "diff", "a.toml", "b.toml"]);
    assert_eq!(
        (code, out.as_str()),
        (1, "opens    *.up.example.net:443 (more may be sent)\nremoves  network.mode report\n")
    );
    let (code, out, _) = home.run(&["policy", "lint", "c.toml"]);
    assert!(code == 1 && out.contains("a.up.example.net (c.toml:12)  [shadowed]"), "{out}");
    assert_eq!(home.run(&["policy", "lint", "a.toml"]).0, 0);
}

#[test]
fn finds_nothing_in_the_example_policies() {
    let home = Home::new();
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
    let files = std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.map(|path| path.display().to_string()).collect();
    assert!(files.len() >= 4, "{files:?}");
    for file in &files {
        let flag = if file.ends_with("/ceiling.toml") { "--ceiling" } else { "--policy" };
        let (code, out, said) = home.run(&["policy", "lint", flag, file]);
        assert_eq!((code, out.as_str(), said.as_str()), (0, "", "exeat: nothing found\n"), "{file}");
    }
}

#[test]
fn lint_and_diff_exit_like_questions() {
    let home = Home::new();
    home.file("a.toml", "[network]\nallow = [\"a.example.com\"]\n");
    home.file(
        "b.toml",
        "[network]\nallow = [\"*.example.com\", \"a.example.com\"]\n[limits]\ntimeout = \"1m\"\n",
    );
    assert_eq!(home.run(&["policy", "lint", "--policy", "a.toml"]).0, 0);
    let (code, out, _) = home.run(&["policy", "lint", "--policy", "b.toml"]);
    assert_eq!(code, 1);
    assert_eq!(
        out,
        "b.toml:2: `a.example.com`: another rule allows all of it already: *.example.com (b.toml:2)  [duplicate]\n"
    );
    assert_eq!(home.run(&["policy", "lint", "--policy", "absent.toml"]).0, 2);
    home.file("c.toml", "[fs]\nro = [\"~/.ssh/known_hosts\", \"~/data\"]\n");
    let (code, out, _) = home.run(&["policy", "lint", "c.toml"]);
    assert!(code == 1 && out.contains("`~/.ssh`") && out.ends_with("[credential]\n"), "{out}");
    assert_eq!(out.lines().count(), 1);
    assert_eq!(home.run(&["policy", "diff", "a.toml", "a.toml"]), (0, String::new(), String::new()));
    let (code, out, _) = home.run(&["policy", "diff", "a.toml", "b.toml"]);
    assert_eq!((code, out.as_str()), (1, "opens    *.example.com:443\nadds     limits.timeout 1m\n"));
    let (_, out, _) = home.run(&["policy", "diff", "b.toml", "a.toml"]);
    assert_eq!(out, "closes   *.example.com:443\nremoves  limits.timeout 1m\n");
}

/// An explicit default equals an omitted one. In a ceiling an empty list differs from a missing one.
#[test]
fn diff_compares_ceilings_and_policies_in_json() {
    let home = Home::new();
    home.file(
        "a.toml",
        "[fs]\nview = \"project\"\ncache = \"run\"\nhome = \"caller\"\n[network]\nnat64 = false\n",
    );
    assert_eq!(home.run(&["policy", "diff", "{}", "a.toml"]), (0, String::new(), String::new()));
    let (code, out, _) = home.run(&["policy", "diff", "a.toml", r#"{"network": {"allow": ["a.example"]}}"#]);
    assert_eq!((code, out.as_str()), (1, "opens    a.example:443\n"));
    home.file(
        "old.toml",
        "[network]\nallow = [\"*.example.com\"]\nreport = false\n[fs]\nview = \"project\"\n",
    );
    home.file(
        "new.toml",
        "[network]\nallow = [\"*.example.com\", \"b.example\"]\n[fs]\nview = \"project\"\nrw = []\n",
    );
    let (code, out, said) = home.run(&["policy", "diff", "--ceiling", "old.toml", "new.toml"]);
    assert_eq!(
        (code, out.as_str(), said.as_str()),
        (1, "opens    b.example:443\nadds     fs.rw nothing\nremoves  network.report false\n", "")
    );
    let (code, _, said) = home.run(&["policy", "diff", "old.toml", "new.toml"]);
    assert!(code == 2 && said.contains("ceiling"), "{said}");
}

/// A wide network does not open special addresses, so an additional rule for one is a change, in every kind of file.
#[test]
fn diff_and_declarations_see_special_addresses_behind_a_wide_network() {
    let home = Home::new();
    let isolation =
        |network: &str| format!(r#"{{"ro_binds": [], "env_allowlist": [], "network": {network}}}"#);
    let wide = r#"["*:80,443", "0.0.0.0/0:80,443", "[::/0]:80,443"]"#;
    let more = format!(r#"{}, "169.254.169.254:80"]"#, wide.trim_end_matches(']'));
    home.file("all.json", &isolation("true"));
    home.file("more.json", &isolation(&format!(r#"{{"allow_any": true, "allow": {more}}}"#)));
    home.file("a.toml", &format!("[network]\nallow_any = true\nallow = {wide}\n"));
    home.file("b.toml", &format!("[network]\nallow_any = true\nallow = {more}\n"));
    for (old, new) in [("all.json", "more.json"), ("all.json", "b.toml"), ("a.toml", "b.toml")] {
        let lines =
            |out: &str, word: &str| out.lines().any(|line| line == format!("{word}  169.254.169.254:80"));
        let (code, out, _) = home.run(&["policy", "diff", old, new]);
        assert!(code == 1 && lines(&out, "opens  "), "{old} {new}: {out}");
        let (code, out, _) = home.run(&["policy", "diff", new, old]);
        assert!(code == 1 && lines(&out, "closes "), "{new} {old}: {out}");
    }
    let declared = r#"{"effect": "NetworkHosts", "hosts": ["10.0.0.0/8:443"]}"#;
    let (code, _, said) =
        home.run(&["check", "--allow", "0.0.0.0/0:443", "--effects", declared, "10.0.0.1:443"]);
    assert!(code == 2 && said.contains("declares more than it is granted"), "{said}");
}

#[test]
fn schemas_are_json() {
    let home = Home::new();
    for of in [&["policy", "schema"][..], &["policy", "schema", "ceiling"], &["policy", "schema", "effects"]]
    {
        let (code, out, _) = home.run(of);
        let schema: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &schema["$schema"]), (0, &"https://json-schema.org/draft/2020-12/schema".into()));
    }
}

/// K34.
#[test]
fn presets_are_listed_shown_and_used() {
    let home = Home::new();
    let (code, out, _) = home.run(&["preset"]);
    assert_eq!(code, 0);
    assert!(out.contains("github-api") && out.contains("high"), "{out}");
    let (_, out, _) = home.run(&["preset", "github-api"]);
    assert!(out.contains("risk     high") && out.contains("allow    api.github.com:443"), "{out}");
    let (code, _, said) = home.run(&["preset", "githubapi"]);
    assert_eq!(code, 2);
    assert!(said.contains("probably meant: github-api"), "{said}");

    let (code, out, _) = check(&home, &["-p", "github-api", "api.github.com"]);
    assert_eq!(code, 0);
    assert!(out.contains("preset:github-api#api.github.com"), "{out}");
    let (code, out, _) = home.run(&["policy", "lint", "-p", "github-api"]);
    assert_eq!(code, 1);
    assert!(out.contains("preset github-api: high risk"), "{out}");
    home.file("p.toml", "[network]\npresets = [\"githubapi\"]\n");
    let (code, _, said) = check(&home, &["--policy", "p.toml", "api.github.com"]);
    assert_eq!(code, 2);
    assert!(said.contains("p.toml:2:") && said.contains("github-api"), "{said}");
}

/// K40, K41, N11, N17.
#[test]
fn env_lists_the_variables_of_a_stage_with_reasons() {
    let home = Home::new();
    let mut command = home.exeat(&["env", "--env", "TOKEN", "--env", "A=b", "--format", "json"]);
    command.env("TOKEN", "t").env("SSH_AUTH_SOCK", "/run/agent").env("LANG", "C");
    let (code, out, _) = home::result_of(command.output().unwrap());
    assert_eq!(code, 0);
    let all: Vec<Value> = serde_json::from_str(&out).unwrap();
    let find = |name: &str| all.iter().find(|variable| variable["name"] == name);
    for (name, value) in [("TOKEN", "t"), ("A", "b"), ("LANG", "C"), ("HTTPS_PROXY", "http://127.0.0.1:3128")]
    {
        assert_eq!(find(name).unwrap()["value"], value, "{out}");
        assert!(!find(name).unwrap()["why"].as_str().unwrap().is_empty());
    }
    assert!(find("SSH_AUTH_SOCK").is_none());
}

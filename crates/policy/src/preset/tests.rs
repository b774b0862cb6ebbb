use std::collections::BTreeSet;

use super::*;
use crate::day::Day;
use crate::reason::Reason;
use crate::rule::Pattern;
use crate::target::Target;

fn catalog() -> &'static Catalog {
    match &*CATALOG {
        Ok(catalog) => catalog,
        Err(fault) => panic!("{fault}"),
    }
}

fn names_of(groups: &[&Preset]) -> Vec<String> {
    groups.iter().map(|group| group.name.clone()).collect()
}

/// K34: every preset that ships is a set of rules that would load from a user's file.
#[test]
fn k34_checks_the_shipped_data() {
    let Catalog { updated, groups, profiles, denied } = catalog();
    assert!(groups.len() > 50 && profiles.len() > 10 && denied.len() == 3);
    assert!(updated.parse::<Day>().is_ok(), "{updated}");
    let mut seen = BTreeSet::from([DENY]);
    for name in names() {
        assert!(seen.insert(name), "{name} stands twice");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
    }
    // The command line needs these words for itself.
    assert!(find("auto").is_none());
    for group in groups {
        let name = &group.name;
        assert_eq!(group.allow.is_empty(), group.from_client.is_some(), "{name}: hosts, or a client to ask");
        assert!(!group.description.is_empty() && !group.methods.is_empty(), "{name}");
        for rule in &group.allow {
            assert_eq!(rule.spec.action, Action::Allow, "{}", rule.text);
            assert!(matches!(rule.spec.pattern, Pattern::Name(_)), "{}: no addresses", rule.text);
            assert_eq!(rule.spec.ports, group.ports, "{}", rule.text);
            let allowances = Allowances { any: false, shared_suffix: group.has(Flag::MultiTenant) };
            assert_eq!(RuleSpec::parse(&rule.text, Action::Allow, allowances), Ok(rule.spec.clone()));
        }
        let unique: BTreeSet<_> = group.allow.iter().map(|rule| &rule.text).collect();
        assert_eq!(unique.len(), group.allow.len(), "{name}: a host stands twice");
        for url in &group.url_rules {
            let host = url.split_once('/').expect("a URL rule has a path").0;
            assert!(group.allow.iter().all(|rule| rule.text != host), "{name}: {host} is granted whole");
        }
    }
}

/// H14: a wildcard that covers strangers loads only if the group says so, and such a group is of high risk.
#[test]
fn h14_flags_shared_suffixes() {
    let mut shared = 0;
    for group in groups() {
        let plain =
            |rule: &&PresetRule| RuleSpec::parse(&rule.text, Action::Allow, Allowances::default()).is_err();
        let wide = group.allow.iter().filter(plain).count();
        shared += wide;
        assert!(wide == 0 || group.has(Flag::MultiTenant), "{}", group.name);
        assert!(!group.has(Flag::MultiTenant) || group.risk == Risk::High, "{}", group.name);
    }
    assert!(shared > 3);
    let unflagged = DATA.replace(r#"flags = ["multi-tenant", "#, "flags = [");
    let fault = Catalog::read(&unflagged).unwrap_err();
    assert!(fault.contains("allow_shared_suffix"), "{fault}");
}

#[test]
fn names_broken_data() {
    for (text, with, says) in [
        ("schema = 1", "schema = 2", "schema 2"),
        ("risk = \"low\"", "risk = \"none\"", "none"),
        ("from_client = \"npm\"", "from_client = \"curl\"", "curl"),
        ("ports = [80, 443]", "ports = [0]", "port is 0"),
        ("\"jsr.io\"", "\"https://jsr.io\"", "https://jsr.io"),
        ("\"jsr.io\"", "\"*\"", "`*`"),
        ("description", "describtion", "describtion"),
    ] {
        let fault = Catalog::read(&DATA.replacen(text, with, 1)).unwrap_err();
        assert!(fault.contains(says), "{says}: {fault}");
    }
}

#[test]
fn expands_every_profile_without_a_cycle() {
    fn depth(name: &str, above: &mut Vec<String>) -> usize {
        assert!(!above.iter().any(|other| other == name), "a circle: {above:?} {name}");
        let Some(PresetOrProfile::Profile(profile)) = find(name) else { return 0 };
        above.push(name.to_owned());
        let deepest = profile.members.iter().map(|member| depth(member, above)).max().unwrap_or(0);
        above.pop();
        deepest + 1
    }
    for profile in profiles() {
        assert!(depth(&profile.name, &mut Vec::new()) <= 3);
        let groups = expand(&profile.name).unwrap();
        assert_eq!(groups.is_empty(), profile.name == "none", "{}", profile.name);
    }
    // The walk would end even with a cycle.
    let circle = DATA.replace("none = []", "none = [\"none\", \"go\"]");
    assert_eq!(names_of(&Catalog::read(&circle).unwrap().expand("none").unwrap()), ["go"]);
}

/// A profile would hide what a group of high risk opens behind a harmless name. Only one has such a group, and is
/// named here.
#[test]
fn keeps_high_risk_out_of_profiles() {
    let risky =
        |profile: &&Profile| expand(&profile.name).unwrap().iter().any(|group| group.risk == Risk::High);
    let names: Vec<_> = profiles().iter().filter(risky).map(|profile| profile.name.as_str()).collect();
    assert_eq!(names, ["ml"]);
}

#[test]
fn expands_a_name_to_each_group_once() {
    assert_eq!(names_of(&expand("go").unwrap()), ["go"]);
    assert_eq!(names_of(&expand("rust").unwrap()), ["crates", "rustup"]);
    let build = names_of(&expand("build").unwrap());
    assert!(build.contains(&"npm".into()) && build.contains(&"alpine".into()));
    let unique: BTreeSet<_> = build.iter().collect();
    assert_eq!(unique.len(), build.len());
}

#[test]
fn guesses_unknown_names() {
    for (typed, meant) in [
        ("pip", Some("pypi")),
        ("apt", Some("debian")),
        ("pypy", Some("pypi")),
        ("NPM", Some("npm")),
        ("claude", Some("agent-claude")),
        ("Codex", Some("agent-codex")),
        ("github-apo", Some("github-api")),
        ("github", Some("github-api")),
        ("gitlab-x", Some("gitlab")),
        ("zzzzzz", None),
        ("", None),
    ] {
        let error = expand(typed).unwrap_err();
        assert_eq!(error.suggestion(), meant, "{typed}");
    }
    assert_eq!(expand("a\u{1b}[2J").unwrap_err().to_string(), r"there is no preset `a\u{1b}[2J`");
}

/// The record names the group and its rule.
#[test]
fn names_the_rule_of_a_preset() {
    let mut grants = PolicyBuilder::new();
    for name in ["github-api", "ubuntu"] {
        expand(name).unwrap().iter().for_each(|group| group.add_to(&mut grants));
    }
    let policy = grants.build();
    let today = Day::from_unix(0);
    for (target, src) in [
        ("api.github.com:443", "preset:github-api#api.github.com"),
        ("archive.ubuntu.com:80", "preset:ubuntu#archive.ubuntu.com:80,443"),
    ] {
        let admitted = policy.admit(target.parse::<Target>().unwrap(), today).unwrap();
        assert_eq!(admitted.rule().unwrap().origin.to_string(), src);
    }
    // The ports are those of the group, and a URL rule never opens its host.
    for target in ["api.github.com:80", "github.com:443", "storage.googleapis.com:443"] {
        assert!(policy.admit(target.parse::<Target>().unwrap(), today).is_err(), "{target}");
    }
}

/// D-rows of metadata: no wildcard next to a preset reaches a metadata name.
#[test]
fn denies_metadata_names_on_every_port() {
    let mut grants = PolicyBuilder::new();
    grants.allow_any(true);
    grants.add("*:*", Action::Allow, Origin::Flag { flag: "--allow".into() }, Note::default()).unwrap();
    for rule in always_denied().unwrap() {
        rule.add_to(&mut grants);
    }
    let policy = grants.build();
    for target in ["metadata.google.internal:80", "METADATA.GOOG:443", "instance-data:80"] {
        let denial = policy.admit(target.parse::<Target>().unwrap(), Day::from_unix(0)).unwrap_err();
        assert_eq!(denial.reason(), Reason::DenyRule, "{target}");
        assert!(denial.to_string().contains("preset:deny#"), "{denial}");
    }
}

/// H23: files in a project are not the user's choice. They may select a group, but never one that lets data out.
#[test]
fn h23_selects_no_risky_group_by_files() {
    let mut owners = BTreeSet::new();
    for group in groups().iter().filter(|group| !group.detect.is_empty()) {
        assert!(group.risk != Risk::High && group.flags.is_empty(), "{}", group.name);
        for pattern in &group.detect {
            assert!(owners.insert(pattern), "{pattern} chooses two groups");
            let rest = pattern.strip_prefix('*').unwrap_or(pattern);
            assert!(rest.len() > 1 && !rest.contains(['*', '/', '?', '[']), "{pattern}");
        }
    }
}

#[test]
fn selects_groups_by_files() {
    for (files, chosen) in [
        (&["Cargo.toml", "Cargo.lock", "README.md"][..], &["crates"][..]),
        (&["uv.lock", "pyproject.toml"], &["pypi", "uv"]),
        (&["main.tf", "x.csproj", "yarn.lock"], &["nuget", "terraform", "yarn"]),
        (&[".tf", "cargo.toml", "x.tf.bak", "*", ""], &[]),
    ] {
        assert_eq!(names_of(&detect(files.iter().copied())), chosen, "{files:?}");
    }
}

/// docs/presets.md shows exactly the groups and profiles of the data.
#[test]
fn documents_every_preset() {
    let page = include_str!("../../../../docs/presets.md");
    let rows = |start: &str| -> BTreeSet<String> {
        let section = page.split_once(start).expect(start).1;
        let section = section.split("\n## ").next().unwrap();
        section.lines().filter(|line| line.starts_with("| `")).map(str::to_owned).collect()
    };
    let joined = |words: Vec<String>| if words.is_empty() { "-".to_owned() } else { words.join(", ") };
    let group = |group: &Preset| {
        let flags = joined(group.flags.iter().map(ToString::to_string).collect());
        let hosts = match group.from_client {
            Some(client) => format!("asks {client}"),
            None => group.allow.len().to_string(),
        };
        let files = joined(group.detect.iter().map(|name| format!("`{name}`")).collect());
        format!(
            "| `{}` | {} | {} | {flags} | {hosts} | {} | {files} |",
            group.name, group.description, group.risk, group.ports
        )
    };
    let profile = |profile: &Profile| {
        let members = joined(profile.members.iter().map(|name| format!("`{name}`")).collect());
        format!("| `{}` | {members} |", profile.name)
    };
    let compare = |start: &str, data: Vec<String>| {
        let have = rows(start);
        let lacks: Vec<_> = data.iter().filter(|row| !have.contains(*row)).collect();
        let surplus: Vec<_> = have.iter().filter(|row| !data.contains(*row)).collect();
        assert!(
            lacks.is_empty() && surplus.is_empty(),
            "{start} lacks:\n{}\nand should not have:\n{}",
            lacks.iter().map(|row| row.as_str()).collect::<Vec<_>>().join("\n"),
            surplus.iter().map(|row| row.as_str()).collect::<Vec<_>>().join("\n")
        );
    };
    compare("\n## Groups\n", groups().iter().map(group).collect());
    compare("\n## Profiles\n", profiles().iter().map(profile).collect());
}

#[test]
fn a_client_that_variables_redirect_names_them() {
    for name in ["npm", "pnpm", "yarn", "pypi", "uv"] {
        assert!(expand(name).unwrap().iter().any(|group| !group.redirected_by.is_empty()), "{name}");
    }
}

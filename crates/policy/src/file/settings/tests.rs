use super::*;
use crate::rule::Origin;

fn parse(settings: &[&str]) -> Result<PolicyFile, FileError> {
    let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    PolicyFile::parse_settings(&settings, &|| vec!["npm"])
}

#[test]
fn reads_settings_like_a_file() {
    let typed = parse(&[
        "network.ech=refuse",
        "network.nat64 = true",
        "network.host_port=[5432]",
        "network.host_port=[\"80:8080\"]",
        "network.presets=[\"npm\"]",
        "fs.view=minimal",
        "fs.allow_write=[\".git\"]",
        "fs.cache=none",
        "fs.home=private",
        "env.set.PORT=8080",
        "env.set.NAME=a = b # c",
        "env.set={ DEBUG = \"1\" }",
        "limits.file_size=1000",
        "limits.open_files=128",
        "limits.cpu_time=90s",
        "limits.memory='2GiB'",
        "effects.on_excess=narrow",
        "effects.allow=[\"fs-read\"]",
        "sandbox.bridge=relay",
        "sandbox.unix_sockets=off",
        "sandbox.debuggable=true",
        "sandbox.nested=pass",
        "audit.sync=true",
        "stage=2026",
    ])
    .unwrap();
    let filed = PolicyFile::parse(
        "stage = '2026'\n[network]\nech = 'refuse'\nnat64 = true\nhost_port = [5432, '80:8080']\npresets = ['npm']\n\
         [fs]\nview = 'minimal'\nallow_write = ['.git']\ncache = 'none'\nhome = 'private'\n\
         [env.set]\nPORT = '8080'\nNAME = 'a = b # c'\nDEBUG = '1'\n\
         [limits]\nfile_size = '1000'\nopen_files = 128\ncpu_time = '90s'\nmemory = '2GiB'\n\
         [effects]\non_excess = 'narrow'\nallow = ['fs-read']\n\
         [sandbox]\nbridge = 'relay'\nunix_sockets = 'off'\ndebuggable = true\nnested = 'pass'\n[audit]\nsync = true\n",
        SET,
        FileRole::Policy,
        &|| vec!["npm"],
    )
    .unwrap();
    let same = |mut file: PolicyFile| {
        file.fs.allow_write.iter_mut().flatten().for_each(|name| name.line = None);
        without_origins(file)
    };
    assert_eq!(same(typed), same(filed));
}

fn without_origins(file: PolicyFile) -> PolicyFile {
    PolicyFile {
        presets: file
            .presets
            .into_iter()
            .map(|(name, _)| (name, Origin::Flag { flag: String::new() }))
            .collect(),
        host_ports: file
            .host_ports
            .into_iter()
            .map(|(port, _)| (port, Origin::Flag { flag: String::new() }))
            .collect(),
        ..file
    }
}

#[test]
fn names_the_setting_of_a_rule() {
    let file =
        parse(&["network.allow_any=true", "network.allow=[\"*\"]", "network.deny=[\"a.example\"]"]).unwrap();
    let rules: Vec<_> = file.rules.iter().map(|rule| (rule.text.as_str(), rule.origin.to_string())).collect();
    assert_eq!(rules, [("*", "--set".to_owned()), ("a.example", "--set".to_owned())]);
}

#[test]
fn locates_faults_of_settings() {
    for (settings, expected) in [
        (&["network.ehc=refuse"][..], "--set:1:9: there is no key `ehc` in `[network]`"),
        (
            &["network.nat64=true", "network.ech=refsue"],
            "--set:2:13: `ech` is `record` or `refuse`, not `refsue`",
        ),
        (&["limits.pids=0"], "--set:1:13: `pids` is a whole number from 1 to 4294967295"),
        (&["limits.pids"], "--set:1:1: a setting is KEY=VALUE, such as network.ech=refuse"),
        (&["=x"], "--set:1:1: a setting is KEY=VALUE"),
        (&["[network]\nech=refuse"], "--set:1:1: a setting is one line"),
        (&["#x=1"], "--set:1:1: a setting is KEY=VALUE"),
        (&["limits.pids=1", "limits.pids=2"], "--set:2:8: `limits.pids` is set twice"),
        (&["network.allow=a.example"], "--set:1:15: `allow` is a list of strings, not a string"),
        (&["network.allow=[\"*x.com\"]"], "--set:1:17: `*x.com` is not a rule"),
        (&["network.allow=[\"a.example\""], "--set:1:"),
        (&["network.report=false"], "--set:1:9: `report` belongs in a ceiling; this is a policy"),
        (&["network.upstream.proxy=http://u:p@h:1"], "--set:1:24: "),
    ] {
        let said = parse(settings).expect_err(settings[0]).to_string();
        assert!(said.starts_with(expected), "{settings:?}: {said}");
    }
    let said = parse(&["network.ehc=refuse"]).unwrap_err().to_string();
    assert!(
        said.ends_with("  1 | network.ehc=refuse\n    |         ^^^\n    = probably meant: ech"),
        "{said}"
    );
    let said = parse(&["network.allow=a.example"]).unwrap_err().to_string();
    assert!(said.ends_with("= probably meant: [\"a.example\"]"), "{said}");
    assert!(!parse(&["network.upstream.proxy=http://u:p@h:1"]).unwrap_err().to_string().contains("u:p"));
}

#[test]
fn prefers_settings_over_files() {
    let set = parse(&["network.ech=record", "limits.pids=9", "sandbox.bridge=handoff"]).unwrap();
    let text = "[network]\nech = 'refuse'\nnat64 = true\n[limits]\npids = 3\nopen_files = 20\n[sandbox]\nbridge = 'relay'\n";
    let mut file = PolicyFile::parse(text, "p", FileRole::Policy, &Vec::new).unwrap();
    file.yield_to(&set);
    assert_eq!((file.ech, file.nat64, file.sandbox.bridge), (None, Some(true), None));
    assert_eq!((file.limits.min(set.limits).pids, file.limits.open_files), (Some(9), Some(20)));
}

#[test]
fn accepts_credentials_without_a_proxy_in_settings() {
    let upstream = parse(&["network.upstream.auth=env:TOKEN"]).unwrap().upstream.unwrap();
    assert!(upstream.proxy.is_none() && upstream.auth.is_some());
}

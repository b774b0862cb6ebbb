//! Downloads a real package from a real registry: it arrives if its host is granted, and not otherwise.
//!
//! The client's own configuration names the registry, so that a company mirror works as well. A machine that reaches
//! none cannot run this test, which is a failure under `E2E_STRICT=1`.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test starts the program under test, says what it could not try, and fails where a helper does"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A small package without dependencies.
const PACKAGE: &str = "is-number@7.0.0";

struct Scene {
    root: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("download-{}", std::process::id()));
        std::fs::create_dir_all(root.join("project")).unwrap();
        Self { root }
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.root.join("project"));
        command.env("XDG_STATE_HOME", self.root.join("state")).env("XDG_CACHE_HOME", self.root.join("cache"));
        // Does not retry after a refusal, because the answer would be the same.
        command.env("npm_config_fetch_retries", "0").output().unwrap()
    }

    fn npm_pack(&self, flags: &[&str]) -> Output {
        let stage = ["--", "npm", "pack", "--fetch-retries=0", PACKAGE];
        self.run(env!("CARGO_BIN_EXE_exeat"), &[&["run"], flags, &stage].concat())
    }

    fn packed(&self) -> bool {
        self.root.join("project/is-number-7.0.0.tgz").exists()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn registry(place: &Scene) -> Option<String> {
    let asked = place.run("npm", &["config", "get", "registry"]);
    let url = String::from_utf8(asked.stdout).ok()?.trim().to_owned();
    let host = url.strip_prefix("https://")?.split(['/', ':']).next()?.to_owned();
    let reached = place.run("curl", &["-sS", "-m", "10", "-o", "/dev/null", &url]);
    reached.status.success().then_some(host)
}

#[test]
fn npm_pack_works_with_its_host_granted_and_not_without() {
    let place = Scene::new();
    let Some(host) = registry(&place) else {
        println!("not tried: npm's registry cannot be reached from this machine");
        return assert!(std::env::var_os("E2E_STRICT").is_none(), "npm's registry cannot be reached");
    };
    let refused = place.npm_pack(&[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && !place.packed(), "{said}");
    assert!(said.contains(&format!("--allow {host}")), "{said}");

    let mut flags = vec!["--allow", &host];
    let mut granted = place.npm_pack(&flags);
    let said = String::from_utf8_lossy(&granted.stderr).into_owned();
    // A resolver may answer with special-use addresses; then the summary names the additional rule.
    let rule =
        said.lines().find(|line| line.contains("resolves to")).and_then(|line| line.split("--allow ").nth(1));
    if let Some(rule) = rule {
        flags.extend(["--allow", rule.trim()]);
        granted = place.npm_pack(&flags);
    }
    assert!(granted.status.success() && place.packed(), "{}", String::from_utf8_lossy(&granted.stderr));
}

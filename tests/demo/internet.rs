//! The second part: a real host, if there is a network. Never fails without one.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::shell::Shell;

/// The default URL: a host reserved for examples (RFC 2606).
const EXAMPLE: &str = "https://example.com/";

/// The longest time that a host may take to answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// Reaches a real host with a rule, and does not reach it without. Returns false only for a fault of exeat.
pub(crate) fn show(exeat: &Path) -> bool {
    let urls = [Some(EXAMPLE.to_owned()), registry()];
    let Some(url) = urls.into_iter().flatten().find(|url| answers(url)) else {
        println!("A real host: left out, this machine reaches none of those that were tried.");
        return true;
    };
    let host = url.trim_start_matches("https://").split('/').next().unwrap_or_default();
    let project = env::temp_dir().join(format!("exeat-demo-{}", std::process::id()));
    fs::create_dir_all(&project).expect("a directory for the demonstration");
    let path_variable = env::var("PATH").unwrap_or_default();
    let beside = exeat.parent().unwrap_or(exeat).display().to_string();
    let shell = Shell::new(&project, vec![]).env("PATH", &format!("{beside}:{path_variable}"));

    println!("A real host, with a rule and without.");
    let curl = format!("curl -sS -m 20 -o page.html -w '%{{http_code}} %{{size_download}} bytes\\n' {url}");
    let (mut code, said) = shell.run_and_read(&format!("exeat run --allow {host} -- {curl}"));
    if code != 0
        && let Some(flag) = flag(&said)
    {
        println!(
            "\n   This network's resolver answers with an address that is not public, and exeat says which rule that takes."
        );
        code = shell.run_and_read(&format!("exeat run --allow {host} {flag} -- {curl}")).0;
    }
    let without = shell.run_and_read(&format!("exeat run -- {curl}")).0;
    let _ = fs::remove_dir_all(&project);
    let holds = code == 0 && without != 0;
    println!(
        "   {}",
        if holds { "=> reached with the rule, refused without" } else { "=> NOT AS IT SHOULD BE" }
    );
    holds
}

/// Returns npm's configured registry, for networks that allow nothing else.
fn registry() -> Option<String> {
    let output =
        Command::new("npm").args(["config", "get", "registry"]).stdin(Stdio::null()).output().ok()?;
    let url = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    // The rule consists of the host alone, so a port or userinfo is not supported.
    let authority = url.strip_prefix("https://")?.split('/').next()?;
    // The URL becomes part of a shell command.
    let plain = !url.contains(|c: char| !c.is_ascii_alphanumeric() && !"/.:-_".contains(c));
    (plain && !authority.is_empty() && !authority.contains([':', '@'])).then_some(url)
}

/// Returns whether this machine reaches the host without exeat.
fn answers(url: &str) -> bool {
    let child = Command::new("curl")
        .args(["-sS", "-m", "4", "-o", "/dev/null", url])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let end = Instant::now() + PATIENCE + Duration::from_secs(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                // A resolver that never answers can block curl beyond its own time limit.
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

/// Returns the flag at the end of a `denied` line of the summary, if it names an address.
fn flag(said: &str) -> Option<&str> {
    let line = said.lines().find(|line| line.trim_start().starts_with("denied"))?;
    let (_, flags) = line.split_once("  --allow ")?;
    flags
        .starts_with(|c: char| c.is_ascii_digit() || c == '[')
        .then(|| &line[line.len() - flags.len() - "--allow ".len()..])
}

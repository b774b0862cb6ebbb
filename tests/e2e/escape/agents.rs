//! B31: agents and buses that variables name: ssh, gpg, D-Bus, Wayland, X11, Docker. A program connects to what the
//! variable names.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b31_agents_that_variables_name", attack);
}

fn attack(cx: &Cx) {
    let runtime = cx.home().join("runtime");
    fs::create_dir(&runtime).expect("a directory");
    cx.bench().give(&runtime, cx.is_root());
    let mut listeners = Vec::new();
    let mut socket = |name: &str| {
        let path = runtime.join(name);
        listeners.push(UnixListener::bind(&path).expect("a socket"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("chmod");
        path.display().to_string()
    };
    let variables = [
        ("SSH_AUTH_SOCK", socket("agent"), ""),
        ("GPG_AGENT_INFO", socket("gpg"), ":0:1"),
        ("DBUS_SESSION_BUS_ADDRESS", socket("bus"), ""),
        ("DOCKER_HOST", socket("docker"), ""),
        ("WAYLAND_DISPLAY", socket("wayland-0"), ""),
        ("DISPLAY", socket("X0"), ""),
    ];
    let probe = cx.probe();
    let attempts: String = variables.iter().map(|(_, path, _)| format!("{probe} unix {path}\n")).collect();
    let names: Vec<&str> = variables.iter().map(|(name, ..)| *name).chain(["XDG_RUNTIME_DIR"]).collect();
    let script = format!(
        "{attempts}for v in {}; do eval \"[ -z \\\"\\${{$v+x}}\\\" ]\" || echo has $v; done",
        names.join(" ")
    );
    cx.outside(["sh", "-c", &attempts]).run().prints(&"ok\n".repeat(variables.len()));
    let mut run = cx.sh(&[], &script).env("XDG_RUNTIME_DIR", runtime.to_str().expect("ASCII"));
    for (name, path, rest) in &variables {
        run = run.env(name, &format!("{path}{rest}"));
    }
    let done = run.run();
    assert_eq!(done.exits(0).stdout(), "ENOENT\n".repeat(variables.len()), "{done:?}");
}

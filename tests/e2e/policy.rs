//! Declarations, grants and their bounds, as a run enforces them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use e2e::audit::{AuditLog, sha256_hex};
use e2e::case::{Cases, Cx};
use e2e::dns::Answer;
use e2e::run::{Done, Run};

pub(crate) fn cases(list: &mut Cases) {
    list.once("policy::the_schemas_take_and_refuse_what_exeat_does", schemas);
    list.matrix("policy::n12_effects_are_what_is_granted", effects_are_granted);
    list.matrix("policy::k13_effects_and_grants_are_what_is_in_both", both);
    list.users("policy::k13_more_than_is_granted_does_not_start", excess);
    list.users("policy::n30_other_kinds_of_effects_do_not_start", kinds);
    list.matrix("policy::k13_a_ceiling_holds", ceiling);
    list.users("policy::k13_a_ceiling_holds_for_files_variables_and_limits", ceiling_besides_hosts);
    list.bridges("policy::h23_a_policy_that_the_stage_rewrites", rewritten);
    list.bridges("policy::h23_the_stage_has_no_descriptor_of_a_policy", on_a_descriptor);
    list.users("policy::n12_variables_and_labels_of_a_job", job);
    list.users("policy::h23_the_project_s_file_needs_a_ceiling", project_file);
    list.users("policy::h23_a_stage_writes_no_ceiling_of_the_user", ceiling_of_a_stage);
    list.root("policy::h23_another_s_policy_is_not_root_s", of_another);
    list.users("policy::k3_n16_what_has_no_place_does_not_start", no_place);
    list.users("policy::k13_the_user_s_ceiling_is_not_the_stage_s", own_ceiling);
    list.users("policy::n28_everything_can_be_required_to_hold", require_full);
    list.matrix("policy::n9_n25_an_isolation_policy_on_stdin", isolation);
}

/// Writes a file of the trial's user, in directories of that user.
fn write(cx: &Cx, path: &Path, text: &str) -> String {
    own_dir(cx, path.parent().expect("a directory"));
    fs::write(path, text).expect("file");
    cx.bench().give(path, cx.is_root());
    path.display().to_string()
}

fn own_dir(cx: &Cx, path: &Path) {
    if !path.exists() {
        own_dir(cx, path.parent().expect("a directory"));
        fs::create_dir(path).expect("directory");
        cx.bench().give(path, cx.is_root());
    }
}

/// Prepares `exeat run FLAGS -- sh -c SCRIPT`.
fn sh<'a>(cx: &'a Cx, flags: &[&str], script: &str) -> Run<'a> {
    cx.exeat([&["run"], flags, &["--", "sh", "-c", script]].concat())
}

/// Returns a script that prints the status of CONNECT for each host.
fn status_script(hosts: &[&str]) -> String {
    let each = hosts.iter().map(|host| {
        format!(
            "curl -s -o /dev/null -w '%{{http_connect}} ' --max-time 20 --cacert ca.pem https://{host}/; "
        )
    });
    each.collect()
}

/// Checks that nothing was started: exit 2, and no file of the stage.
#[track_caller]
fn did_not_start(cx: &Cx, done: &Done, why: &str) {
    done.exits(2).says(why);
    assert!(!cx.dir().join("started").exists(), "the stage ran");
}

fn effects_are_granted(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let (input, output) = (cx.home().join("input"), cx.home().join("output"));
    write(cx, &input.join("f"), "in\n");
    own_dir(cx, &output);
    let effects = json!([
        {"effect": "NetworkHosts", "hosts": [good]},
        {"effect": "FsRead", "path": input},
        {"effect": "FsWrite", "path": output},
        {"effect": "Llm", "model": "any"},
    ]);
    let script = format!(
        "cat {input}/f; echo out > {output}/f; echo no 2>&- > {input}/f || echo read-only; {}",
        status_script(&[&good, &evil]),
        input = input.display(),
        output = output.display(),
    );
    let done = sh(cx, &["--effects", &effects.to_string()], &script).run();
    done.shows("in\nread-only\n200 403 ").says("the stage declares `Llm`, which grants no host");
    assert_eq!(fs::read_to_string(output.join("f")).expect("written"), "out\n");
    let log = done.record();
    assert_eq!(log.decision(&good)["rule_src"], "effect:NetworkHosts");
    assert_eq!(log.decision(&evil)["verdict"], "deny");
    // What is declared to be read takes no right to write: not of the same path, and not of the working directory.
    let read = |path: &Path| json!({"effect": "FsRead", "path": path});
    let effects = json!([read(cx.dir()), read(&output), {"effect": "FsWrite", "path": output}]).to_string();
    let script = format!("echo here > here; echo again > {}/f", output.display());
    sh(cx, &["--effects", &effects], &script).run().exits(0);
    assert_eq!(fs::read_to_string(output.join("f")).expect("written"), "again\n");
    sh(cx, &["--effects", &read(cx.dir()).to_string(), "--ro", "."], "echo x > here").run().exits(2);
    let set = format!("fs.ro=[\"{}\"]", cx.dir().display());
    sh(cx, &["--effects", &read(cx.dir()).to_string(), "--set", &set], "echo x > here").run().exits(2);
    assert_eq!(fs::read_to_string(cx.dir().join("here")).expect("written"), "here\n");
    // Undeclared paths are not visible.
    let nothing =
        sh(cx, &["--effects", "[]"], &format!("ls {}; {}", input.display(), status_script(&[&good]))).run();
    nothing.shows("403 ").says("No such file");
}

fn both(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let effects = json!({"effect": "NetworkHosts", "hosts": [good, evil]}).to_string();
    let script = status_script(&[&good, &evil]);
    let granted =
        sh(cx, &["--effects", &effects, "--allow", &good, "--set", "effects.on_excess=narrow"], &script)
            .run();
    granted.shows("200 403 ").says(&format!("left out: effect:NetworkHosts: `{evil}`"));
    // A host that is granted but not declared is not needed, so it is refused.
    let effects = json!({"effect": "NetworkHosts", "hosts": [good]}).to_string();
    sh(cx, &["--effects", &effects, "--allow", &good, "--allow", &evil], &script).run().shows("200 403 ");
    // A deny of either side wins.
    sh(
        cx,
        &["--effects", &effects, "--deny", &good, "--set", "effects.on_excess=narrow", "--allow", &good],
        &script,
    )
    .run()
    .shows("403 403 ");
}

fn excess(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let effects = json!({"effect": "NetworkHosts", "hosts": [evil]}).to_string();
    let done = sh(cx, &["--effects", &effects, "--allow", &good], "touch started").run();
    did_not_start(
        cx,
        &done,
        &format!("the stage declares more than it is granted: effect:NetworkHosts: `{evil}`"),
    );
    // All at once, with one hint.
    let other = cx.name("other", Answer::Addrs(vec![cx.spare_addrs(0).0]));
    let effects = json!({"effect": "NetworkHosts", "hosts": [evil, other, good]}).to_string();
    let done = sh(cx, &["--effects", &effects, "--allow", "x.test", "--deny", &good], "touch started").run();
    let said = |host: &str, why: &str| format!("\n  effect:NetworkHosts: `{host}`: {why}");
    did_not_start(cx, &done, &said(&evil, "no rule allows it\n"));
    done.says(&said(&other, "no rule allows it\n")).says(&said(&good, "denied by "));
    let (first, second) = (evil.clone().min(other.clone()), evil.clone().max(other));
    done.says(&format!("hint: --allow {first}:443 --allow {second}:443 grants what a flag can; "));
    let effects = json!({"effect": "FsRead", "path": cx.home().join("elsewhere")}).to_string();
    let done = sh(cx, &["--effects", &effects, "--allow", &good], "touch started").run();
    did_not_start(cx, &done, "elsewhere");
    // Without grants the stage gets what it declares, and a ceiling does not cut it down silently.
    let place = cx.home().join("declared");
    own_dir(cx, &place);
    let effects = json!({"effect": "FsRead", "path": place}).to_string();
    let dir = cx.dir().display().to_string();
    let site = write(
        cx,
        &cx.home().join("files.toml"),
        &format!("schema = 1\n[fs]\nro = [\"{dir}\"]\nrw = [\"{dir}\"]\n"),
    );
    let done = sh(cx, &["--effects", &effects, "--ceiling", &site], "touch started").run();
    did_not_start(cx, &done, ": the ceiling ");
    let narrow = ["--effects", &effects, "--ceiling", &site, "--set", "effects.on_excess=narrow"];
    sh(cx, &narrow, "true").run().exits(0).says(": the ceiling ");
    sh(cx, &["--effects", &effects], "true").run().exits(0);
    // Kinds, hosts and files at once.
    let kinds = r#"effects.allow=["network-hosts", "fs-read"]"#;
    let effects = json!([{"effect": "Pure"}, {"effect": "NetworkHosts", "hosts": [evil]}, {"effect": "FsRead", "path": place}]);
    let words = ["--effects", &effects.to_string(), "--set", kinds, "--allow", &good];
    let done = sh(cx, &words, "touch started").run();
    did_not_start(cx, &done, "granted:\n  `pure`: `effects.allow` of ");
    let place = place.display();
    done.says(&said(&evil, "no rule allows it\n"))
        .says(&format!("\n  effect:FsRead: `{place}`: nothing shows it\n"));
    done.says(&format!("hint: --allow {evil}:443 --ro {place} grants what a flag can\n"));
    // A fault in the declaration is an error.
    let done = sh(cx, &["--effects", r#"[{"effect": "Netwrok"}]"#], "touch started").run();
    did_not_start(cx, &done, "probably meant: \"Network\"");
}

fn kinds(cx: &Cx) {
    let effects = json!([{"effect": "Pure"}, {"effect": "NetworkHosts", "hosts": [cx.good()]}]).to_string();
    let run = |allowed| sh(cx, &["--effects", &effects, "--set", allowed], "touch started").run();
    did_not_start(
        cx,
        &run(r#"effects.allow=["pure", "fs-read"]"#),
        "declares more than it is granted: `network-hosts`: ",
    );
    let both = run(r#"effects.allow=["fs-read"]"#);
    did_not_start(cx, &both, "\n  `pure`: ");
    both.says("\n  `network-hosts`: ");
    run(r#"effects.allow=["pure", "network"]"#).exits(0);
    assert!(cx.dir().join("started").exists());
}

fn ceiling(cx: &Cx) {
    let good = cx.good();
    let free = cx.name("free", Answer::Addrs(vec![cx.spare_addrs(0).0]));
    let site = write(cx, &cx.home().join("site.toml"), &format!("[network]\nallow = [\"{good}\"]\n"));
    let script = status_script(&[&good, &free]);
    let done = sh(cx, &["--allow", &good, "--allow", &free, "--ceiling", &site], &script).run();
    done.shows("200 403 ").says("site.toml");
    let log = done.record();
    assert_eq!(
        (&log.decision(&good)["rule_src"], &log.decision(&free)["verdict"]),
        (&json!("--allow"), &json!("deny"))
    );
    assert_eq!(log.decision(&free)["refused_by"], format!("ceiling {site}"));
    // A ceiling grants nothing, and its deny rules hold.
    sh(cx, &["--ceiling", &site], &script).run().shows("403 403 ");
    let strict = write(
        cx,
        &cx.home().join("strict.toml"),
        &format!("[network]\nallow = [\"{good}\"]\ndeny = [\"{good}:443\"]\n"),
    );
    let result = cx.home().join("strict.json").display().to_string();
    let done = sh(cx, &["--allow", &good, "--ceiling", &strict, "--result", &result], &script).run();
    let log = done.shows("403 403 ").record();
    let denied = log.decision(&good);
    assert_eq!(
        (&denied["reason"], &denied["refused_by"]),
        (&json!("deny_rule"), &json!(format!("ceiling {strict}"))),
        "{denied}"
    );
    let text = std::fs::read_to_string(&result).expect("the result");
    let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result["denied"][0]["refused_by"], format!("ceiling {strict}"), "{result}");
    // Without the ceilings, both hosts are open.
    sh(cx, &["--allow", &good, "--allow", &free], &script).run().shows("200 200 ");
    // The user's ceiling holds without being named, and one that cannot be read prevents the start.
    let own = cx.home().join(".config/exeat/policy.toml");
    write(cx, &own, &format!("[network]\nallow = [\"{good}\"]\n"));
    sh(cx, &["--allow", &good, "--allow", &free], &script).run().shows("200 403 ").says("policy.toml");
    write(cx, &own, "[network]\nallwo = []\n");
    let done = sh(cx, &["--allow", &good], "touch started").run();
    did_not_start(cx, &done, "probably meant: allow");
}

fn ceiling_besides_hosts(cx: &Cx) {
    let data = cx.home().join("data");
    write(cx, &data.join("f"), "data\n");
    let text = format!(
        "[fs]\nro = [\"{0}\", \"{1}\"]\nrw = [\"{1}\"]\nmask = [\"{0}/secret\"]\n[env]\npass = [\"KEPT\"]\n[limits]\ntimeout = \"1s\"\n",
        data.display(),
        cx.dir().display()
    );
    write(cx, &data.join("secret/f"), "secret\n");
    let site = write(cx, &cx.home().join("site.toml"), &text);
    let rw = data.display().to_string();
    let script = format!(
        "cat {rw}/f; cat {rw}/secret/f 2>&-; echo x 2>&- > {rw}/g || echo read-only; echo $KEPT $LEFT"
    );
    let flags = ["--rw", &rw, "--env", "KEPT=1", "--env", "LEFT=2"];
    sh(cx, &flags, &script).run().exits(0).prints("data\nsecret\n1 2\n");
    fs::remove_file(data.join("g")).expect("written without a ceiling");
    let bounded: Vec<&str> = flags.iter().copied().chain(["--ceiling", &site]).collect();
    sh(cx, &bounded, &script).run().exits(0).prints("data\nread-only\n1\n");
    // A larger limit does not lift a ceiling's.
    let slow: Vec<&str> = bounded.iter().copied().chain(["--timeout", "60s"]).collect();
    sh(cx, &slow, "sleep 30").run().exits(124);
}

/// Binds that bubblewrap refuses, that would remove the sandbox, or that contain the host's processes: exit 2, with the
/// bind's name.
fn no_place(cx: &Cx) {
    let data = cx.home().join("data");
    let file = write(cx, &data.join("f"), "data\n");
    let data = data.display();
    for dest in
        ["/", "/run", "/run/exeat", "/run/exeat/stage2", "/etc/passwd", "/proc/x", "/dev/x", "/usr/absent"]
    {
        let done = sh(cx, &["--ro", &format!("{data}:{dest}")], "touch started").run();
        did_not_start(cx, &done, &format!("`{data}` cannot be shown at `{dest}`"));
    }
    let done = sh(cx, &["--effects", r#"{"effect": "FsRead", "path": "/"}"#], "touch started").run();
    did_not_start(cx, &done, "cannot be shown at `/`");
    let done = sh(cx, &["--ro", "/proc:/x"], "touch started").run();
    did_not_start(cx, &done, "the read-only path `/proc` belongs to the process file system");
    let policy =
        json!({"ro_binds": system(Value::Null), "work_host": "/proc", "network": false, "env_allowlist": []})
            .to_string();
    let done = sh(cx, &["--policy", "-"], "touch started").stdin(policy).run();
    did_not_start(cx, &done, "the work directory `/proc`");
    // Neighboring paths work, and a tree that contains the host's processes does not show them.
    let beside: Vec<String> =
        ["/run/d", "/dev/shm/d", "/sys/d", "/mnt/d"].map(|at| format!("{data}:{at}")).into();
    let flags: Vec<&str> = beside.iter().flat_map(|bind| ["--ro", bind.as_str()]).collect();
    let script = "cat /run/d/f /dev/shm/d/f /sys/d/f /mnt/d/f";
    sh(cx, &flags, script).run().exits(0).prints(&"data\n".repeat(4));
    let script =
        "cat /f; ls /host/usr >&- 2>&- || ls -d /host/usr; cat /host/proc/1/stat 2>&- || echo hidden";
    let done = sh(
        cx,
        &["--ro", "/:/host", "--mask", "/tmp", "--mask", "/dev/shm", "--ro", &format!("{file}:/f")],
        script,
    )
    .run();
    done.exits(0).prints("data\n/host/usr\nhidden\n");
}

/// A stage that starts in the configuration directory cannot write the next run's ceiling.
fn own_ceiling(cx: &Cx) {
    let site = cx.dir().join("exeat/policy.toml");
    let config = cx.dir().display().to_string();
    let script = "mkdir exeat; echo '[network]' > exeat/policy.toml; mv exeat other; echo end";
    // If the configuration is elsewhere, the directory is ordinary.
    sh(cx, &[], script)
        .env("XDG_CONFIG_HOME", &cx.home().join("absent").display().to_string())
        .run()
        .exits(0);
    fs::remove_dir_all(cx.dir().join("other")).expect("made");
    let run = || sh(cx, &[], script).env("XDG_CONFIG_HOME", &config).run();
    run().exits(0).prints("end\n").says("exeat's own files are in it");
    assert!(!site.exists() && !cx.dir().join("other").exists());
    write(cx, &site, "[network]\nallow = []\n");
    let named = site.display().to_string();
    run().exits(2).prints("").says(&format!("--ceiling {named}"));
    sh(cx, &["--ceiling", &named], script).env("XDG_CONFIG_HOME", &config).run().exits(0).prints("end\n");
    assert_eq!(fs::read_to_string(&site).expect("still there"), "[network]\nallow = []\n");
}

/// A file is read once, before the start, and the record has its digest.
fn rewritten(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let text = format!("[network]\nallow = [\"{good}\"]\n");
    write(cx, &cx.dir().join("policy.toml"), &text);
    let script = format!("sed -i s/{good}/{evil}/ policy.toml; {}", status_script(&[&good, &evil]));
    let done = sh(cx, &["--policy", "policy.toml"], &script).run();
    done.shows("200 403 ");
    let after = fs::read_to_string(cx.dir().join("policy.toml")).expect("policy");
    assert_eq!(after, text, "L09: it decides about the next run, too");
    let log = done.record();
    assert_eq!(sources(&log), [json!(["policy", cx.dir().join("policy.toml"), sha256_hex(text.as_bytes())])]);
}

/// The policy's file on a descriptor is as read-only for the stage as a named one.
fn on_a_descriptor(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let text = format!("[network]\nallow = [\"{good}\"]\n");
    write(cx, &cx.dir().join("policy.toml"), &text);
    let script = format!(
        "ls /proc/self/fd | tr '\\n' ' '; (echo x >>policy.toml) 2>/dev/null || echo -n 'kept '; {}",
        status_script(&[&good, &evil])
    );
    let done = sh(cx, &["--policy", "fd:9"], &script).redirect("9<policy.toml").run();
    done.shows("0 1 2 3 kept 200 403 ");
    assert_eq!(sources(&done.record()), [json!(["policy", "fd:9", sha256_hex(text.as_bytes())])]);
}

/// Only the variables that match a pattern are passed, and the record names the job.
fn job(cx: &Cx) {
    let script = "env | grep -E 'SLURM|SSH_AUTH' | sort";
    let run = |words: &[&str]| {
        let run = sh(cx, words, script).env("SLURM_JOB_ID", "12").env("SLURM_ARRAY_TASK_ID", "3");
        run.env("SLURMD", "x").env("SSH_AUTH_SOCK", "/nowhere").run()
    };
    let done = run(&["--env", "SLURM_*", "--env", "SSH_*", "--label", "slurm_array_task=mine"]);
    done.exits(0).prints("SLURM_ARRAY_TASK_ID=3\nSLURM_JOB_ID=12\n");
    done.says("`SSH_AUTH_SOCK` is not passed by `SSH_*`: host socket");
    let start = done.record().events("run_start")[0].clone();
    assert_eq!(start["labels"], json!({"slurm_job": "12", "slurm_array_task": "mine"}));
    run(&["--set", "env.pass=[\"SLURM_J*\"]"]).exits(0).prints("SLURM_JOB_ID=12\n");
}

fn sources(log: &AuditLog) -> Vec<Value> {
    log.events("policy").iter().map(|line| json!([line["role"], line["file"], line["file_sha256"]])).collect()
}

fn project_file(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    write(cx, &cx.dir().join(".exeat.toml"), &format!("[network]\nallow = [\"{good}\", \"{evil}\"]\n"));
    let script = status_script(&[&good, &evil]);
    sh(cx, &[], &script).run().shows("403 403 ").says(".exeat.toml was found and not used");
    let site = write(cx, &cx.home().join("site.toml"), &format!("[network]\nallow = [\"{good}\"]\n"));
    let done = sh(cx, &["--ceiling", &site], &script).run();
    done.shows("200 403 ").says(".exeat.toml was found and is used");
    assert_eq!(sources(&done.record()).len(), 2);
    // The next run reads what this one left.
    sh(cx, &["--ceiling", &site], "echo > .exeat.toml || rm -f .exeat.toml; mv .exeat.toml x; true").run();
    let left = fs::read_to_string(cx.dir().join(".exeat.toml")).expect("it is still there");
    assert!(left.contains(&evil), "{left}");
}

/// A home below the working directory may have a ceiling of a stage's, which would use the project's file.
fn ceiling_of_a_stage(cx: &Cx) {
    let good = cx.good();
    let text = format!("[network]\nallow = [\"{good}\"]\n");
    write(cx, &cx.dir().join(".exeat.toml"), &text);
    let plant =
        "mkdir -p a/home/.config/exeat; cp .exeat.toml a/home/.config/exeat/policy.toml; ln -s a/home h";
    sh(cx, &[], plant).run().exits(0);
    let script = status_script(&[&good]);
    let config = cx.dir().join("a/home/.config").display().to_string();
    let ceiling = format!("{config}/exeat/policy.toml");
    let refused = |done: Done| did_not_start(cx, &done, &format!("or, if it is yours: --ceiling {ceiling}"));
    for home in ["a/home", "h"] {
        let home = cx.dir().join(home).display().to_string();
        refused(sh(cx, &[], "touch started").env("HOME", &home).run());
        sh(cx, &["--ceiling", &ceiling], &script).env("HOME", &home).run().shows("200 ");
    }
    refused(sh(cx, &[], "touch started").env("XDG_CONFIG_HOME", &config).run());
    // In another writable tree it is moved aside, however the tree is given, and one that is there stays as it is.
    let config = cx.home().join("config");
    let settings = config.join("exeat");
    for (tree, made) in [(&config, &config), (&settings, &settings)] {
        cx.outside(["mkdir", "-p", &made.display().to_string()]).run().exits(0);
        let tree = tree.display().to_string();
        let run = |script: &str| {
            sh(cx, &["--rw", &tree], script).env("XDG_CONFIG_HOME", &config.display().to_string())
        };
        let plant = format!("mkdir -p {0}; cp .exeat.toml {0}/policy.toml", settings.display());
        run(&plant).run();
        assert!(!settings.join("policy.toml").exists(), "{tree}");
        write(cx, &settings.join("policy.toml"), "");
        run(&format!("{plant}; mv {0} {0}-gone", settings.display())).run();
        assert_eq!(fs::read_to_string(settings.join("policy.toml")).expect("the ceiling"), "", "{tree}");
        fs::remove_file(settings.join("policy.toml")).expect("the ceiling");
    }
    // No stage writes to the home directory by default.
    let home = cx.dir().display().to_string();
    write(cx, &cx.dir().join(".config/exeat/policy.toml"), &text);
    sh(cx, &["--allow", &good], &script).env("HOME", &home).run().shows("200 ");
}

/// Under `sudo -E` the home directory and its ceiling belong to another user; a project's file may belong to anybody.
fn of_another(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let text = format!("[network]\nallow = [\"{good}\", \"{evil}\"]\n");
    let project = cx.dir().join(".exeat.toml");
    write(cx, &project, &text);
    cx.bench().give(&project, false);
    let site = write(cx, &cx.home().join("site.toml"), &text);
    let script = status_script(&[&good, &evil]);
    let done = sh(cx, &["--ceiling", &site], &script).run();
    done.shows("403 403 ").says(".exeat.toml was found and not used: it is somebody else's");
    let config = cx.home().join("config/exeat");
    fs::create_dir_all(&config).expect("a directory");
    let ceiling = config.join("policy.toml");
    write(cx, &ceiling, &text);
    let run = || {
        let config = cx.home().join("config").display().to_string();
        sh(cx, &["--allow", &good], &script).env("XDG_CONFIG_HOME", &config).run()
    };
    run().shows("200 403 ");
    cx.bench().give(&ceiling, false);
    let done = run();
    done.exits(2).prints("").says(&format!("the ceiling `{}` belongs to uid ", ceiling.display()));
}

/// A stage of an ordinary user is held fully; so is root's, which becomes another user. Root that stays root is not.
fn require_full(cx: &Cx) {
    let run = || sh(cx, &["--require", "full"], "touch started");
    if cx.is_root() {
        let done = run().under(["setpriv", "--bounding-set", "-sys_admin", "--"]).run();
        done.exits(125).says("not everything holds, and that was required: identity: partial");
        assert!(!cx.dir().join("started").exists());
    }
    run().run().exits(0);
    assert!(cx.dir().join("started").exists());
    // A killed run would leave names that no later start knows.
    fs::remove_file(cx.dir().join("started")).expect("a file");
    let live = cx.home().join(".local/state/exeat/live");
    fs::remove_dir_all(&live).expect("a directory");
    fs::write(&live, "").expect("a file");
    run().run().exits(125).says("what is watched cannot be written down");
    assert!(!cx.dir().join("started").exists());
}

/// Returns the binds that a shell and curl need, for a policy that shows only named paths.
fn system(more: Value) -> Vec<Value> {
    let trees =
        ["/usr", "/bin", "/lib", "/lib64", "/etc"].into_iter().filter(|tree| Path::new(tree).exists());
    trees
        .map(|tree| json!({"host": tree, "sandbox": tree}))
        .chain((!more.is_null()).then_some(more))
        .collect()
}

fn isolation(cx: &Cx) {
    let (work, out) = (cx.home().join("job"), cx.home().join("out"));
    own_dir(cx, &work);
    own_dir(cx, &out);
    let policy = json!({
        "ro_binds": system(json!({"host": cx.dir(), "sandbox": "/input"})),
        "rw_binds": [{"host": out, "sandbox": "/output"}],
        "work_host": work,
        "network": {"allow": [cx.good()]},
        "env_allowlist": ["PATH", "KEPT"],
    });
    let script = format!(
        "pwd; echo $HOME; echo $KEPT $LEFT; read line || echo end of input; echo w > here; echo o > /output/f; \
         echo no 2>&- > /input/f || echo read-only; cp /input/ca.pem .; {}",
        status_script(&[&cx.good(), &cx.evil()])
    );
    let done = sh(cx, &["--policy", "-"], &script)
        .stdin(policy.to_string())
        .env("KEPT", "kept")
        .env("LEFT", "left")
        .run();
    done.shows("/work\n/work\nkept\nend of input\nread-only\n200 403 ");
    let file = |path: &Path| fs::read_to_string(path).expect("written");
    assert_eq!((file(&work.join("here")), file(&out.join("f"))), ("w\n".into(), "o\n".into()));
    // Without a host directory, the work is gone after the run; without a network nothing is reachable.
    let policy = json!({"ro_binds": system(Value::Null), "network": false, "env_allowlist": []});
    let script = format!("pwd; ls -A; echo x > f; {}", status_script(&[&cx.good()]));
    sh(cx, &["--policy", "-"], &script).stdin(policy.to_string()).run().shows("/work\n403 ");
}

/// Reads a role and a document per line of standard input, and prints whether the role's schema accepts it.
const CHECK: &str = "import json, jsonschema, sys
schemas = [json.loads(text) for text in sys.argv[1:]]
for schema in schemas:
    jsonschema.Draft202012Validator.check_schema(schema)
for line in sys.stdin:
    role, document = json.loads(line)
    print(jsonschema.Draft202012Validator(schemas[role]).is_valid(document))";

/// Invalid documents that an editor should mark, with valid ones.
fn schemas(cx: &Cx) {
    let roles = ["policy", "ceiling"];
    let texts = roles.map(|role| cx.exeat_plain(["policy", "schema", role]).run().exits(0).stdout());
    for (role, text) in roles.iter().zip(&texts) {
        let schema: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(schema["$id"], format!("urn:exeat:{role}:1"));
    }
    let both = [
        (r#"{"network": {"allow": ["https://a.test/"]}}"#, false),
        (r#"{"network": {"allow": ["a.test:443"]}}"#, true),
        (r#"{"network": {"rule": [{"allow": ["a.test"]}]}}"#, true),
        (r#"{"network": {"rule": [{"reason": "x"}]}}"#, false),
        (r#"{"limits": {"timeout": "0s"}}"#, false),
        (r#"{"limits": {"timeout": "0h30m"}}"#, true),
        (r#"{"limits": {"file_size": "0"}}"#, false),
        (r#"{"limits": {"file_size": "0MB"}}"#, false),
        (r#"{"limits": {"file_size": "100"}}"#, true),
        (r#"{"limits": {"open_files": 8}}"#, false),
        (r#"{"fs": {"ro": ["~bob/x"]}}"#, false),
        (r#"{"fs": {"mask": ["~bob"]}}"#, false),
        (r#"{"fs": {"mask": ["~/x"]}}"#, true),
        (r#"{"fs": {"ro": ["~/x"]}}"#, true),
        (r#"{"$schema": "urn:exeat:policy:1"}"#, true),
    ];
    let of_policy = [
        (r#"{"fs": {"ro": ["/usr:/a/../b"]}}"#, false),
        (r#"{"fs": {"ro": ["/usr:/.."]}}"#, false),
        (r#"{"fs": {"ro": ["/usr:/a..b/..."]}}"#, true),
        (r#"{"fs": {"ro": ["../usr"]}}"#, true),
        (r#"{"network": {"host_port": [53]}}"#, false),
        (r#"{"network": {"host_port": ["3128"]}}"#, false),
        (r#"{"network": {"host_port": ["8080:53"]}}"#, false),
        (r#"{"network": {"host_port": ["99999"]}}"#, false),
        (r#"{"network": {"host_port": ["53:5353", 8080, "65535"]}}"#, true),
    ];
    let of_ceiling = [(r#"{"fs": {"ro": ["/usr:/b"]}}"#, false), (r#"{"fs": {"ro": ["/usr"]}}"#, true)];
    let both = both.iter().flat_map(|(text, expect)| [(0, *text, *expect), (1, *text, *expect)]);
    let own = of_policy.iter().map(|(text, expect)| (0, *text, *expect));
    let own = own.chain(of_ceiling.iter().map(|(text, expect)| (1, *text, *expect)));
    let all: Vec<(usize, &str, bool)> = both.chain(own).collect();
    for (role, text, expect) in &all {
        let ceiling = cx.write("ceiling.json", text);
        let words = match role {
            0 => ["policy", "show", "--policy", text],
            _ => ["policy", "show", "--ceiling", ceiling.to_str().expect("ASCII")],
        };
        let done = cx.exeat_plain(words).run();
        // A missing path in the file system is not a fault of the text.
        let is_read = done.code == Some(0) || done.stderr().contains("no such file");
        assert_eq!(is_read, *expect, "{} {text}: {done:?}", roles[*role]);
    }
    let lines: Vec<String> = all.iter().map(|(role, text, _)| format!("[{role}, {text}]")).collect();
    let packages = std::path::Path::new(e2e::bench::CLIENTS).join("python").display().to_string();
    let words = ["/usr/bin/python3", "-c", CHECK, &texts[0], &texts[1]];
    let done = cx.outside(words).env("PYTHONPATH", &packages).stdin(lines.join("\n")).run();
    let said = done.exits(0).stdout();
    let said: Vec<bool> = said.lines().map(|line| line == "True").collect();
    assert_eq!(said.len(), all.len());
    for ((role, text, expect), said) in all.iter().zip(said) {
        assert_eq!(said, *expect, "the schema of a {}: {text}", roles[*role]);
    }
}

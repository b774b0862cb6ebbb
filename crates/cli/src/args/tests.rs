use std::fmt::Debug;

use clap::CommandFactory;
use exeat_policy::Limits;

use super::*;

#[test]
fn the_definition_holds_together() {
    Cli::command().debug_assert();
}

fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("exeat").chain(words.iter().copied()))
}

fn run(words: &[&str]) -> RunArgs {
    let words: Vec<&str> = std::iter::once("run").chain(words.iter().copied()).collect();
    match parse(&words).map(|cli| cli.command) {
        Ok(Command::Run(args)) => *args,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn starts_the_command_at_the_first_word_that_is_not_an_option() {
    for (words, command) in [
        (vec!["--allow", "a.example", "curl", "-sS", "--allow", "b"], vec!["curl", "-sS", "--allow", "b"]),
        (vec!["--allow", "a.example", "--", "curl", "-v"], vec!["curl", "-v"]),
        (vec!["--", "--strange"], vec!["--strange"]),
        (vec!["--", "--", "x"], vec!["--", "x"]),
        (vec!["sh", "-c", "x", "--", "y"], vec!["sh", "-c", "x", "--", "y"]),
        (vec!["env", "--help"], vec!["env", "--help"]),
        (vec!["git", "--version"], vec!["git", "--version"]),
        (vec!["ls", "--color", "never"], vec!["ls", "--color", "never"]),
        (vec!["--quiet", "true"], vec!["true"]),
        (vec![], vec![]),
    ] {
        assert_eq!(run(&words).command, command, "{words:?}");
    }
    assert_eq!(run(&["--allow", "a", "--allow", "b", "x"]).policy.allow, ["a", "b"]);
    assert!(run(&["curl", "--allow", "b"]).policy.allow.is_empty());
}

/// clap's own guess needs more letters than `run` has.
#[test]
fn a_command_with_letters_in_each_other_s_place_is_guessed() {
    let said =
        |words: &[&str]| guessed(parse(words).expect_err("no command"), words.first().copied()).to_string();
    for (typed, tip) in [("rnu", "exists: 'run'"), ("chekc", "exists: 'check'"), ("porxy", "'proxy'")] {
        let said = said(&[typed]);
        assert!(said.contains("similar") && said.contains(tip), "{said}");
    }
    assert!(!said(&["zzz"]).contains("similar") && !said(&["audit", "rnu"]).contains("'run'"));
    assert!(said(&["npm", "ci"]).contains("exeat run -- npm"), "{}", said(&["npm", "ci"]));
}

#[test]
fn a_variable_s_name_has_no_space() {
    for (text, expect) in [
        ("A B=c", "the name of a variable has no space; probably meant: --env A --env B=..."),
        ("A B", "the name of a variable has no space; probably meant: --env A --env B"),
        (" A=b", "the name of a variable has no space; probably meant: --env A=..."),
        (" ", "the name of a variable has no space"),
    ] {
        assert_eq!(parse_variable(text), Err(expect.to_owned()), "{text:?}");
    }
    assert_eq!(parse_variable("A=b c"), Ok(Variable::Set("A".into(), "b c".into())));
}

/// Arguments of later versions are refused and never ignored.
#[test]
fn flags_of_other_versions_are_refused() {
    for flag in ["--publish=80", "--unsafe-no-isolation"] {
        let error = parse(&["run", flag, "x"]).expect_err(flag);
        assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{flag}");
        assert_eq!(error.exit_code(), 2, "{flag}");
    }
    let error = parse(&["audit", "anchor"]).expect_err("anchor");
    assert_eq!(error.kind(), clap::error::ErrorKind::InvalidSubcommand);
    assert!(parse(&["audit", "show", "--last", "x"]).is_err(), "--last with a run");
}

fn check<T: Debug + PartialEq>(parse: impl Fn(&str) -> Result<T, String>, text: &str, expect: Option<T>) {
    assert_eq!(parse(text).ok(), expect, "{text:?}");
}

/// K11.
#[test]
fn limits() {
    let args = run(&["--timeout", "10m", "--grace", "20s", "--memory", "2GiB", "--pids", "64", "x"]);
    let set: Vec<_> =
        Limits::from(args.limits).set().map(|(limit, value)| format!("{}={value}", limit.key())).collect();
    assert_eq!(set.join(" "), "timeout=10m grace=20s memory=2GiB pids=64");
    for words in
        [["--memory", "2"], ["--memory", "-1"], ["--memory", "lots"], ["--pids", "-1"], ["--timeout", "9"]]
    {
        let accepted = parse(&[&["run"], &words[..], &["x"]].concat()).is_ok();
        // Bytes have no unit.
        assert_eq!(accepted, words == ["--memory", "2"], "{words:?}");
    }
}

/// Nobody learns more of them: what is rare is a key of a policy, and `--set` sets any key.
#[test]
fn a_run_has_at_most_36_flags_beside_help_and_two_pages_of_that() {
    let mut cli = Cli::command();
    cli.build();
    let run = cli.find_subcommand("run").unwrap();
    let flags: Vec<_> =
        run.get_arguments().filter_map(|arg| arg.get_long()).filter(|flag| *flag != "help").collect();
    assert!(flags.len() <= 36, "{}: {flags:?}", flags.len());
    for (word, columns) in [("-h", 100), ("--help", 100), ("-h", 80), ("--help", 80)] {
        let help =
            Cli::command().term_width(columns).try_get_matches_from(["exeat", "run", word]).unwrap_err();
        let lines = help.to_string().lines().count();
        assert!(lines <= 100, "{word} at {columns} columns: {lines} lines");
    }
}

/// Records are kept for years where somebody must.
#[test]
fn ages_of_records() {
    let age = |text: &str| match parse(&["audit", "prune", "--older-than", text]).map(|cli| cli.command) {
        Ok(Command::Audit { command: AuditCommand::Prune(args) }) => Some(args.older_than.as_secs() / 3600),
        _ => None,
    };
    for (text, hours) in [
        ("180d", Some(4320)),
        ("3650d", Some(87_600)),
        ("2y", Some(17_568)),
        ("36h", Some(36)),
        ("8w", Some(1344)),
        ("6mo", Some(4464)),
        ("1d12h", Some(36)),
        ("60m", Some(1)),
    ] {
        assert_eq!(age(text), hours, "{text}");
    }
    for text in ["", "0d", "-1d", "180", "d", "99999999999999999999d", "18446744073709551615y"] {
        assert_eq!(age(text), None, "{text}");
    }
}

/// The help of every command with rules describes them.
#[test]
fn terms() {
    for command in [
        &["run"][..],
        &["proxy", "--listen", "unix:/x"],
        &["check"],
        &["policy", "show"],
        &["policy", "lint"],
        &["env"],
    ] {
        let tail: &[&str] = if ["run", "check"].contains(&command[0]) { &["x"] } else { &[] };
        for (flags, accepted) in [
            (&["--mode", "report", "--set", "network.nat64=true"][..], true),
            (&["--mode=enforce", "--set=network.ech=record"], true),
            (&["--mode", "learn"], false),
            (&["--mode"], false),
        ] {
            assert_eq!(parse(&[command, flags, tail].concat()).is_ok(), accepted, "{command:?} {flags:?}");
        }
    }
    let error = parse(&["check", "--mode", "learn", "x"]).unwrap_err().to_string();
    assert!(error.contains("one of enforce, report"), "{error}");
}

#[test]
fn ports_of_this_machine() {
    let args = run(&["--host-port", "5432", "--host-port=11434:80", "x"]);
    let ports: Vec<_> = args.policy.host_port.iter().map(ToString::to_string).collect();
    assert_eq!(ports, ["5432", "11434:80"]);
    for text in ["", "0", "127.0.0.1:5432", "80-81", "1:2:3"] {
        let error = parse(&["run", "--host-port", text, "x"]).unwrap_err();
        assert!(error.to_string().contains("it is PORT or PORT:INNER") || text.is_empty(), "{error}");
        assert_eq!(error.exit_code(), 2, "{text}");
    }
}

#[test]
fn outputs() {
    let parse = |text: &str| text.parse();
    check(parse, "run.jsonl", Some(Output::File("run.jsonl".into())));
    check(parse, "./fd:3", Some(Output::File("./fd:3".into())));
    check(parse, "fd:3", Some(Output::Fd(3)));
    check(parse, "fd:2", Some(Output::Fd(2)));
    for text in ["", "fd:", "fd:0", "fd:1", "fd:-1", "fd:+3", "fd:x", "fd:99999999999", "fd:3 "] {
        check::<Output>(parse, text, None);
    }
}

#[test]
fn labels_and_variables() {
    let label = |key: &str, value: &str| Some(Label { key: key.into(), value: value.into() });
    check(str::parse, "k=v", label("k", "v"));
    check(str::parse, "k=", label("k", ""));
    check(str::parse, "k=a=b", label("k", "a=b"));
    check::<Label>(str::parse, "=v", None);
    check::<Label>(str::parse, "k", None);

    check(parse_variable, "CI", Some(Variable::Pass("CI".into())));
    check(parse_variable, "CI=", Some(Variable::Set("CI".into(), "".into())));
    check(parse_variable, "A=b=c", Some(Variable::Set("A".into(), "b=c".into())));
    check(parse_variable, "=x", None);
    check(parse_variable, "SLURM_*", Some(Variable::Pass("SLURM_*".into())));
    for text in ["*", "A*B", "*A", "A**", "A*=x"] {
        check(parse_variable, text, None);
    }
    check(parse_variable, "", None);

    check(parse_stage, "nightly import", Some("nightly import".to_owned()));
    check(parse_stage, "", None);
    check(parse_stage, "a\nb", None);
    check(parse_stage, &"x".repeat(129), None);
}

#[test]
fn listeners() {
    let parse = |text: &str| text.parse();
    check(parse, "unix:/run/x.sock", Some(ListenAt::Unix("/run/x.sock".into())));
    check(parse, "unix:x", Some(ListenAt::Unix("x".into())));
    check(parse, "tcp:127.0.0.1:3128", Some(ListenAt::Tcp(([127, 0, 0, 1], 3128).into())));
    check(parse, "tcp:[::1]:3128", Some(ListenAt::Tcp((std::net::Ipv6Addr::LOCALHOST, 3128).into())));
    for text in [
        "",
        "unix:",
        "tcp:",
        "tcp:3128",
        "tcp:localhost:3128",
        "tcp:::1:3128",
        "/run/x.sock",
        "udp:1.2.3.4:5",
    ] {
        check::<ListenAt>(parse, text, None);
    }
    for text in ["tcp:3128", "tcp:localhost:3128", "tcp::3128"] {
        let error = text.parse::<ListenAt>().unwrap_err();
        assert_eq!(error, "a tcp listener needs an address: tcp:127.0.0.1:3128", "{text}");
    }
}

/// Text of the user adds no line and no color to an error.
#[test]
fn errors_show_the_typed_text_on_one_line() {
    let typed = "/a\n\u{1b}[31mexeat: fake\nb:c:d";
    for words in [
        vec!["run", "--rw", typed],
        vec!["run", "--timeout", typed],
        vec!["audit", "show", "--host", typed],
        vec!["audit", "show", "--verdict", typed],
        vec!["run", "--fs", typed],
        vec!["run", "--a\nb\u{1b}"],
        vec![typed],
    ] {
        let error = visible(parse(&words).expect_err("it is wrong"));
        let said = error.to_string();
        assert!(said.lines().all(|line| !line.starts_with("exeat: ") && !line.contains('\u{1b}')), "{said}");
        assert!(said.lines().next().is_some_and(|line| line.contains("\\n")), "{said}");
    }
}

/// `exeat COMMAND --help` as it is shown on a terminal of 100 columns.
#[test]
fn help() {
    let commands: &[&[&str]] = &[
        &[],
        &["run"],
        &["learn"],
        &["check"],
        &["proxy"],
        &["prove"],
        &["audit"],
        &["audit", "show"],
        &["audit", "summary"],
        &["audit", "diff"],
        &["audit", "list"],
        &["audit", "prune"],
        &["audit", "export"],
        &["audit", "report"],
        &["audit", "replay"],
        &["audit", "learn"],
        &["audit", "lock"],
        &["state"],
        &["state", "list"],
        &["state", "restore"],
        &["state", "trust"],
        &["state", "prune"],
        &["policy"],
        &["policy", "show"],
        &["policy", "lint"],
        &["policy", "diff"],
        &["policy", "schema"],
        &["preset"],
        &["env"],
        &["completions"],
        &["man"],
    ];
    for words in commands {
        let name = std::iter::once("exeat").chain(words.iter().copied()).collect::<Vec<_>>().join("_");
        let words: Vec<&str> = name.split('_').chain(["--help"]).collect();
        let error = Cli::command().term_width(100).try_get_matches_from(&words).unwrap_err();
        assert_eq!(error.exit_code(), 0, "{words:?}");
        let text = error.to_string();
        let text: Vec<&str> = text.lines().map(str::trim_end).collect();
        let text = text.join("\n");
        insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "../snapshots" }, {
            insta::assert_snapshot!(name, text);
        });
    }
}

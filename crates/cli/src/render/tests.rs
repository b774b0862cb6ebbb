use exeat_policy::Reason;
use exeat_record::Proto;
use exeat_runner::Reached;

use super::*;
use crate::args::ColorWhen;

fn denied(host: &str, port: u16, said: &str, count: u64, flag: Option<&str>) -> DeniedHost {
    DeniedHost {
        host: host.into(),
        port,
        proto: Proto::Tcp,
        reason: Reason::Default,
        said: said.into(),
        count,
        flag: flag.map(str::to_owned),
        refused_by: None,
        rule_src: None,
        programs: Vec::new(),
    }
}

fn failed(host: &str, said: &str, count: u64) -> FailedHost {
    FailedHost { host: host.into(), port: 443, reason: Reason::ConnectError, said: said.into(), count }
}

fn render(summary: &ConnectionSummary, ended: Option<Ended>, record: Option<&str>) -> String {
    paint(Paint::PLAIN, summary, ended, record)
}

fn limits() -> Limits {
    Limits {
        timeout: Some("2s".parse().unwrap()),
        cpu_time: Some("1s".parse().unwrap()),
        file_size: Some("2MB".parse().unwrap()),
        ..Limits::default()
    }
}

fn paint(paint: Paint, summary: &ConnectionSummary, ended: Option<Ended>, record: Option<&str>) -> String {
    Ending {
        summary,
        ended,
        reason: ended.and_then(|ended| reason(ended, &limits())),
        record: record.map(str::to_owned),
        seal: None,
        llm: false,
        on_denied: OnDenied::Note,
    }
    .render(paint)
}

#[test]
fn the_summary_of_the_reference() {
    let summary = ConnectionSummary {
        denied: vec![
            denied(
                "wiki.corp.example",
                443,
                "resolves to 10.2.3.4 (private)",
                1,
                Some("--allow 10.2.3.4:443"),
            ),
            denied("stats.example.net", 443, "no rule allows it", 14, Some("--allow stats.example.net")),
            DeniedHost {
                reason: Reason::Port,
                ..denied(
                    "api.example.com",
                    8443,
                    "allowed on 443 only",
                    2,
                    Some("--allow api.example.com:8443"),
                )
            },
        ],
        failed: vec![failed("files.example.org", "DNS: no such name", 1)],
        hosts_reached: 2,
        ..ConnectionSummary::default()
    };
    insta::assert_snapshot!(render(&summary, Some(Ended::Exit(1)), Some("01JD8Z3V5Q")), @r"
    exeat: 3 hosts denied, 1 failed, 2 reached; the stage exited 1
      denied  14x  stats.example.net:443   no rule allows it                --allow stats.example.net
      denied   2x  api.example.com:8443    allowed on 443 only              --allow api.example.com:8443
      denied   1x  wiki.corp.example:443   resolves to 10.2.3.4 (private)   --allow 10.2.3.4:443
      failed   1x  files.example.org:443   DNS: no such name (not a policy denial)
    exeat: record: exeat audit show 01JD8Z3V5Q
    ");
}

/// Two ports of one host are one host, whether it was reached or not.
#[test]
fn the_first_line_counts_hosts_on_both_sides() {
    let summary = ConnectionSummary {
        denied: [443, 80].map(|port| denied("stats.example", port, "no rule allows it", 1, None)).to_vec(),
        reached: 2,
        hosts_reached: 1,
        ..ConnectionSummary::default()
    };
    let text = render(&summary, None, None);
    assert_eq!(text.lines().next(), Some("exeat: 1 host denied, 1 reached"));
}

/// D11, D10: what left the proxy out, and names that were only asked for.
#[test]
fn attempts_without_the_proxy_are_listed() {
    let spoken = |proto, denied: DeniedHost| DeniedHost { proto, ..denied };
    let summary = ConnectionSummary {
        denied: vec![
            denied(
                "stats.example.net",
                0,
                "no rule allows it (asked by name)",
                2,
                Some("--allow stats.example.net"),
            ),
            spoken(Proto::Udp, denied("8.8.8.8", 53, "UDP is never let out", 3, None)),
            spoken(Proto::Other(132), denied("[2001:db8::1]", 0, "protocol 132 is never let out", 1, None)),
        ],
        ..ConnectionSummary::default()
    };
    insta::assert_snapshot!(render(&summary, Some(Ended::Exit(1)), None), @r"
    exeat: 3 hosts denied, 0 reached; the stage exited 1
      denied  3x  8.8.8.8:53 (udp)               UDP is never let out
      denied  2x  stats.example.net              no rule allows it (asked by name)   --allow stats.example.net
      denied  1x  [2001:db8::1] (protocol 132)   protocol 132 is never let out
      a name without a port was only looked up (twice, for IPv4 and IPv6), and its flag opens 443;
      for ssh and git@ it is --allow stats.example.net:22
      a host with a private address needs a rule for that, too: --allow NAME:PORT --allow ADDRESS:PORT
    ");
}

/// The line gives the port of ssh for one name, and for several it names none.
#[test]
fn names_that_were_only_looked_up_have_a_hint_for_ssh() {
    let asked = |host: &str| {
        denied(host, 0, "no rule allows it (asked by name)", 2, Some(&format!("--allow {host}")))
    };
    let beside = denied("git.example.net", 443, "no rule allows it", 1, Some("--allow git.example.net"));
    let text = |denied| render(&ConnectionSummary { denied, ..ConnectionSummary::default() }, None, None);
    let one = text(vec![asked("git.example.net"), beside]);
    assert!(one.contains("for ssh and git@ it is --allow git.example.net:22\n"), "{one}");
    let two = text(vec![asked("git.example.net"), asked("other.example.net")]);
    assert!(two.contains("for ssh and git@ it is --allow HOST:22\n"), "{two}");
}

/// Nobody has looked up a name that no rule allows.
#[test]
fn a_host_that_may_be_private_needs_a_second_rule() {
    for (host, port, is_named) in [
        ("db.corp.example", 5432, true),
        ("wiki", 443, true),
        ("wiki.corp", 80, true),
        ("nas.home.arpa", 443, true),
        ("corp", 443, true),
        ("acmecorp.example", 443, false),
        ("10.1.2.3", 5432, false),
        ("[fd00::1]", 5432, false),
    ] {
        let one = denied(host, port, "no rule allows it", 1, Some("--allow x"));
        let summary = ConnectionSummary { denied: vec![one], ..ConnectionSummary::default() };
        let text = render(&summary, None, None);
        assert_eq!(text.contains("--allow NAME:PORT --allow ADDRESS:PORT"), is_named, "{host}:{port}");
    }
}

#[test]
fn the_summary_of_the_readme() {
    let summary = ConnectionSummary {
        denied: vec![denied("other.example", 443, "no rule allows it", 1, Some("--allow other.example"))],
        ..ConnectionSummary::default()
    };
    insta::assert_snapshot!(render(&summary, Some(Ended::Exit(56)), Some("01JD8Z3V5Q")), @r"
    exeat: 1 host denied, 0 reached; the stage exited 56
      denied  1x  other.example:443   no rule allows it   --allow other.example
    exeat: record: exeat audit show 01JD8Z3V5Q
    ");
}

/// Report mode: what passed and would not have, beside what was denied all the same.
#[test]
fn names_the_flag_that_would_allow_a_host() {
    let would = |n: u32| denied(&format!("h{n}.example"), 443, "no rule allows it", 1, Some("--allow h"));
    let summary = ConnectionSummary {
        would_deny: vec![denied(
            "stats.example.net",
            443,
            "no rule allows it",
            3,
            Some("--allow stats.example.net"),
        )],
        hosts_reached: 1,
        ..ConnectionSummary::default()
    };
    insta::assert_snapshot!(render(&summary, Some(Ended::Exit(0)), Some("01JD8Z3V5Q")), @r"
    exeat: 1 host would be denied, 1 reached; the stage exited 0
      would deny  3x  stats.example.net:443   no rule allows it   --allow stats.example.net
    exeat: record: exeat audit show 01JD8Z3V5Q
    ");
    let both = ConnectionSummary {
        denied: vec![denied("a.example", 8443, "no rule allows it", 1, Some("--allow a.example:8443"))],
        would_deny: (0..12).map(would).collect(),
        would_deny_more: 7,
        ..ConnectionSummary::default()
    };
    let text = render(&both, None, Some("R"));
    assert!(text.starts_with("exeat: 1 host denied, at least 12 would be denied, 0 reached\n"), "{text}");
    assert!(text.contains("\n  denied      1x  a.example:8443"), "{text}");
    assert!(text.contains("\n  would deny  1x  h9.example:443"), "{text}");
    let more = "\n  ... and at least 2 more that would be denied: exeat audit show R --verdict would_deny\n";
    assert!(text.contains(more), "{text}");
}

#[test]
fn nothing_denied_nothing_failed_nothing_said() {
    let summary = ConnectionSummary { hosts_reached: 7, connections: 9, ..ConnectionSummary::default() };
    assert_eq!(render(&summary, Some(Ended::Exit(1)), Some("x")), "");
}

#[test]
fn a_limit_that_was_reached_is_said_once() {
    let reached = Some(Ended::Limit(Reached::Memory("2GiB".parse().unwrap())));
    assert_eq!(
        render(&ConnectionSummary::default(), reached, Some("x")),
        "exeat: memory limit of 2GiB reached; the stage was stopped\nexeat: record: exeat audit show x\n"
    );
    for (ended, line) in [
        (Ended::Timeout, "time limit of 2s reached; the stage was stopped"),
        (Ended::Signal(24), "cpu_time limit of 1s reached; the stage was killed by SIGXCPU"),
        (
            Ended::Exit(153),
            "file_size limit of 2MB reached; the stage exited 153, as a shell does after SIGXFSZ killed a command",
        ),
    ] {
        assert_eq!(reason(ended, &limits()).unwrap(), line);
        assert_eq!(reason(ended, &Limits::default()), None, "the cause is unknown");
    }
    let summary = ConnectionSummary {
        denied: vec![denied("a.example", 443, "no", 1, None)],
        ..ConnectionSummary::default()
    };
    insta::assert_snapshot!(render(&summary, reached, None), @r"
    exeat: memory limit of 2GiB reached; the stage was stopped
    exeat: 1 host denied, 0 reached
      denied  1x  a.example:443   no
    ");
}

#[test]
fn a_deny_rule_gets_no_flag() {
    let summary = ConnectionSummary {
        denied: vec![
            denied("telemetry.example.com", 443, "denied by .exeat.toml:14", 3, None),
            denied("a.example", 443, "no rule allows it", 1, Some("--allow a.example")),
        ],
        ..ConnectionSummary::default()
    };
    insta::assert_snapshot!(render(&summary, Some(Ended::Signal(9)), None), @r"
    exeat: 2 hosts denied, 0 reached; the stage was killed by SIGKILL
      denied  3x  telemetry.example.com:443   denied by .exeat.toml:14
      denied  1x  a.example:443               no rule allows it   --allow a.example
    ");
}

#[test]
fn only_failures() {
    let summary = ConnectionSummary {
        failed: vec![failed("a.example", "connection refused", 2)],
        ..ConnectionSummary::default()
    };
    insta::assert_snapshot!(render(&summary, Some(Ended::Timeout), Some("my records/run.jsonl")), @r"
    exeat: time limit of 2s reached; the stage was stopped
    exeat: 1 host failed, 0 reached
      failed  2x  a.example:443   connection refused (not a policy denial)
    exeat: record: exeat audit show 'my records/run.jsonl'
    ");
}

#[test]
fn ten_hosts_are_shown_and_the_rest_counted() {
    let many = |n: usize| {
        (0..n)
            .map(|i| denied(&format!("h{i}.example"), 443, "no rule allows it", 1, None))
            .collect::<Vec<_>>()
    };
    let fails = |n: usize| (0..n).map(|i| failed(&format!("f{i}.example"), "refused", 1)).collect::<Vec<_>>();
    let text = render(
        &ConnectionSummary { denied: many(17), ..ConnectionSummary::default() },
        None,
        Some("01JD8Z3V5Q"),
    );
    assert_eq!(text.lines().filter(|line| line.starts_with("  denied")).count(), 10, "{text}");
    assert!(text.starts_with("exeat: 17 hosts denied, 0 reached\n"), "{text}");
    assert!(text.contains("\n  ... and 7 more: exeat audit show 01JD8Z3V5Q --verdict deny\n"), "{text}");
    assert!(text.ends_with("\nexeat: record: exeat audit show 01JD8Z3V5Q\n"), "{text}");

    let text = render(
        &ConnectionSummary { denied: many(10), failed: fails(12), ..ConnectionSummary::default() },
        None,
        Some("R"),
    );
    assert!(!text.contains("--verdict deny"), "{text}");
    assert!(text.contains("\n  ... and 2 more failed: exeat audit show R --verdict error\n"), "{text}");

    let text = render(
        &ConnectionSummary { denied: many(1024), denied_more: 5, ..ConnectionSummary::default() },
        None,
        None,
    );
    assert!(text.starts_with("exeat: at least 1024 hosts denied, 0 reached\n"), "{text}");
    assert!(text.ends_with("\n  ... and at least 1014 more\n"), "{text}");
}

#[test]
fn hostile_text_stays_on_its_line() {
    let summary = ConnectionSummary {
        denied: vec![
            denied("", 0, "malformed\nexeat: 0 hosts denied", 1, None),
            denied("2001:db8::1", 443, "x\u{1b}[2J\u{202e}", 1, Some("--allow [2001:db8::1]:443\r")),
            denied("long.example", 443, &"y".repeat(5000), 1, None),
        ],
        ..ConnectionSummary::default()
    };
    let text = render(&summary, Some(Ended::NotFound), Some("a'b\n"));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.contains("(malformed request)"), "{text}");
    assert!(text.contains("[2001:db8::1]:443"), "{text}");
    assert!(text.lines().all(|line| line.len() < 500), "{text}");
    assert!(text.ends_with("exeat audit show 'a'\\''b\\n'\n"), "{text}");
}

#[test]
fn color_wraps_words_and_breaks_no_column() {
    let summary = ConnectionSummary {
        denied: vec![denied("a.example", 443, "no rule allows it", 1, None)],
        ..ConnectionSummary::default()
    };
    assert_eq!(
        paint(Paint::new(ColorWhen::Always, &std::io::stderr()), &summary, None, None),
        "exeat: 1 host denied, 0 reached\n  \u{1b}[31mdenied\u{1b}[0m  1x  a.example:443      no rule allows it\n"
            .replace("443      no", "443   no")
    );
}

/// Each target stays one line; who asked is told where it was more than one program, and never moves a cursor.
#[test]
fn refusals_are_told_by_program_where_there_was_more_than_one() {
    let by = |host: &str, count, programs: &[&str]| DeniedHost {
        programs: programs.iter().map(|it| (*it).to_owned()).collect(),
        ..denied(host, 443, "no rule allows it", count, Some("--allow x"))
    };
    let lines = |denied: Vec<DeniedHost>| {
        let summary = ConnectionSummary { denied, ..ConnectionSummary::default() };
        render(&summary, None, None)
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let one = lines(vec![by("a.test", 2, &["/usr/bin/curl"]), by("b.test", 1, &[])]);
    assert_eq!(one[0], "denied 2x a.test:443 no rule allows it --allow x");
    let more = lines(vec![
        by("a.test", 9, &["/usr/bin/node"]),
        by("b.test", 5, &["/bin/curl\u{1b}[2J", "/bin/git"]),
        by("c.test", 3, &["/opt/node"]),
        by("d.test", 1, &[]),
    ]);
    assert_eq!(
        more,
        [
            "denied 9x a.test:443 no rule allows it --allow x # node",
            "denied 3x c.test:443 no rule allows it --allow x # node",
            "denied 5x b.test:443 no rule allows it --allow x # curl\\u{1b}[2J, git",
            "denied 1x d.test:443 no rule allows it --allow x",
        ]
    );
}

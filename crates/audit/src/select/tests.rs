use super::*;

fn run(first_line: &str) -> RunSummary {
    let line = format!(
        r#"{{"schema":"egress/1","seq":0,"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"run":"01JD8Z3V5QABCDEFGHJKMNPQRS","event":"run_start",{first_line}}}"#
    );
    let mut run = RunSummary::from_first_line(line.as_bytes());
    assert!(run.holds.is_some(), "{line}");
    run.last = Moment::parse("2026-11-21T11:00:00.000000Z");
    run
}

fn imported() -> RunSummary {
    run(
        r#""stage":"import","user":"cleo as root","machine":"ci-7","dir":"/srv/work/job","labels":{"ticket":"OPS-7","team":"data"}"#,
    )
}

fn texts(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn l17_values_of_one_flag_add_up_and_flags_narrow() {
    let of = |stages: &[&str], users: &[&str], machines: &[&str]| Selection {
        stages: texts(stages),
        users: texts(users),
        machines: texts(machines),
        ..Selection::default()
    };
    assert!(of(&[], &[], &[]).is_empty());
    for (selection, passes) in [
        (of(&[], &[], &[]), true),
        (of(&["import"], &[], &[]), true),
        (of(&["train", "import"], &[], &[]), true),
        (of(&["train"], &[], &[]), false),
        (of(&["import"], &["cleo"], &["ci-7"]), true),
        (of(&["import"], &["cleo as root"], &[]), true),
        (of(&["import"], &["root"], &[]), false),
        (of(&["import"], &["cleo"], &["ci-8"]), false),
    ] {
        assert_eq!(selection.passes(&imported()), passes, "{selection:?}");
    }
    assert!(!of(&["import"], &[], &[]).passes(&run(r#""mode":"enforce""#)), "it has no stage");
}

#[test]
fn l17_labels_of_one_key_add_up_and_keys_narrow() {
    for (labels, passes) in [
        (&[("ticket", "OPS-7")][..], true),
        (&[("ticket", "OPS-8")], false),
        (&[("ticket", "OPS-8"), ("ticket", "OPS-7")], true),
        (&[("ticket", "OPS-7"), ("team", "data")], true),
        (&[("ticket", "OPS-7"), ("team", "web")], false),
        (&[("other", "OPS-7")], false),
    ] {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let selection = Selection { labels, ..Selection::default() };
        assert_eq!(selection.passes(&imported()), passes, "{selection:?}");
    }
}

#[test]
fn l17_a_directory_selects_runs_in_it_and_below() {
    for (dir, passes) in [
        ("/srv/work", true),
        ("/srv/work/job", true),
        ("/", true),
        ("/srv/wo", false),
        ("/srv/work/job/x", false),
    ] {
        let selection = Selection { dirs: vec![dir.into()], ..Selection::default() };
        assert_eq!(selection.passes(&imported()), passes, "{dir}");
    }
}

#[test]
fn l17_a_run_is_of_the_whole_time_that_it_went_on() {
    let of = |since: &str, until: &str| {
        let at = |time: &str| Moment::parse(&format!("2026-11-21T{time}:00.000000Z"));
        let selection = Selection { since: at(since), until: at(until), ..Selection::default() };
        (selection.passes(&imported()), selection.passes(&RunSummary { running: true, ..imported() }))
    };
    assert_eq!(of("", ""), (true, true));
    assert_eq!(of("10:00", "10:30"), (true, true));
    assert_eq!(of("10:30", "10:40"), (true, true), "it went on then");
    assert_eq!(of("11:30", "12:00"), (false, true), "what still goes on is not over");
    assert_eq!(of("09:00", "10:10"), (false, false));
}

#[test]
fn l17_does_not_leave_out_unreadable_runs() {
    let damaged = RunSummary::from_first_line(b"\0\0\0\n");
    let selection = Selection { stages: texts(&["import"]), ..Selection::default() };
    assert!(selection.passes(&damaged));
}

#[test]
fn l17_a_run_without_a_first_line_is_selected_by_the_time_in_its_name() {
    let run: exeat_record::RunId = "01JD8Z3V5QABCDEFGHJKMNPQRS".parse().unwrap();
    let bare = RunSummary { run: Some(run), is_bare: true, ..RunSummary::default() };
    let made = Moment::from(run.created_at());
    let before = Moment::from(run.created_at() - std::time::Duration::from_secs(60));
    let after = Moment::from(run.created_at() + std::time::Duration::from_secs(60));
    let since = |since: &Moment| Selection { since: Some(*since), ..Selection::default() };
    assert!(Selection::default().passes(&bare));
    assert!(since(&before).passes(&bare) && since(&made).passes(&bare));
    assert!(!since(&after).passes(&bare), "its time is over");
    assert!(since(&after).passes(&RunSummary { running: true, ..bare.clone() }));
    let stage = Selection { stages: texts(&["import"]), ..Selection::default() };
    assert!(!stage.passes(&bare), "nobody can tell, and nothing in it can be shown");
    assert!(stage.leaves_out_unknown(&bare) && !stage.leaves_out_unknown(&imported()));
    assert!(!Selection { since: Some(after), ..stage }.leaves_out_unknown(&bare), "its time tells");
}

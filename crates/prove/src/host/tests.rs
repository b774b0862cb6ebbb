use super::*;
use crate::attempt::{Control, Saw};
use crate::canary::{Visit, Visits};

fn attempt(control: Control) -> Attempt {
    Attempt {
        control,
        ..Attempt::new("it", "a title", &["B01"], |_| Saw::Refused(String::new())).watched(&["tcp4"])
    }
}

fn judge_control(
    control: Control,
    inside: Option<&Saw>,
    outside: Option<&Saw>,
    visits: &[Visit],
) -> Option<bool> {
    let seen = Visits { visits: visits.to_vec(), missed: false };
    judge(&attempt(control), "handoff", inside, outside, &seen, Ended::Here).held
}

#[test]
fn only_a_refusal_that_could_have_been_a_success_is_held() {
    let (out, refused, not_made) = (Saw::Out("x".into()), Saw::Refused("x".into()), Saw::NotMade("x".into()));
    let other: fn(&Spec) -> Saw = |_| Saw::Out(String::new());
    for control in [Control::Same, Control::Other(other)] {
        assert_eq!(judge_control(control, Some(&refused), Some(&out), &[]), Some(true));
        for outside in [Some(&refused), Some(&not_made), None] {
            assert_eq!(judge_control(control, Some(&refused), outside, &[]), None, "{outside:?}");
        }
        assert_eq!(judge_control(control, Some(&not_made), Some(&out), &[]), None);
    }
    assert_eq!(judge_control(Control::None, Some(&refused), None, &[]), Some(true));
    assert_eq!(judge_control(Control::None, Some(&not_made), None, &[]), None);
    for control in [Control::Same, Control::Other(other), Control::None] {
        assert_eq!(judge_control(control, Some(&out), Some(&refused), &[]), Some(false));
        // The last that the stage tried.
        assert_eq!(judge_control(control, None, Some(&out), &[]), Some(false));
    }
}

#[test]
fn a_canary_is_believed_rather_than_the_stage() {
    let refused = Saw::Refused("ECONNREFUSED".into());
    let visit = |canary: &str, said: &str| Visit { canary: canary.into(), said: said.into() };
    for (visits, expect) in [
        (vec![], Some(true)),
        (vec![visit("tcp4", "it\n")], Some(false)),
        (vec![visit("tcp4", "")], Some(false)),
        (vec![visit("tcp4", "another attempt")], Some(true)),
        (vec![visit("udp4", "it\n")], Some(true)),
    ] {
        assert_eq!(judge_control(Control::None, Some(&refused), None, &visits), expect, "{visits:?}");
    }
    assert_eq!(
        judge_control(Control::None, Some(&Saw::NotMade(String::new())), None, &[visit("tcp4", "it")]),
        Some(false)
    );
}

#[test]
fn a_canary_that_missed_somebody_shows_nothing() {
    let refused = Saw::Refused("ECONNREFUSED".into());
    let missed = Visits { missed: true, ..Visits::default() };
    let watched = attempt(Control::None);
    let not_watched = Attempt { canaries: &[], ..attempt(Control::None) };
    for (attempt, held) in [(watched, None), (not_watched, Some(true))] {
        let found = judge(&attempt, "relay", Some(&refused), None, &missed, Ended::Here);
        assert_eq!(found.held, held, "{found:?}");
    }
}

#[test]
fn lists_attempts_after_an_early_end_as_not_tried() {
    let attempt = attempt(Control::None);
    for (ended, held) in [(Ended::Here, Some(false)), (Ended::Before, None), (Ended::InTime, None)] {
        assert_eq!(judge(&attempt, "relay", None, None, &Visits::default(), ended).held, held, "{ended:?}");
    }
}

#[test]
fn names_are_once_and_in_one_shape() {
    let mut names: Vec<_> = super::super::attempts().map(|attempt| attempt.id).chain([survive::ID]).collect();
    assert!(
        names
            .iter()
            .all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'))
    );
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn one_process_that_lives_on_is_enough() {
    for (before, left, held) in
        [(4, 0, Some(true)), (4, 1, Some(false)), (2, 2, Some(false)), (1, 0, None), (0, 0, None)]
    {
        assert_eq!(survived(before, left, Duration::ZERO).1, held, "{left} of {before}");
    }
}

//! Draws a run's attempts over time.

use std::fmt::{self, Write as _};

use super::cells::{number, text};
use crate::report::data::Run;
use crate::summary::Tally;
use crate::table::duration;

/// Draws attempts over time: those let through above the line, all others below it. Colors repeat that.
pub(super) fn timeline(run: &Run, out: &mut String) -> fmt::Result {
    /// The width of the picture, in its own units; the page stretches it.
    const WIDTH: u64 = 7200;
    const HEIGHT: u64 = 1200;
    /// The margin above and below the highest bars.
    const EDGE: u64 = 30;
    /// The width of the widest bar.
    const WIDEST: u64 = 360;
    /// The height of the lowest bar, so that a single attempt is visible.
    const LOWEST: u64 = 24;
    let steps = run.timeline.steps();
    let allowed = |tally: &Tally| tally.allowed.saturating_sub(tally.failed);
    let through = |tally: &Tally| allowed(tally).saturating_add(tally.would_deny);
    let not = |tally: &Tally| tally.denied.saturating_add(tally.not_reached());
    let above = steps.iter().map(through).max().unwrap_or(0);
    let below = steps.iter().map(not).max().unwrap_or(0);
    if above == 0 && below == 0 {
        out.push_str("<p class=\"soft\">Nothing was tried.</p>\n");
        return Ok(());
    }
    // One scale for both directions makes bars comparable; the line is placed where both fit.
    let most = u128::from(above) + u128::from(below);
    let height = |count: u64| match count {
        0 => 0,
        count => {
            let room = u128::from(HEIGHT - 2 * EDGE);
            u64::try_from(u128::from(count) * room / most).unwrap_or(HEIGHT).max(LOWEST)
        }
    };
    let line = (EDGE + height(above)).min(HEIGHT - EDGE);
    let pitch = WIDTH / (steps.len() as u64).max(1);
    let bar = pitch.saturating_sub(pitch / 6).clamp(1, WIDEST);
    let length = run.timeline.step();
    let total = length.saturating_mul(steps.len() as u64);
    writeln!(
        out,
        "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        text(&format!("Attempts over {}: {} in all", duration(total), run.traffic.tally))
    )?;
    for (at, tally) in steps.iter().enumerate() {
        if *tally == Tally::default() {
            continue;
        }
        let (x, from) = (pitch * at as u64, length.saturating_mul(at as u64));
        let till = from.saturating_add(length);
        write!(out, "<g><title>{} to {}: {tally}</title>", clock(run, from), clock(run, till))?;
        let mut y = line;
        for (class, count) in [("a", allowed(tally)), ("w", tally.would_deny)] {
            let high = height(count).min(y);
            if high > 0 {
                y -= high;
                write!(
                    out,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{bar}\" height=\"{high}\"/>"
                )?;
            }
        }
        let mut y = line;
        for (class, count) in [("d", tally.denied), ("e", tally.not_reached())] {
            let high = height(count);
            if high > 0 {
                write!(
                    out,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{bar}\" height=\"{high}\"/>"
                )?;
                y += high;
            }
        }
        out.push_str("</g>\n");
    }
    write!(
        out,
        "<line class=\"l\" x1=\"0\" y1=\"{line}\" x2=\"{WIDTH}\" y2=\"{line}\"/></svg>\n\
         <div class=\"axis\"><span>{} UTC</span><span>{}</span><span>{}</span></div>\n<figcaption class=\"key\">",
        clock(run, 0),
        clock(run, total / 2),
        clock(run, total),
    )?;
    let Tally { would_deny, .. } = run.traffic.tally;
    let errors = run.traffic.tally.not_reached();
    out.push_str("<span><i class=\"a\"></i>above the line: allowed</span>");
    if would_deny > 0 {
        out.push_str("<span><i class=\"w\"></i>would be denied, and passed</span>");
    }
    out.push_str("<span><i class=\"d\"></i>below: denied</span>");
    if errors > 0 {
        out.push_str("<span><i class=\"e\"></i>failed</span>");
    }
    writeln!(
        out,
        "<span>highest: {} in {}</span></figcaption></figure>",
        number(above.max(below)),
        duration(length)
    )
}

/// Formats the clock time this many microseconds after the run began: to the second, or finer if a step is shorter.
pub(super) fn clock(run: &Run, us: u64) -> String {
    let Some(at) = run.timeline.clock(us) else { return duration(us) };
    let digits = if run.timeline.step() < 1_000_000 { 23 } else { 19 };
    text(at.as_str().get(11..digits).unwrap_or_default()).to_string()
}

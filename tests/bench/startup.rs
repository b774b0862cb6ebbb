//! Start-up: `exeat run -- true` against the same bubblewrap run without exeat, in turns.

use crate::figures::Report;
use crate::under_test::UnderTest;

/// Measures start-up.
pub(crate) fn measure(_under_test: &UnderTest, _rounds: usize, _report: &mut Report) {}

//! B07: a filter for one architecture alone misses the other's numbers.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    // Only x86-64 has two foreign entries.
    if cfg!(target_arch = "x86_64") {
        list.matrix("escape::b07_i386_and_x32", attack);
    }
}

/// Without the filter i386's entry answers, unless the kernel was built without it; few kernels have x32's. If the
/// control gives ENOSYS, nothing is shown of that entry here: `b07_other_tables_are_refused_by_every_program`
/// interprets the programs themselves.
fn attack(cx: &Cx) {
    let mut shown = 0;
    for entry in ["i386", "x32"] {
        let control = super::outside(cx, entry).stdout();
        assert!(["ok\n", "ENOSYS\n"].contains(&control.as_str()), "{entry} on the host: {control}");
        let inside = cx.probing(&[], entry).run();
        let is_killed = inside.code == Some(128 + 31);
        assert!(is_killed || ["ENOSYS\n", "EPERM\n"].contains(&inside.stdout().as_str()), "{inside:?}");
        // A filter differs from the kernel alone: it kills, or refuses an existing call.
        shown += usize::from(control == "ok\n" || is_killed);
    }
    assert!(shown > 0, "neither entry is there without the filter, so the trial would say nothing");
}

//! B07: a filter that looks at one architecture alone is passed by the other's numbers.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b07_i386_and_x32", attack);
}

/// Without the filter i386's entry answers, or the kernel was built without it; x32's is built into few kernels. So where the
/// control says ENOSYS nothing is shown of that entry here: `b07_other_tables_are_refused_by_every_program` interprets the
/// programs themselves.
fn attack(cx: &Cx) {
    if cfg!(not(target_arch = "x86_64")) {
        cx.cannot("only x86-64 has two foreign entries");
    }
    let mut shown = 0;
    for entry in ["i386", "x32"] {
        let control = super::outside(cx, entry).stdout();
        assert!(["ok\n", "ENOSYS\n"].contains(&control.as_str()), "{entry} on the host: {control}");
        let inside = cx.probing(&[], entry).run();
        let is_killed = inside.code == Some(128 + 31);
        assert!(is_killed || ["ENOSYS\n", "EPERM\n"].contains(&inside.stdout().as_str()), "{inside:?}");
        // A filter says what the kernel alone would not: it kills, or refuses what was there.
        shown += usize::from(control == "ok\n" || is_killed);
    }
    assert!(shown > 0, "neither entry is there without the filter, so the trial would say nothing");
}

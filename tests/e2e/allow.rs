//! What was granted works, unconfigured and byte for byte.

use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("allow::curl_gets_an_answer", curl_gets_an_answer);
    list.once("allow::bench_answers_without_a_sandbox", bench_answers);
}

/// The control: without a sandbox every name is reachable, so what the other trials refuse was there to be had.
fn bench_answers(cx: &Cx) {
    let url = cx.good_url();
    cx.outside(cx.curl(&url)).run().exits(0).prints(&format!("hello from {}: GET 0\n", cx.good()));
}

fn curl_gets_an_answer(cx: &Cx) {
    let done = cx.run(&[&cx.good()], cx.curl(&cx.good_url())).run();
    done.exits(0).prints(&format!("hello from {}: GET 0\n", cx.good())).silent();
}

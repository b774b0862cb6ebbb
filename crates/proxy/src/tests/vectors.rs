//! Tests the rows of `fixtures/raw_http.jsonl` over TCP and over the Unix socket. Port 443 in a row stands for the
//! port of our origin, with the same TLS check, and `http://allowed.test/` for the port of another one. Nothing
//! listens on port 80; the end-to-end tests have an origin there.

use super::*;

fn bytes_of(row: &Value, port: u16, web: u16) -> Vec<u8> {
    let text = row["bytes"].as_str().unwrap().replace(":443", &format!(":{port}"));
    let text = text.replace("://allowed.test/", &format!("://allowed.test:{web}/"));
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
}

fn contains(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

/// K37, K49; P01, P02, P03, P05, P06, P07, P08, P09, P12, P13, P15, P16, P17, P19, P21, S07: all rows on the wire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_over_both_ways() {
    let rows = include_str!("../../fixtures/raw_http.jsonl");
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() > 60);
    let mut tasks = JoinSet::new();
    for row in rows {
        for way in TRANSPORTS {
            let row = row.clone();
            tasks.spawn(async move { one(&row, way).await });
        }
    }
    let mut faults = Vec::new();
    while let Some(result) = tasks.join_next().await {
        faults.extend(result.unwrap());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn one(row: &Value, way: Transport) -> Option<String> {
    let origin = origin(b"").await;
    let port = origin.port();
    let web = http::web(http::OK).await;
    let ports = format!("80,{port},{}", web.port);
    let mut setup =
        setup(&["allowed.test:80", &format!("allowed.test:{}", web.port), &format!("127.0.0.1:{ports}")]);
    setup.limits.idle = Duration::from_secs(1); // a body of petabytes ends
    setup.rules.push((format!("allowed.test:{port}"), TlsCheck::Sni));
    let proxy = setup.start().await;
    let mut client = proxy.connect(way).await;
    let _ = client.write_all(&bytes_of(row, port, web.port)).await;
    if row["half_close_after_send"] == true {
        let _ = client.shutdown().await;
    }
    for segment in row["segments"].as_array().into_iter().flatten() {
        sleep(Duration::from_millis(segment["delay_ms"].as_u64().unwrap().min(200))).await;
        let _ = client.write_all(&bytes_of(segment, port, web.port)).await;
    }
    let reply = read_to_end(&mut *client).await; // every row ends: refused, or no hello in time
    let ended = proxy.end().await;

    // The client waits for `100 Continue` and gets it, then the answer.
    let reply = String::from_utf8_lossy(&reply).replace("HTTP/1.1 100 Continue\r\n\r\n", "");
    let status: u16 = reply.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    if status == 200 && row["bytes"].as_str().unwrap().starts_with("CONNECT") {
        // The kernel has accepted for the origin; its own task may run later.
        eventually(|| origin.connections() == 1).await;
    }
    let requests = web.requests().iter().filter(|seen| http::whole(seen.as_bytes())).count();
    let outcome = match status {
        200 if row["bytes"].as_str().unwrap().starts_with("CONNECT") => "tunnel_ok",
        200 if requests == 1 => "forwarded_ok",
        400..=499 if requests == 0 => "refused_4xx",
        502 if row["bytes"].as_str().unwrap().contains(":80 HTTP") => "tunnel_ok",
        0 if !web.requests().is_empty() && row["id"] == "k10" => "partial_ok",
        0 => "closed_without_upstream",
        _ => "other",
    };
    let allows = |word: &str| {
        row["expect"] == word || row["also_ok"].as_array().is_some_and(|also| also.contains(&word.into()))
    };
    let expected = allows(outcome);
    let whole = web.requests().concat();
    let seen = origin.bytes();
    let leaked = row["must_not_reach_upstream"]
        .as_array()
        .unwrap()
        .iter()
        .any(|text| contains(&seen, text.as_str().unwrap()) || whole.contains(text.as_str().unwrap()));
    let decisions = ended.decisions();
    let one_decision = match decisions.as_slice() {
        [_] => true,
        [allow, deny] => allow == "allow:rule" && deny.starts_with("deny:"),
        _ => false,
    };
    ended.closes_follow_decisions();
    let sound = expected
        && !leaked
        && seen.is_empty()
        && one_decision
        && (outcome == "tunnel_ok" && status == 200) == (origin.connections() == 1)
        && reply.matches("HTTP/1.1 ").count() == usize::from(status != 0)
        && ended.asked.iter().all(|name| name == "allowed.test");
    (!sound).then(|| format!("{} over {way:?}: {outcome} {status}, {decisions:?}, {reply:?}", row["id"]))
}

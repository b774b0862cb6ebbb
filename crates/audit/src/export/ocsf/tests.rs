use serde_json::json;

use super::*;

/// Returns the event of one version for a decision with some more fields.
fn event(version: Version, fields: &Value) -> Value {
    try_event(version, fields).expect("an event")
}

fn try_event(version: Version, fields: &Value) -> Option<Value> {
    let mut line = json!({
        "schema": "egress/1", "seq": 4, "ts": "2026-11-21T10:20:32.123456Z", "mono_us": 7, "event": "decision",
        "run": "01JD8Z3V5QABCDEFGHJKMNPQRS",
    });
    for (key, value) in fields.as_object().unwrap() {
        line[key] = value.clone();
    }
    Ocsf::new(version).event(&Record::parse(line.to_string().as_bytes()).unwrap())
}

#[test]
fn verdicts_have_their_numbers() {
    for (verdict, ip, expected) in [
        ("allow", None, json!([400_101, 1, 1, 1, 1])),
        ("would_deny", None, json!([400_101, 1, 17, 1, 2])),
        ("deny", None, json!([400_105, 2, 2, 2, 3])),
        ("deny", Some("192.0.2.7"), json!([400_103, 2, 2, 2, 3])),
        ("error", None, json!([400_104, 1, 27, 2, 2])),
        ("perhaps", None, json!([400_100, 0, 0, 0, 0])),
    ] {
        let event = event(Version::V1_3, &json!({"via": "connect", "verdict": verdict, "ip": ip}));
        let ids = ["type_uid", "action_id", "disposition_id", "status_id", "severity_id"];
        assert_eq!(json!(ids.map(|id| event[id].clone())), expected, "{verdict} {ip:?}");
    }
}

#[test]
fn bytes_keep_their_direction() {
    let event = event(
        Version::V1_3,
        &json!({"event": "close", "host": "a.example", "port": 443, "bytes_up": 7, "bytes_down": 9, "dur_us": 2_500_000}),
    );
    assert_eq!(event["traffic"], json!({"bytes_out": 7, "bytes_in": 9, "bytes": 16}));
    assert_eq!(event["duration"], 2500);
    assert_eq!(event["time"].as_i64().unwrap() - event["start_time"].as_i64().unwrap(), 2500);
}

/// A number that OCSF's `long_t` cannot hold becomes the largest one that it can.
#[test]
fn hostile_numbers_stay_in_their_type() {
    let event = event(
        Version::V1_3,
        &json!({"event": "close", "bytes_up": u64::MAX, "bytes_down": u64::MAX, "dur_us": u64::MAX, "seq": u64::MAX}),
    );
    assert_eq!(event["traffic"]["bytes"], i64::MAX);
    assert_eq!(event["metadata"]["sequence"], i64::MAX);
}

/// Before 1.5, HTTP Activity requires an answer's status, which exeat does not record.
#[test]
fn plain_http_is_http_activity_where_that_needs_no_answer() {
    let get = json!({"via": "http", "method": "GET", "host": "a.example", "port": 80, "verdict": "allow"});
    for version in [Version::V1_1, Version::V1_3] {
        let event = event(version, &get);
        assert_eq!(event["class_uid"], 4001);
        assert_eq!(event["proxy_http_request"]["http_method"], "GET");
        assert_eq!(event["url"]["url_string"], "http://a.example:80");
    }
    let new = event(Version::V1_5, &get);
    assert_eq!((&new["class_uid"], &new["activity_id"]), (&json!(4002), &json!(3)));
    assert_eq!(new["http_request"]["http_method"], "GET");
}

#[test]
fn methods_beyond_the_list_are_other() {
    let patch =
        json!({"via": "http", "method": "PATCH", "host": "a.example", "port": 80, "verdict": "allow"});
    let old = event(Version::V1_5, &patch);
    assert_eq!((&old["activity_id"], &old["activity_name"]), (&json!(99), &json!("PATCH")));
    assert_eq!(old["unmapped"]["method"], "PATCH");
    assert_eq!(event(Version::V1_8, &patch)["activity_id"], 9);
}

/// The address in a `close` may be the company's proxy, which is not the origin's address.
#[test]
fn another_proxys_address_is_not_the_origins() {
    let mut exporter = Ocsf::new(Version::V1_3);
    let mut line = |fields: Value| {
        let mut line =
            json!({"schema": "egress/1", "seq": 0, "ts": "2026-11-21T10:20:32Z", "mono_us": 0, "run": "R"});
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        exporter.event(&Record::parse(line.to_string().as_bytes()).unwrap())
    };
    let close = json!({"event": "close", "host": "a.example", "port": 443, "ip": "192.0.2.7"});
    assert_eq!(line(close.clone()).unwrap()["dst_endpoint"]["ip"], "192.0.2.7");
    line(json!({"event": "run_start", "upstream": "proxy.example:3128", "version": "0.1.0"})).unwrap();
    let event = line(close).unwrap();
    assert_eq!(event["dst_endpoint"]["ip"], Value::Null);
    assert_eq!(event["unmapped"]["ip"], "192.0.2.7");
    assert_eq!(event["metadata"]["product"]["version"], "0.1.0");
    let decision = json!({"event": "decision", "via": "connect", "verdict": "allow", "host": "a.example", "port": 443,
        "upstream": "proxy.example:3128"});
    let next = line(decision).unwrap()["proxy_endpoint"]["proxy_endpoint"].clone();
    assert_eq!(next, json!({"hostname": "proxy.example", "port": 3128}));
}

#[test]
fn who_asked_is_the_actor() {
    let asked = json!({"via": "connect", "verdict": "deny", "exe": "/usr/bin/curl", "pid": 7, "ppid": 6});
    let event = event(Version::V1_3, &asked);
    assert_eq!(event["actor"]["process"]["file"]["path"], "/usr/bin/curl");
    assert_eq!(event["actor"]["process"]["name"], "curl");
    assert_eq!(event["actor"]["process"]["parent_process"]["pid"], 6);
    assert_eq!(event["metadata"]["profiles"], json!(["security_control", "network_proxy", "host"]));
}

/// Each event says who started the run and where; what the schema has no place for is in `unmapped`.
#[test]
fn a_run_tells_who_started_it() {
    let run = |version, lines: &[Value]| {
        let mut exporter = Ocsf::new(version);
        let event = |fields: &Value| {
            let mut line = json!({"schema": "egress/1", "seq": 0, "ts": "2026-11-21T10:20:32Z", "mono_us": 0, "run": "R"});
            line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            exporter.event(&Record::parse(line.to_string().as_bytes()).unwrap())
        };
        lines.iter().map(event).fold(None, |_, event| event).unwrap()
    };
    let start = json!({"event": "run_start", "user": "ada", "machine": "build-7.example", "dir": "/src/app",
        "trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"});
    let get = json!({"event": "decision", "via": "http", "method": "GET", "host": "a.example", "port": 80, "verdict": "deny"});
    for version in Version::ALL {
        let event = run(version, &[start.clone(), get.clone()]);
        assert_eq!(event["actor"], json!({"user": {"name": "ada"}}));
        assert_eq!(event["device"], json!({"hostname": "build-7.example", "type_id": 0, "type": "Unknown"}));
        assert_eq!(event["unmapped"]["dir"], "/src/app");
        assert_eq!(event["unmapped"]["span_id"], "b7ad6b7169203331");
        assert_eq!(event["metadata"]["correlation_uid"], "R");
        let has = |name: &str| event["metadata"]["profiles"].as_array().unwrap().contains(&json!(name));
        assert!(has("host"));
        let new = version >= Version::V1_5;
        assert_eq!(has("trace"), new);
        let place = if new { &event["trace"]["uid"] } else { &event["unmapped"]["trace_id"] };
        assert_eq!(place, "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(new, event["unmapped"].get("trace_id").is_none());
    }
    // The process stands with the user; an invalid host name; and another run in the same file, without a first line.
    let asked = json!({"event": "decision", "via": "connect", "verdict": "deny", "pid": 7});
    let event = run(
        Version::V1_8,
        &[json!({"event": "run_start", "user": "ada", "machine": "my_pc"}), asked.clone()],
    );
    assert_eq!(event["actor"], json!({"user": {"name": "ada"}, "process": {"pid": 7}}));
    assert_eq!(event["device"]["name"], "my_pc");
    let mut other = asked;
    other["run"] = json!("S");
    let event = run(Version::V1_8, &[start, other]);
    assert_eq!((&event["actor"], event.get("device")), (&json!({"process": {"pid": 7}}), None));
}

#[test]
fn a_line_without_a_time_is_none() {
    assert_eq!(try_event(Version::V1_3, &json!({"ts": "yesterday"})), None);
}

#[test]
fn names_go_where_their_pattern_allows() {
    for (host, key) in [
        ("a.example", "hostname"),
        ("_acme.a.example", "name"),
        ("a-.example", "name"),
        ("2001:db8::1", "ip"),
        ("192.0.2.1", "ip"),
    ] {
        let event =
            event(Version::V1_3, &json!({"via": "connect", "verdict": "deny", "host": host, "port": 443}));
        assert_eq!(event["dst_endpoint"], json!({key: host, "port": 443}));
    }
}

#[test]
fn versions_are_read_as_they_are_written() {
    for version in Version::ALL {
        assert_eq!(version.to_string().parse(), Ok(version));
    }
    assert_eq!("1.2".parse::<Version>(), Err(UnknownVersion));
}

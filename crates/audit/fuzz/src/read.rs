//! Gives any bytes to everything that reads records: nothing panics, all output is printable, and a policy or lock made from them
//! grants what it says.

use exeat_audit::export::{Exporter, export, ocsf};
use exeat_audit::learn::{Known, Learned};
use exeat_audit::lock::lock;
use exeat_audit::query::{Filter, Reader};
use exeat_audit::summary::{self, Form, Sort, Summary};
use exeat_audit::{table, verify::verify};
use exeat_record::lock::Lock;

pub fn check(data: &[u8]) {
    let reader = || Reader::new(data);
    let filter = Filter::default();
    let mut out = Vec::new();
    table::show(&mut reader(), &filter, &mut out, false).unwrap();
    printable(&out);
    out.clear();
    table::show_json(&mut reader(), &filter, &mut out).unwrap();
    printable(&out);
    let report = verify(data, None, &[]).unwrap();
    report.findings.iter().for_each(|finding| printable(finding.to_string().as_bytes()));

    let mut summary = Summary::default();
    summary.read(&mut reader(), &filter).unwrap();
    summary.finish().unwrap();
    for form in [Form::Text { color: false }, Form::Json, Form::Markdown, Form::GitHub] {
        out.clear();
        summary::write(&summary, form, Sort::Up, &mut out).unwrap();
        printable(&out);
    }

    for version in [ocsf::Version::V1_1, ocsf::Version::V1_8] {
        out.clear();
        let mut exporter: Box<dyn Exporter> = Box::new(ocsf::Ocsf::new(version));
        export(&mut reader(), &Filter::default(), &mut *exporter, &mut out, false).unwrap();
        printable(&out);
        for line in out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            serde_json::from_slice::<serde_json::Value>(line).unwrap();
        }
    }

    let mut reached = Summary::for_grants();
    reached.read(&mut reader(), &filter).unwrap();
    reached.finish().unwrap();
    let learned = Learned::new(&reached);
    for denied in [false, true] {
        let today = "2026-01-01".parse().unwrap();
        let known = Known { policy: None, host_ports: &[], denied, today };
        // `policy_file` parses what it prints and compares.
        let text =
            learned.policy_file(&known).unwrap_or_else(|_| panic!("a policy that grants something else"));
        printable(text.as_bytes());
    }
    let text = lock(&reached).unwrap().render();
    printable(text.as_bytes());
    assert_eq!(Lock::parse(&text).unwrap().render(), text);
}

fn printable(bytes: &[u8]) {
    let odd = bytes.iter().position(|byte| !matches!(byte, b'\n' | 0x20..=0x7e));
    assert_eq!(odd, None, "{}", String::from_utf8_lossy(bytes));
}

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exeat_audit_fuzz::edit::check(data));

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exeat_policy_fuzz::target::check(data));

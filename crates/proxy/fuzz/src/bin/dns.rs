#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exeat_proxy_fuzz::checks::dns(data));

//! libFuzzer around the target `app_reply` of crate `fuzz-targets`; owns nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::target("app_reply")(bytes));

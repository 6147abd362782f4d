//! libFuzzer around the target `operation` of crate `fuzz-targets`; owns nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::target("operation")(bytes));

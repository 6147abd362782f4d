//! libFuzzer around the target `mpa_startup` of crate `fuzz-targets`; owns nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::target("mpa_startup")(bytes));

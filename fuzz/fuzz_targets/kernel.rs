//! libFuzzer around the target `kernel` of crate `fuzz-targets`; owns nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::target("kernel")(bytes));

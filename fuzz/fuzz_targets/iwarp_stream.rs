//! libFuzzer around the target `iwarp_stream` of crate `fuzz-targets`; owns nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::target("iwarp_stream")(bytes));

//! libFuzzer around the target `sealed_packet` of crate `fuzz-targets`; owns nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::target("sealed_packet")(bytes));

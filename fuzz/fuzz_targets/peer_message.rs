//! libFuzzer around the target `peer_message` of crate `fuzz-targets`; owns nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::target("peer_message")(bytes));

//! Words and rates for numbers of the header.

use std::ffi::{CStr, c_char, c_int};

/// `enum ibv_rate` with its rate in Mbit/s and in multiples of 2.5 Gbit/s, -1 where that is no whole number.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 2_500, 1),
    (5, 5_000, 2),
    (3, 10_000, 4),
    (6, 20_000, 8),
    (4, 30_000, 12),
    (7, 40_000, 16),
    (8, 60_000, 24),
    (9, 80_000, 32),
    (10, 120_000, 48),
    (11, 14_062, 6),
    (12, 56_250, 22),
    (13, 112_500, 45),
    (14, 168_750, 67),
    (15, 25_781, 10),
    (16, 103_125, 41),
    (17, 206_250, 82),
    (18, 309_375, 124),
    (19, 28_125, 11),
    (20, 53_125, 21),
    (21, 425_000, 170),
    (22, 637_500, 255),
    (23, 850_000, 340),
    (24, 1_275_000, 510),
];
/// `IBV_RATE_MAX`: no bound.
const RATE_MAX: c_int = 0;

fn word(words: &'static [&'static CStr], number: c_int) -> *const c_char {
    usize::try_from(number).ok().and_then(|number| words.get(number)).unwrap_or(&c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    let words = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(words, node_type)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    let words = &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    word(words, state)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    let words = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    word(words, event)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    let words = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    word(words, status)
}

fn rate(is_it: impl Fn(&(c_int, c_int, c_int)) -> bool) -> Option<(c_int, c_int, c_int)> {
    RATES.into_iter().find(|rate| is_it(rate))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(number: c_int) -> c_int {
    rate(|(known, ..)| *known == number).map_or(-1, |(.., mult)| mult)
}

#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    rate(|(.., known)| *known == mult).map_or(RATE_MAX, |(number, ..)| number)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(number: c_int) -> c_int {
    rate(|(known, ..)| *known == number).map_or(-1, |(_, mbps, _)| mbps)
}

#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    rate(|(_, known, _)| *known == mbps).map_or(RATE_MAX, |(number, ..)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_both_ways_and_unknown_numbers_have_words() {
        for (number, mbps, mult) in RATES {
            assert_eq!((ibv_rate_to_mbps(number), mbps_to_ibv_rate(mbps)), (mbps, number));
            assert_eq!((ibv_rate_to_mult(number), mult_to_ibv_rate(mult)), (mult, number));
        }
        assert_eq!((ibv_rate_to_mult(1), mult_to_ibv_rate(3), mbps_to_ibv_rate(0)), (-1, 0, 0));
        let text = |word: *const c_char| {
            // SAFETY: a word of this module, which ends with a zero.
            unsafe { CStr::from_ptr(word) }.to_str().unwrap()
        };
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_event_type_str(16)), "last WQE reached");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!([-1, 999].map(|n| text(ibv_wc_status_str(n))), ["unknown"; 2]);
    }
}

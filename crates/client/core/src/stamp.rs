//! The stamp of what the other side has said: a number in place of many words (see [`crate::Endpoint::stamp`]).

/// One number of many, all but surely another one for other words.
#[inline]
pub(crate) fn mixed(words: &[u64]) -> u64 {
    let mut mixed = 0u64;
    for word in words {
        // Odd, so that no bit is lost: the golden ratio's fraction.
        mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    mixed
}

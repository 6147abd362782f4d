//! When an application wrote bytes that the engine looks at: one word of its slot.
//!
//! Owns which bytes of a stream are looked at, and the form of that word. It must never read a clock: both sides bring
//! the time of the one that all processes of a host share.

/// Bytes of a stream from one that is looked at to the next.
pub const MARK_BYTES: u64 = 16 << 10;
/// Bits of the word that number the byte; the others are nanoseconds.
const NUMBER_BITS: u32 = 16;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const TIME_MASK: u64 = u64::MAX >> NUMBER_BITS;
/// What was written longer ago was not: it is a lie, or the clock of another time namespace.
const AGO_NS_MAX: u64 = 60_000_000_000;

/// The first byte from `from` to before `to` that is looked at.
#[inline]
pub fn mark(from: u64, to: u64) -> Option<u64> {
    let first = from.wrapping_add(MARK_BYTES - 1) & !(MARK_BYTES - 1);
    (from <= first && first < to).then_some(first)
}

/// The word for the byte `mark`, written at `now_ns`. Never 0, which says that nothing is known.
#[inline]
pub fn written_word(mark: u64, now_ns: u64) -> u64 {
    ((now_ns & TIME_MASK).max(1) << NUMBER_BITS) | ((mark / MARK_BYTES) & NUMBER_MASK)
}

/// Which of the bytes from `from` to before `to` the word speaks of, and when it was written, at most a minute before
/// `now_ns`. None: of none of them, or not credibly.
pub fn written_at(word: u64, (from, to): (u64, u64), now_ns: u64) -> Option<(u64, u64)> {
    let first = mark(from, to)?;
    let ahead = (word & NUMBER_MASK).wrapping_sub(first / MARK_BYTES) & NUMBER_MASK;
    let mark = first.checked_add(ahead * MARK_BYTES).filter(|mark| *mark < to)?;
    let ago = now_ns.wrapping_sub(word >> NUMBER_BITS) & TIME_MASK;
    (word != 0 && ago <= AGO_NS_MAX).then(|| (mark, now_ns.saturating_sub(ago)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn a_word_is_of_the_bytes_that_it_names_and_of_no_others() {
        let at = 5 * MARK_BYTES;
        let word = written_word(at, 1000);
        assert_eq!(written_at(word, (at, at + 1), 1700), Some((at, 1000)));
        assert_eq!(written_at(word, (0, 1 << 20), 1700), Some((at, 1000)), "one of many");
        assert_eq!(written_at(word, (at + 1, 1 << 20), 1700), None, "it is taken already");
        assert_eq!(written_at(word, (0, at), 1700), None, "it is not there yet");
        assert_eq!(written_at(word, (1, 2), 1700), None, "nothing is looked at");
        assert_eq!(written_at(0, (0, 1), 1700), None, "nothing was written");
        let far = (1 << 50) + 3 * MARK_BYTES;
        assert_eq!(
            written_at(written_word(far, 9), (far - 1, far + 1), 9),
            Some((far, 9)),
            "beyond the numbers of a word"
        );
        assert_eq!(written_at(u64::MAX, (u64::MAX - 5, u64::MAX), 0), None);
        assert_eq!(written_at(u64::MAX, (0, u64::MAX), u64::MAX), Some((0xffff * MARK_BYTES, u64::MAX)));
    }

    #[test]
    fn times_pass_the_end_of_a_word_and_those_that_cannot_be_are_none() {
        let days = 78 * HOUR + 191 * 1_000_000_000;
        for now in [1, HOUR, days, 10 * days, TIME_MASK, TIME_MASK + 5, (1 << 60) + 3] {
            let word = written_word(0, now);
            assert_eq!(written_at(word, (0, 1), now + 7), Some((0, now)), "{now}");
            assert_eq!(written_at(word, (0, 1), now + AGO_NS_MAX + 1), None, "{now}: too long ago");
            assert_eq!(written_at(word, (0, 1), now - 1), None, "{now}: not yet");
        }
    }
}

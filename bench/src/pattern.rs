//! What stands in memory that is read at random: each page begins with a word that says which page it is, so that a
//! READ from a wrong place is noticed.

/// Bytes between two words.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// The word at the beginning of the page at `offset`.
pub(crate) fn word(offset: u64) -> u64 {
    (offset / PAGE_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed
}

/// Offsets of all pages of so many bytes.
pub(crate) fn pages(bytes: u64) -> impl Iterator<Item = u64> {
    (0..bytes).step_by(PAGE_BYTES as usize)
}

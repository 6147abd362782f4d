//! What the application of a star of bare relays writes before each message: for which leaf it is, and how long.

/// Bytes of it.
pub(crate) const HEAD_BYTES: usize = 8;

/// Writes it.
pub(crate) fn head(leaf: u32, bytes: u32) -> [u8; HEAD_BYTES] {
    (u64::from(leaf) << 32 | u64::from(bytes)).to_be_bytes()
}

/// Reads it.
pub(crate) fn parse_head(head: [u8; HEAD_BYTES]) -> (usize, usize) {
    let word = u64::from_be_bytes(head);
    ((word >> 32) as usize, (word & u64::from(u32::MAX)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        for (leaf, bytes) in [(0, 0), (199, 16 << 10), (u32::MAX, u32::MAX)] {
            assert_eq!(parse_head(head(leaf, bytes)), (leaf as usize, bytes as usize));
        }
    }
}

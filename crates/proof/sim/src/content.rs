//! The bytes that simulated applications write: a function of connection, direction and offset.
//!
//! A reader that knows which connection it holds can so check each byte alone, and a byte of another connection, of
//! another direction or of another place cannot pass for the right one. It must never keep what was written.

/// Mixes 64 bits so that near inputs have far outputs (splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn word(key: u64, index: u64) -> [u8; 8] {
    mix(key ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
}

/// Writes the bytes `offset..` of the stream `key`.
pub(crate) fn fill(key: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let from = (at % 8) as usize;
        let count = rest.len().min(8 - from);
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&word(key, at / 8)[from..from + count]);
        at += count as u64;
        rest = later;
    }
}

/// Where `bytes` first differ from the bytes `offset..` of the stream `key`.
pub(crate) fn first_difference(key: u64, offset: u64, bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < bytes.len() {
        let from = ((offset + at as u64) % 8) as usize;
        let count = (bytes.len() - at).min(8 - from);
        let right = &word(key, (offset + at as u64) / 8)[from..from + count];
        if &bytes[at..at + count] != right {
            return bytes[at..at + count].iter().zip(right).position(|(a, b)| a != b).map(|i| at + i);
        }
        at += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_is_as_in_the_whole_and_one_wrong_byte_is_found() {
        let mut whole = [0u8; 200];
        fill(7, 0, &mut whole);
        for (from, to) in [(0, 200), (1, 9), (3, 4), (8, 16), (13, 187), (5, 5)] {
            let mut piece = vec![0u8; to - from];
            fill(7, from as u64, &mut piece);
            assert_eq!(piece, whole[from..to]);
            assert_eq!(first_difference(7, from as u64, &piece), None);
            for i in 0..piece.len() {
                let mut wrong = piece.clone();
                wrong[i] ^= 0x40;
                assert_eq!(first_difference(7, from as u64, &wrong), Some(i));
            }
        }
        assert!(first_difference(8, 0, &whole).is_some(), "another connection");
        assert!(first_difference(7, 8, &whole).is_some(), "another place");
    }
}

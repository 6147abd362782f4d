//! The frame around a DDP segment (RFC 5044 section 4): length, segment, padding to four bytes, CRC.
//!
//! ```text
//! | ULPDU length (2) | ULPDU: DDP segment | pad 0..=3 | CRC32C (4) |
//! ```
//! The CRC field is there even where both ends do not use it; then it is sent as zero and not looked at.

/// Bytes of the length field.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of the CRC field.
pub const CRC_BYTES: usize = 4;
/// Longest frame without markers: a segment of 65,535 bytes.
pub const FPDU_BYTES_MAX: usize = fpdu_bytes(u16::MAX as usize);

/// Bytes of padding after a segment.
pub const fn pad_bytes(ulpdu_bytes: usize) -> usize {
    (LENGTH_BYTES + ulpdu_bytes).wrapping_neg() & 3
}

/// Bytes after a segment: padding and CRC.
pub const fn trailer_bytes(ulpdu_bytes: usize) -> usize {
    pad_bytes(ulpdu_bytes) + CRC_BYTES
}

/// Bytes of the whole frame.
pub const fn fpdu_bytes(ulpdu_bytes: usize) -> usize {
    LENGTH_BYTES + ulpdu_bytes + trailer_bytes(ulpdu_bytes)
}

/// The CRC field for what comes before it in a frame: CRC32C with the byte order of iSCSI (RFC 5044 section 4.4, RFC
/// 3720 section 12.1). Markers within the frame, and one right before it, are covered.
pub fn crc(covered: &[u8]) -> [u8; CRC_BYTES] {
    crc32c::crc32c(covered).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        for (ulpdu, pad, whole) in [(14, 0, 20), (15, 3, 24), (16, 2, 24), (17, 1, 24), (18, 0, 24), (42, 0, 48)] {
            assert_eq!((pad_bytes(ulpdu), fpdu_bytes(ulpdu)), (pad, whole), "{ulpdu}");
            assert_eq!(trailer_bytes(ulpdu), pad + 4);
        }
        assert_eq!(FPDU_BYTES_MAX, 2 + 65_535 + 3 + 4);
    }

    /// RFC 3720 appendix B.4: 32 bytes of zeros, of ones, and ascending.
    #[test]
    fn crc_bytes_of_iscsi() {
        assert_eq!(crc(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
    }
}

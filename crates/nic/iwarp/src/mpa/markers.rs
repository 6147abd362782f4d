//! Markers for a peer that asks for them (RFC 5044 section 4.3): every 512 bytes of the stream, four bytes that say how
//! far back the frame begins in which they stand. This end never asks for them.

/// Distance of markers in the stream.
const MARKER_SPACING: usize = 512;
/// Bytes of a marker.
const MARKER_BYTES: usize = 4;

/// Where the next marker stands, counted from the first byte after the startup exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Markers {
    /// Stream bytes until the next marker; the first one stands at the first byte of the first frame.
    until: usize,
}

impl Markers {
    /// Appends `frame`, which lacks its CRC, to `out` with markers, and then the CRC over both; `crc` makes its four
    /// bytes.
    pub fn frame(&mut self, frame: &[u8], out: &mut Vec<u8>, crc: impl FnOnce(&[u8]) -> [u8; 4]) {
        let start = out.len();
        // A marker at the border of two frames belongs to the second, and points to the byte behind itself.
        let head = if self.until == 0 { start + MARKER_BYTES } else { start };
        self.put(frame, head, out);
        let field = crc(&out[start..]);
        self.put(&field, head, out);
    }

    fn put(&mut self, mut bytes: &[u8], head: usize, out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.until == 0 {
                let back = u16::try_from(out.len().saturating_sub(head)).unwrap_or(u16::MAX);
                out.extend([0, 0]);
                out.extend(back.to_be_bytes());
                self.until = MARKER_SPACING - MARKER_BYTES;
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.until));
            out.extend_from_slice(now);
            self.until -= now.len();
            bytes = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpa::{crc, pad_bytes};

    fn send_of_24_zeros(msn: u8) -> Vec<u8> {
        let mut frame = vec![0x00, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0];
        frame.extend([0; 24]);
        assert_eq!(pad_bytes(42), 0);
        frame
    }

    /// The annotated dumps of RFC 5044 section 4.5: the first frame of a stream, with its marker in front; and one
    /// whose marker stands 20 bytes into it.
    #[test]
    fn the_frames_of_the_specification() {
        let mut out = Vec::new();
        let mut markers = Markers::default();
        markers.frame(&send_of_24_zeros(1), &mut out, crc);
        let mut expected = vec![0, 0, 0, 0];
        expected.extend(send_of_24_zeros(1));
        expected.extend([0x52, 0x23, 0x99, 0x83]);
        assert_eq!(out, expected);

        let mut out = Vec::new();
        Markers { until: 20 }.frame(&send_of_24_zeros(2), &mut out, crc);
        let mut expected = send_of_24_zeros(2);
        expected.splice(20..20, [0, 0, 0, 0x14]);
        expected.extend([0x84, 0x92, 0x58, 0x98]);
        assert_eq!(out, expected);
    }

    #[test]
    fn markers_stand_every_512_bytes_and_point_to_their_frame() {
        let (mut out, mut heads) = (Vec::new(), Vec::new());
        let mut markers = Markers::default();
        for len in [2, 506, 510, 512, 514, 1500, 4, 40_000] {
            let at = out.len();
            heads.push(if at % MARKER_SPACING == 0 { at + MARKER_BYTES } else { at });
            markers.frame(&vec![0xab; len], &mut out, |_| [0xcc; 4]);
        }
        for at in (0..out.len()).step_by(MARKER_SPACING) {
            let head = heads.iter().rev().find(|h| **h <= at + MARKER_BYTES).unwrap();
            let back = at.saturating_sub(*head) as u16;
            assert_eq!(out[at..at + 2], [0, 0]);
            assert_eq!(out[at + 2..at + 4], back.to_be_bytes(), "marker at {at}, frame at {head}");
        }
    }
}

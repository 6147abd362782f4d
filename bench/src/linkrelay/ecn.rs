//! Marks of congestion in IP headers (RFC 3168). Reads and writes frames of whoever sends; touches nothing else.

/// The two bits of ECN: what a sender that understands marks sets, and what a queue makes of it.
const ECN: u8 = 0b11;
const CE: u8 = 0b11;
const NOT_CAPABLE: u8 = 0b00;
const ETHERNET: usize = 14;

/// Sets Congestion Experienced where the sender declared that it understands it; says whether the frame carries it
/// then.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    match frame.get(12..ETHERNET) {
        Some([0x08, 0x00]) => mark_v4(&mut frame[ETHERNET..]),
        Some([0x86, 0xdd]) => mark_v6(&mut frame[ETHERNET..]),
        _ => false,
    }
}

/// The bits are the last of the second byte; a header check sum covers them.
fn mark_v4(packet: &mut [u8]) -> bool {
    let Some(header) = packet.get_mut(..20) else { return false };
    let old = header[1];
    if old & ECN == NOT_CAPABLE {
        return false;
    }
    header[1] = old | CE;
    // RFC 1624: the sum of the header changes by what the 16-bit word changes by.
    let sum = u16::from_be_bytes([header[10], header[11]]);
    let word = |low: u8| u32::from(u16::from_be_bytes([header[0], low]));
    let mut new = u32::from(!sum) + (0xffff - word(old)) + word(header[1]);
    while new > 0xffff {
        new = (new & 0xffff) + (new >> 16);
    }
    header[10..12].copy_from_slice(&(!(new as u16)).to_be_bytes());
    true
}

/// The traffic class is the byte that the first two share; its last bits are bits 4 and 5 of the second.
fn mark_v6(packet: &mut [u8]) -> bool {
    let Some(second) = packet.get_mut(1) else { return false };
    if *second >> 4 & ECN == NOT_CAPABLE {
        return false;
    }
    *second |= CE << 4;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of RFC 1071's usual example, with this type of service and its check sum.
    fn v4(tos: u8) -> Vec<u8> {
        let mut packet = vec![0x45, tos, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 192, 168, 0, 1, 192, 168, 0, 199];
        let sum = sum_of(&packet);
        packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
        [&[0; 12][..], &[8, 0], &packet, &[1, 2, 3]].concat()
    }

    /// One's complement sum of all words: 0xffff over a header whose check sum is right.
    fn sum_of(header: &[u8]) -> u16 {
        let mut sum: u32 = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn capable_packets_are_marked_and_their_check_sum_stays_right() {
        for class in 0..=0x3f {
            for capable in [0b01, 0b10, 0b11] {
                let mut frame = v4(class << 2 | capable);
                assert!(mark(&mut frame));
                assert_eq!(frame, v4(class << 2 | CE));
                assert_eq!(sum_of(&frame[14..34]), 0xffff);
            }
        }
        let mut v6 = [&[0; 12][..], &[0x86, 0xdd, 0x6a, 0xbc, 0xde, 0xf0, 9, 9]].concat();
        v6[15] = 0xa1;
        let before = v6.clone();
        assert!(mark(&mut v6));
        assert_eq!((v6[15], v6[14], &v6[16..]), (0xb1, before[14], &before[16..]));
    }

    #[test]
    fn others_stay_as_they_are() {
        for frame in [v4(0xfc), vec![], vec![0; 14], v4(1)[..30].to_vec(), vec![0xff; 64]] {
            let mut marked = frame.clone();
            assert!(!mark(&mut marked));
            assert_eq!(marked, frame);
        }
    }
}

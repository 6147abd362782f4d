//! Which numbers the queue pairs of a NIC have.

use verbs::Qpn;

/// The queue pair numbers whose highest `bits` bits are `prefix`. The default is all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpnRange {
    /// The highest bits.
    pub prefix: u32,
    /// How many: 0 to 10, so that more numbers are left than a NIC has queue pairs.
    pub bits: u8,
}

impl QpnRange {
    /// A number of the range from random bits.
    pub(crate) fn draw(self, random: u32) -> Qpn {
        let free = 24 - u32::from(self.bits.min(QPN_PREFIX_BITS_MAX));
        Qpn((self.prefix << free | random & ((1 << free) - 1)) & 0xff_ffff)
    }
}

/// Bits of a prefix of queue pair numbers at most.
const QPN_PREFIX_BITS_MAX: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_prefix_and_all_others_are_drawn_without_one() {
        let range = QpnRange { prefix: 0b11_0000_0001, bits: 10 };
        for random in [0, 1, 0x3fff, 0x4000, u32::MAX] {
            assert_eq!(range.draw(random), Qpn(0b11_0000_0001 << 14 | random & 0x3fff));
            assert_eq!(QpnRange::default().draw(random), Qpn(random & 0xff_ffff));
        }
    }
}

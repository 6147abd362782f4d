//! The selective acknowledgement, which software NICs of our own send each other (docs/inside/roce.md). Its opcode is one that
//! the IBTA leaves to manufacturers.
//!
//! The PSN and the AETH are those of an acknowledgement: everything up to the PSN was executed. Behind them are numbers
//! of seven bits a byte, the low ones first (LEB128):
//!
//! * how far the highest packet that arrived is behind the PSN,
//! * how many packets behind the PSN the report leaves out, because another one tells of them, and
//! * runs of packets that arrived early and are kept, the lowest first: for each the packets that are missing before it,
//!   then those that are kept. Mostly a run takes two bytes.

/// Bytes of all runs at most; less where the path MTU is smaller.
pub const SELECTIVE_BYTES_MAX: usize = 1_024;
/// Bytes of one number at most.
const NUMBER_BYTES_MAX: usize = 4;

/// What arrived early, as the peer says; not yet judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report<'a> {
    /// Distance from the acknowledged packet to the highest that arrived.
    pub highest: u32,
    /// Packets after the acknowledged one that the runs leave out.
    pub left_out: u32,
    runs: &'a [u8],
}

impl<'a> Report<'a> {
    /// The payload of a selective acknowledgement, of which an empty one says nothing; `None` if it is longer than one
    /// may be, or begins with no numbers.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        if payload.is_empty() {
            return Some(Self { highest: 0, left_out: 0, runs: payload });
        }
        if payload.len() > SELECTIVE_BYTES_MAX {
            return None;
        }
        let mut runs = payload;
        let (highest, left_out) = (number(&mut runs)?, number(&mut runs)?);
        Some(Self { highest, left_out, runs })
    }

    /// Missing packets, then kept ones, of each run, up to the first that is not whole. The first run begins after what
    /// is left out.
    pub fn runs(self) -> impl Iterator<Item = (u32, u32)> + 'a {
        let mut rest = self.runs;
        std::iter::from_fn(move || Some((number(&mut rest)?, number(&mut rest)?)))
    }
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    let len = 1 + rest.iter().take(NUMBER_BYTES_MAX).position(|byte| byte & 0x80 == 0)?;
    let (bytes, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 7 | u32::from(byte & 0x7f)))
}

/// Writes pairs of numbers until one does not fit; says how many were written, and their bytes. The first pair is what
/// a report begins with.
pub fn write_report(pairs: impl Iterator<Item = (u32, u32)>, to: &mut [u8]) -> (usize, usize) {
    let (mut written, mut used) = (0, 0);
    for (a, b) in pairs {
        let mut bytes = [0; 2 * NUMBER_BYTES_MAX];
        let mut len = 0;
        for mut number in [a, b] {
            if number >> (7 * NUMBER_BYTES_MAX) != 0 {
                return (written, used);
            }
            loop {
                let [low, ..] = number.to_le_bytes();
                number >>= 7;
                bytes[len] = low & 0x7f | if number > 0 { 0x80 } else { 0 };
                len += 1;
                if number == 0 {
                    break;
                }
            }
        }
        let Some(slot) = to.get_mut(used..used + len) else { return (written, used) };
        slot.copy_from_slice(&bytes[..len]);
        used += len;
        written += 1;
    }
    (written, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_as_it_was_written() {
        let pairs = [(300, 5), (1, 20), (127, 128), (1 << 14, (1 << 28) - 1), (0, 0)];
        let mut bytes = [0xee; 64];
        let (written, used) = write_report(pairs.into_iter(), &mut bytes);
        assert_eq!((written, bytes[..11].to_vec()), (5, vec![0xac, 2, 5, 1, 20, 0x7f, 0x80, 1, 0x80, 0x80, 1]));
        let report = Report::parse(&bytes[..used]).expect("short");
        assert_eq!((report.highest, report.left_out), (300, 5));
        assert_eq!(report.runs().collect::<Vec<_>>(), pairs[1..]);
        let too_far = [(1, 1), (2, 1 << 28), (1, 1)];
        assert_eq!(write_report(too_far.into_iter(), &mut bytes), (1, 2), "too many to tell");
        assert_eq!(write_report(std::iter::repeat((1, 200)), &mut bytes), (21, 63), "what fits");
    }

    #[test]
    fn any_bytes_are_some_report_or_none() {
        assert!(Report::parse(&[0; 1_024]).is_some_and(|report| report.runs().count() == 511));
        assert_eq!(Report::parse(&[0; 1_025]), None);
        for bytes in [&[1][..], &[0x80; 64], &[1, 0xff, 0xff, 0xff, 0xff, 1]] {
            assert_eq!(Report::parse(bytes), None, "{bytes:?}");
        }
        for bytes in [&[][..], &[1, 1], &[1, 1, 1], &[1, 1, 1, 0x80], &[1, 1, 0xff, 0xff, 0xff, 0xff, 1]] {
            assert_eq!(Report::parse(bytes).expect("numbers").runs().count(), 0, "{bytes:?}");
        }
    }
}

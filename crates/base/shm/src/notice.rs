//! Notices: what writers tell the owner of a region, in the receive ring of one of the owner's operation queues.
//!
//! Owns the record. It has the form of a completion, so that a ring of either is read in one way; nobody submitted it.

use std::net::{IpAddr, Ipv6Addr};

use crate::operation::{COMPLETION_BYTES, CompletionRecord, OperationStatus};

/// Bytes of the writer's address behind the head.
const FROM_BYTES: usize = 16;

/// The same, as the head says it.
const FROM_BYTES_U32: u32 = 16;

/// Bytes of one notice in the ring.
pub const NOTICE_BYTES: usize = COMPLETION_BYTES + FROM_BYTES;

/// Somebody wrote to a region, and wants its owner told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// The writer's number.
    pub tag: u32,
    /// Where it wrote.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The writer's host; none: the region's own.
    pub from: Option<IpAddr>,
}

impl Notice {
    /// The head, and what follows it.
    pub fn to_parts(&self) -> ([u8; COMPLETION_BYTES], [u8; FROM_BYTES]) {
        let head = CompletionRecord {
            tag: self.tag.into(),
            status: OperationStatus::Ok,
            bytes: FROM_BYTES_U32,
            value: self.offset,
            detail: self.bytes,
        };
        let from = match self.from {
            None => Ipv6Addr::UNSPECIFIED,
            Some(IpAddr::V4(from)) => from.to_ipv6_mapped(),
            Some(IpAddr::V6(from)) => from,
        };
        (head.to_bytes(), from.octets())
    }

    /// Reads one. `None`: it is none.
    pub fn parse(head: &CompletionRecord, from: [u8; FROM_BYTES]) -> Option<Self> {
        if head.status != OperationStatus::Ok || head.bytes != FROM_BYTES_U32 {
            return None;
        }
        let from = Ipv6Addr::from(from);
        let from = (!from.is_unspecified()).then(|| IpAddr::V6(from).to_canonical());
        Some(Self { tag: u32::try_from(head.tag).ok()?, offset: head.value, bytes: head.detail, from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_of_a_notice() {
        let notice = Notice { tag: 9, offset: 0x201, bytes: 3, from: Some(IpAddr::from([10, 0, 0, 7])) };
        let (head, from) = notice.to_parts();
        let mut expected = [0; COMPLETION_BYTES];
        (expected[0], expected[12], expected[16], expected[17], expected[24]) = (9, 16, 1, 2, 3);
        assert_eq!(head, expected);
        assert_eq!(from, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7]);
        let parsed = |head: &[u8; COMPLETION_BYTES], from| Notice::parse(&CompletionRecord::parse(head)?, from);
        assert_eq!(parsed(&head, from), Some(notice));
        for own in [None, Some(IpAddr::V6(Ipv6Addr::LOCALHOST))] {
            let notice = Notice { from: own, ..notice };
            let (head, from) = notice.to_parts();
            assert_eq!(parsed(&head, from), Some(notice));
        }
        for (at, value) in [(5, 1), (8, 1), (12, 8)] {
            let mut head = head;
            head[at] = value;
            assert_eq!(parsed(&head, from), None, "byte {at}");
        }
    }
}

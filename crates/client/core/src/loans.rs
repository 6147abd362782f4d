//! Records about messages by reference: a lease for the other end, and a slice that is lent by one (docs/inside/wire.md).
//!
//! Owns their bytes. It must never take a record that cannot be for one that can.

use control::{REGION_KEY_BYTES, RegionKey};

/// Loans of a connection in one direction at a time: numbers from 0.
pub const LOANS_MAX: u32 = 64;
/// Leases of a connection in one direction at a time: places from 0.
pub const LEASES_MAX: u32 = 16;
/// Bytes of a slice that is lent, at most.
pub const LOAN_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a record behind its header.
pub(crate) const RECORD_BYTES: usize = 40;
/// Bytes of a record with its header.
pub const LOAN_RECORD_BYTES: usize = size_of::<u32>() + RECORD_BYTES;

/// The bit that no length has.
const RECORD: u32 = 1 << 31;
const LEASE: u32 = RECORD | 1;
const LOAN: u32 = RECORD | 2;
/// The next messages come by the other way: from the ring to the stream's own TCP connection, or back.
pub(crate) const OTHER_WAY: u32 = RECORD | 3;

/// A lease: what the other end opens to see the slices that name its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRecord {
    /// By which loans name it; another lease that had it before is over.
    pub place: u32,
    /// Its number at the lender's daemon.
    pub lease: u64,
    /// Bytes of the region.
    pub bytes: u64,
    /// Its key.
    pub key: RegionKey,
}

/// A message by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoanRecord {
    /// The place of the lease.
    pub place: u32,
    /// Number of the loan.
    pub loan: u32,
    /// Where the slice begins in the region.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// A record that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    Lease(LeaseRecord),
    Loan(LoanRecord),
}

pub(crate) fn is_record(header: u32) -> bool {
    matches!(header, LEASE | LOAN)
}

fn put(record: &mut [u8], at: usize, bytes: &[u8]) {
    record[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word32(record: &[u8; RECORD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| record[at + i]))
}

fn word64(record: &[u8; RECORD_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| record[at + i]))
}

impl LeaseRecord {
    /// As it goes over a connection.
    pub fn to_bytes(&self) -> [u8; LOAN_RECORD_BYTES] {
        let mut record = [0; LOAN_RECORD_BYTES];
        put(&mut record, 0, &LEASE.to_le_bytes());
        put(&mut record, 4, &self.place.to_le_bytes());
        put(&mut record, 12, &self.lease.to_le_bytes());
        put(&mut record, 20, &self.bytes.to_le_bytes());
        put(&mut record, 28, self.key.as_bytes());
        record
    }
}

impl LoanRecord {
    /// As it goes over a connection.
    pub fn to_bytes(&self) -> [u8; LOAN_RECORD_BYTES] {
        let mut record = [0; LOAN_RECORD_BYTES];
        put(&mut record, 0, &LOAN.to_le_bytes());
        put(&mut record, 4, &self.place.to_le_bytes());
        put(&mut record, 8, &self.loan.to_le_bytes());
        put(&mut record, 12, &self.offset.to_le_bytes());
        put(&mut record, 20, &self.len.to_le_bytes());
        record
    }
}

/// What a record says; none if it cannot be.
pub(crate) fn parse(header: u32, record: &[u8; RECORD_BYTES]) -> Option<Record> {
    let place = word32(record, 0);
    let is_zero = |from: usize| record[from..].iter().all(|byte| *byte == 0);
    match header {
        _ if place >= LEASES_MAX => None,
        LEASE => {
            let key: [u8; REGION_KEY_BYTES] = std::array::from_fn(|i| record[24 + i]);
            let (lease, bytes) = (word64(record, 8), word64(record, 16));
            (word32(record, 4) == 0).then_some(Record::Lease(LeaseRecord {
                place,
                lease,
                bytes,
                key: RegionKey::new(key),
            }))
        }
        LOAN => {
            let (loan, offset, len) = (word32(record, 4), word64(record, 8), word64(record, 16));
            let can_be = loan < LOANS_MAX && len <= LOAN_BYTES_MAX && offset.checked_add(len).is_some() && is_zero(24);
            can_be.then_some(Record::Loan(LoanRecord { place, loan, offset, len }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incoming;
    use crate::Next;

    fn next(bytes: &[u8]) -> Result<Option<Next>, String> {
        let mut at = 0;
        let mut incoming = Incoming::default();
        let mut read = |buf: &mut [u8]| {
            // One byte at a time, with a failure before each.
            at += 1;
            if at % 2 == 1 {
                return Err("later");
            }
            let Some(&byte) = bytes.get(at / 2 - 1) else { return Ok(0) };
            buf[0] = byte;
            Ok(1)
        };
        loop {
            match incoming.next(&mut read) {
                Err(crate::ReceiveError::Read("later")) => {}
                Err(e) => return Err(format!("{e:?}")),
                Ok(next) => return Ok(next),
            }
        }
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let lease = LeaseRecord { place: 15, lease: 7, bytes: 1 << 33, key: RegionKey::new([9; 16]) };
        assert_eq!(next(&lease.to_bytes()), Ok(Some(Next::Lease(lease))));
        let loan = LoanRecord { place: 3, loan: 63, offset: 4096, len: 1 << 20 };
        assert_eq!(next(&loan.to_bytes()), Ok(Some(Next::Loan(loan))));
        assert!(next(&loan.to_bytes()[..20]).unwrap_err().contains("Cut"));
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        let good = LoanRecord { place: 3, loan: 63, offset: 4096, len: 1 << 20 };
        let bad = [
            LoanRecord { place: LEASES_MAX, ..good },
            LoanRecord { loan: LOANS_MAX, ..good },
            LoanRecord { len: LOAN_BYTES_MAX + 1, ..good },
            LoanRecord { offset: u64::MAX, ..good },
        ];
        for loan in bad {
            assert!(next(&loan.to_bytes()).unwrap_err().contains("BadLoan"), "{loan:?}");
        }
        for (at, fault) in [(0, "Announced"), (LOAN_RECORD_BYTES - 1, "BadLoan")] {
            let mut bytes = good.to_bytes();
            bytes[at] ^= 0x40;
            assert!(next(&bytes).unwrap_err().contains(fault), "byte {at}");
        }
    }

    #[test]
    fn a_loan_comes_again_until_it_is_taken() {
        let loan = LoanRecord { place: 0, loan: 1, offset: 0, len: 10 };
        let mut wire = loan.to_bytes().to_vec();
        wire.extend(crate::message_header(2, 2).unwrap());
        wire.extend(b"hi");
        let mut rest = &wire[..];
        let mut read = |buf: &mut [u8]| {
            let count = buf.len().min(rest.len());
            buf[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            Ok::<_, ()>(count)
        };
        let mut incoming = Incoming::default();
        for _ in 0..2 {
            assert_eq!(incoming.next(&mut read), Ok(Some(Next::Loan(loan))));
        }
        assert!(incoming.receive(&mut [0; 9], &mut read).is_err(), "a caller that knows only bytes");
        incoming.take_loan();
        let mut buf = [0; 2];
        assert_eq!(incoming.receive(&mut buf, &mut read), Ok(Some(2)));
        assert_eq!(&buf, b"hi");
    }
}

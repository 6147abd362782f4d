//! Places for WRITEs on UC (docs/use/unreliable.md): those that this host has for a peer, and those that the peer has.
//!
//! Owns who may write which place when. It must never grant a place before its content was copied out, and never use a
//! byte of a place that was not copied and checked. Both ends begin again with each queue pair.

use verbs::{Access, MrId, Provider, RemoteAddr, SendOp, VerbsError};

use super::piece::PIECE_HEADER_BYTES;
use crate::frame::WritePlaces;
use crate::limits::{PIECE_BYTES_MAX, WRITE_PLACES};
use crate::numbers::{count, low, low16};
use crate::places::Places;

/// Bytes in front of a piece in a place: the CRC-32C of the piece, big-endian.
pub(crate) const CHECK_BYTES: usize = 4;

/// Puts its check in front of a piece.
pub(crate) fn check(piece: &[u8]) -> [u8; CHECK_BYTES] {
    crc32c::crc32c(piece).to_be_bytes()
}

// ---- of this host

/// A WRITE that completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landed {
    /// Its piece was copied, and is whole.
    Whole,
    /// The place does not hold what was sent.
    Spoiled,
    /// Its number was not granted, or has passed.
    Late,
}

/// Which WRITEs of the peer came, and which it may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grants {
    count: u64,
    /// Numbers below it were taken out or are lost.
    passed: u64,
    /// Numbers below it may come.
    granted: u64,
}

impl Grants {
    fn new(count: u32) -> Self {
        Self { count: count.into(), passed: 0, granted: count.into() }
    }

    /// The number of a WRITE with this immediate, if it may come.
    fn number(&self, immediate: u32) -> Option<u64> {
        let ahead = u64::from(immediate.wrapping_sub(low(self.passed)));
        (ahead < self.granted - self.passed).then(|| self.passed + ahead)
    }

    /// A SEND came behind so many WRITEs. One that is late changes nothing.
    fn pass(&mut self, writes: u16) {
        let ahead = u64::from(writes.wrapping_sub(low16(self.passed)));
        if ahead <= self.granted - self.passed {
            self.passed += ahead;
        }
    }

    /// How far the peer is to be told that it may go, if that is worth a record.
    fn owed(&self) -> Option<u64> {
        let end = self.passed + self.count;
        (end - self.granted >= (self.count / 4).max(1)).then_some(end)
    }
}

/// The places of this host into which one peer may write.
#[derive(Debug)]
pub(crate) struct OwnPlaces {
    places: Places,
    grants: Grants,
}

impl OwnPlaces {
    pub(crate) fn new<P: Provider>(nic: &mut P) -> Result<Self, VerbsError> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let places = Places::new(nic, WRITE_PLACES, PIECE_BYTES_MAX as usize, access)?;
        Ok(Self { places, grants: Grants::new(WRITE_PLACES) })
    }

    /// As the peer is told.
    pub(crate) fn told(&self) -> WritePlaces {
        let first = RemoteAddr { addr: 0, rkey: self.places.mr.rkey };
        WritePlaces { first, count: WRITE_PLACES, bytes: PIECE_BYTES_MAX }
    }

    /// To deregister it when the queue pair is gone.
    pub(crate) fn mr(&self) -> MrId {
        self.places.mr.id
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.places.region.len()
    }

    /// A WRITE of `bytes` completed: copies its piece to `out`.
    pub(crate) fn take(&mut self, immediate: u32, bytes: u32, out: &mut Vec<u8>) -> Landed {
        let Some(number) = self.grants.number(immediate) else { return Landed::Late };
        // Those before it are lost: the queue pair delivers in order.
        self.grants.passed = number + 1;
        let at = number % self.grants.count * self.places.stride;
        out.clear();
        let Some(len) = (bytes as usize).checked_sub(CHECK_BYTES).filter(|_| bytes <= PIECE_BYTES_MAX) else {
            return Landed::Spoiled;
        };
        let mut sum = [0; CHECK_BYTES];
        out.resize(len, 0);
        let is_read = self.places.region.read(at, &mut sum).is_ok()
            && self.places.region.read(at + CHECK_BYTES as u64, out).is_ok();
        if is_read && sum == check(out) { Landed::Whole } else { Landed::Spoiled }
    }

    /// A SEND came behind so many WRITEs.
    pub(crate) fn pass(&mut self, writes: u16) {
        self.grants.pass(writes);
    }

    /// See [`Grants::owed`].
    pub(crate) fn owed(&self) -> Option<u64> {
        self.grants.owed()
    }

    /// The peer was told.
    pub(crate) fn on_told(&mut self, end: u64) {
        self.grants.granted = end;
    }
}

// ---- of the peer

/// The places of the peer into which this host may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerPlaces {
    places: WritePlaces,
    next: u64,
    granted: u64,
}

impl PeerPlaces {
    /// `None`: it has none.
    pub(crate) fn new(places: WritePlaces) -> Option<Self> {
        (places.count > 0).then_some(Self { places, next: 0, granted: places.count.into() })
    }

    /// How many WRITEs left.
    pub(crate) fn sent(&self) -> u64 {
        self.next
    }

    /// Longest piece that a place takes behind its check.
    pub(crate) fn piece_bytes(&self) -> u32 {
        self.places.bytes.min(PIECE_BYTES_MAX) - count(CHECK_BYTES)
    }

    pub(crate) fn may_write(&self) -> bool {
        self.next < self.granted
    }

    /// The next WRITE, if [`Self::may_write`]; it counts as sent.
    pub(crate) fn write(&mut self) -> SendOp {
        let WritePlaces { first, count, bytes } = self.places;
        let addr = first.addr + self.next % u64::from(count) * u64::from(bytes);
        let immediate = low(self.next);
        self.next += 1;
        SendOp::WriteImm(RemoteAddr { addr, ..first }, immediate)
    }

    /// The peer grants numbers below `end`. What it grants beyond its places is none: packets that are not of this queue
    /// pair may have told it of WRITEs that were not sent.
    pub(crate) fn on_grant(&mut self, end: u64) {
        self.granted = end.min(self.next + u64::from(self.places.count)).max(self.granted);
    }
}

const _: () = assert!(CHECK_BYTES + PIECE_HEADER_BYTES < crate::limits::PIECE_BYTES_MIN as usize);

#[cfg(test)]
mod tests {
    use verbs::Rkey;

    use super::*;

    #[test]
    fn numbers_pass_once_and_in_order() {
        let mut grants = Grants::new(4);
        assert_eq!([0, 3, 4, u32::MAX].map(|i| grants.number(i)), [Some(0), Some(3), None, None]);
        grants.passed = 2;
        assert_eq!((grants.number(1), grants.number(2), grants.owed()), (None, Some(2), Some(6)));
        grants.granted = 6;
        assert_eq!((grants.number(5), grants.number(6), grants.owed()), (Some(5), None, None));
        // A SEND behind all of them, an older one, and one behind more than there are.
        for writes in [6, 3, 7] {
            grants.pass(writes);
            assert_eq!(grants.passed, 6);
        }
    }

    #[test]
    fn numbers_go_on_beyond_all_their_bits_on_the_wire() {
        for passed in [(1 << 16) - 2, (1 << 32) - 2] {
            let mut grants = Grants { count: 4, passed, granted: passed + 4 };
            assert_eq!(grants.number(passed as u32 + 1), Some(passed + 1));
            assert_eq!(grants.number((passed + 3) as u32), Some(passed + 3));
            grants.pass(1);
            assert_eq!(grants.passed, passed + 3);
        }
    }

    #[test]
    fn a_place_is_written_again_only_when_it_is_granted() {
        let first = RemoteAddr { addr: 0x1000, rkey: Rkey(7) };
        let mut peer = PeerPlaces::new(WritePlaces { first, count: 2, bytes: 0x100 }).unwrap();
        let write = |addr, number| SendOp::WriteImm(RemoteAddr { addr, rkey: Rkey(7) }, number);
        assert_eq!([peer.write(), peer.write()], [write(0x1000, 0), write(0x1100, 1)]);
        assert!(!peer.may_write());
        peer.on_grant(3);
        assert!(peer.may_write());
        assert_eq!(peer.write(), write(0x1000, 2));
        assert!(!peer.may_write());
        // Back, and beyond what there is.
        peer.on_grant(1);
        assert!(!peer.may_write());
        peer.on_grant(u64::MAX);
        assert_eq!(peer.granted, 5);
        assert_eq!(PeerPlaces::new(WritePlaces::NONE), None);
    }
}

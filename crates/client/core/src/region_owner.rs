//! An owner's region on its way to the daemon that comes after the one that ended (docs/operate/restart.md).
//!
//! Owns what the next daemon is told, and what of its answer is followed. It must never copy before the dead daemon's word
//! says that it has ended: until then accesses by others count as done in the memory that the region leaves.

use control::{OpenedRegion, Reason, RegionKey, RegionLine, RegionPath, RegionRefusal, RegionSpec};

use crate::{NewRegion, RegionMade, RegionOver, RegionPlace, at_descriptor_limit};

/// What an owner tells the next daemon of its region, and a revoke changes.
#[derive(Debug, Clone, Copy)]
pub struct RegionKnown {
    /// What opens it.
    pub key: RegionKey,
    /// Which one it is.
    pub line: RegionLine,
}

/// What the next daemon is told, for [`crate::Session::return_region`].
#[derive(Debug, Clone)]
pub struct RegionBrought {
    /// How the region was made, with the key of now.
    pub spec: RegionSpec,
    /// The epoch in which it is.
    pub epoch: u64,
    /// Which one it is.
    pub line: RegionLine,
}

/// What became of a try to bring a region to the next daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionReturn {
    /// It is there, with its bytes; the daemon is to be told [`control::Request::RegionMoved`].
    There,
    /// It is to be brought again: that daemon has ended too, or a revoke by the one before took effect late.
    Again,
    /// It ends.
    Over(RegionRefusal),
}

impl RegionKnown {
    /// A revoke has moved the region; `key` opens it from now on.
    pub fn on_moved(&mut self, key: RegionKey) {
        self.key = key;
        self.line.revokes = self.line.revokes.wrapping_add(1);
    }

    /// What the next daemon is told of the region in `place`, or why it is over.
    pub fn bring(&self, place: &RegionPlace, spec: &RegionSpec) -> Result<RegionBrought, RegionRefusal> {
        match place.check(true) {
            Ok(()) if place.is_parted() => {
                let spec = RegionSpec { key: self.key, ..spec.clone() };
                Ok(RegionBrought { spec, epoch: place.epoch, line: self.line })
            }
            // It ended before its daemon did, or that daemon has only lost this session: others may have it still.
            Ok(()) | Err(RegionOver::DaemonLost) => Err(RegionRefusal::Reason(Reason::DaemonLost)),
            Err(RegionOver::OwnerGone | RegionOver::Revoked) => Err(RegionRefusal::OwnerGone),
        }
    }
}

impl RegionReturn {
    /// The next daemon did not take it.
    pub fn refused(why: RegionRefusal) -> Self {
        match why {
            RegionRefusal::Reason(Reason::DaemonLost) => Self::Again,
            why => Self::Over(why),
        }
    }

    /// The next daemon has made memory for a region of so many bytes that was brought in an epoch. Nobody may access
    /// `place` for the owner meanwhile.
    pub fn follow(place: &mut RegionPlace, new: NewRegion, bytes: u64, from_epoch: u64) -> Self {
        let no_memory = |cause: String| Self::Over(RegionRefusal::NoMemory { bytes, cause });
        let NewRegion { opened: OpenedRegion { info, path, .. }, mapping, daemon } = new;
        let (RegionPath::Local { stamp, .. }, Some(mapping)) = (path, mapping) else {
            return no_memory(at_descriptor_limit(control::descriptor_limit()));
        };
        let made = RegionMade { stamp, epoch: info.epoch, daemon };
        match place.return_to(mapping, bytes, made, from_epoch) {
            Ok(true) => Self::There,
            Ok(false) => Self::Again,
            Err(error) => no_memory(error.to_string()),
        }
    }
}

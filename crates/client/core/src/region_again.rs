//! A handle whose daemon, or whose way to the region's host, has ended, and by which the region is to be opened again
//! (docs/operate/restart.md).
//!
//! Owns what counts as such an end, which region may be gone on with, and how long it is tried. It must never take another
//! region for that of before, nor one that was revoked.

use std::time::Duration;

use control::{Reason, RegionLine, RegionRefusal};

/// Pause after the first try; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Longest time that a daemon may give an owner for moving its region, beside a second for each [`MOVED_IN_SECOND`].
const MOVE_MAX: Duration = Duration::from_secs(60 * 60);
const MOVED_IN_SECOND: u64 = 128 << 20;

/// Whether a daemon, or the way to it, ended without a word, so that it may come back.
pub fn is_loss(reason: Reason) -> bool {
    matches!(reason, Reason::DaemonLost | Reason::PeerLost | Reason::PeerUnreachable | Reason::PeerBusy)
}

/// Whether a refusal is for now: the owner, or a daemon, may be on its way.
pub fn may_change(why: &RegionRefusal) -> bool {
    match why {
        RegionRefusal::Unknown | RegionRefusal::Busy => true,
        RegionRefusal::Reason(reason) => is_loss(*reason),
        _ => false,
    }
}

/// Which region a handle is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionIdentity {
    /// As its daemon says.
    pub line: RegionLine,
    /// Its size.
    pub bytes: u64,
}

/// What was found under the name in place of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotThatRegion {
    /// Another one.
    Another,
    /// The region, after a revoke.
    Revoked,
}

impl RegionIdentity {
    /// Whether a handle to this one may go on by a new handle to `found`.
    pub fn goes_on_as(&self, found: &Self) -> Result<(), NotThatRegion> {
        let (was, is) = (self.line, found.line);
        if (was.id, was.uid) != (is.id, is.uid) || self.bytes != found.bytes {
            return Err(NotThatRegion::Another);
        }
        if was.revokes != is.revokes { Err(NotThatRegion::Revoked) } else { Ok(()) }
    }
}

/// Tries to open a region again.
#[derive(Debug)]
pub struct RegionTries {
    pause: Duration,
    /// How long an honest daemon may say that the region is on its way.
    move_max: Duration,
}

impl RegionTries {
    /// Of a region with so many bytes.
    pub fn new(bytes: u64) -> Self {
        Self { pause: PAUSE_FIRST, move_max: MOVE_MAX + Duration::from_secs(bytes / MOVED_IN_SECOND) }
    }

    /// How long to wait for the next try, after a refusal that [may change](may_change), `since` the first one. None: it
    /// has been refused for `wait`. While the region is on its way (`is_moving`), which its daemon bounds, it is tried on,
    /// for the longest time of an honest daemon.
    pub fn pause(&mut self, since: Duration, wait: Duration, is_moving: bool) -> Option<Duration> {
        if since >= if is_moving { wait + self.move_max } else { wait } {
            return None;
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(PAUSE_MAX);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_for_so_long_and_longer_while_the_region_is_on_its_way() {
        let (wait, mut tries) = (Duration::from_secs(1), RegionTries::new(2 * MOVED_IN_SECOND));
        let pauses: Vec<u128> =
            (0..8).filter_map(|_| tries.pause(Duration::ZERO, wait, false)).map(|p| p.as_millis()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 100, 100]);
        assert_eq!(tries.pause(wait, wait, false), None);
        assert_eq!(tries.pause(2 * wait, wait, true), Some(PAUSE_MAX));
        let longest = wait + MOVE_MAX + Duration::from_secs(2);
        assert_eq!(tries.pause(longest - Duration::from_nanos(1), wait, true), Some(PAUSE_MAX));
        assert_eq!(tries.pause(longest, wait, true), None, "nobody honest takes so long");
        assert_eq!(RegionTries::new(64).pause(Duration::ZERO, Duration::ZERO, false), None, "it does not wait");
    }

    #[test]
    fn only_the_same_region_without_a_revoke_goes_on() {
        let was = RegionIdentity { line: RegionLine { id: 7, uid: 5, revokes: 2 }, bytes: 64 };
        let of = |id, uid, revokes, bytes| RegionIdentity { line: RegionLine { id, uid, revokes }, bytes };
        assert_eq!(was.goes_on_as(&was), Ok(()));
        for other in [of(8, 5, 2, 64), of(7, 6, 2, 64), of(7, 5, 2, 65), of(8, 5, 3, 64)] {
            assert_eq!(was.goes_on_as(&other), Err(NotThatRegion::Another), "{other:?}");
        }
        assert_eq!(was.goes_on_as(&of(7, 5, 3, 64)), Err(NotThatRegion::Revoked));
    }
}

//! Many TCP connections over one far and narrow path, by a congestion control that paces.
//!
//! BBR never sends with a window below four segments, and estimates a share by what it once got. Where each of many
//! connections may have only a few segments under way, that is too much for all of them: the queue before the narrow
//! link drops a fifth of what they send, and they carry 0.6 of what the same number carries with cubic, which goes down
//! to one segment. Cubic alone would lose where shares are large: at a loss of 1% it keeps 12 segments under way, and BBR
//! as many as the path takes. So connections leave BBR by what their windows are, not by their losses. Owns the question
//! and the change for one connection; its user knows how many share a path, and that they must do the same: one with BBR
//! among many with cubic takes what it likes.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;

use super::congestion::{LOST_MIN, PACED, control_of, set_unpaced};
use crate::sys::path_state::{PathState, path_state};

/// Largest window of a connection with a small share. BBR's is twice what it thinks its share to be, and at a loss of 5%
/// cubic has 5 or 6 segments under way.
const WINDOW_SMALL: u32 = 16;
/// A window says nothing before: it grows from ten segments.
const ROUND_TRIPS_OF_START: u32 = 8;

/// A connection that began with a congestion control that paces.
#[derive(Debug)]
pub struct PacedConnection {
    fd: OwnedFd,
    /// The control that it began with.
    control: String,
    is_paced: bool,
    /// How long it has been looked at.
    age: Duration,
    seen: PathState,
    is_squeezed: bool,
    start: Start,
}

/// How the control began.
#[derive(Debug, Clone, Copy)]
enum Start {
    /// Nothing held it up.
    First,
    HeldUp,
    /// It was begun once more.
    Again,
}

impl PacedConnection {
    /// `None`: its control does not pace, or the connection is gone. Holds a descriptor of its own.
    pub fn new(fd: impl AsFd) -> Option<Self> {
        let fd = fd.as_fd();
        let control = control_of(fd).filter(|control| control.starts_with(PACED))?;
        let (seen, fd) = (path_state(fd).ok()?, fd.try_clone_to_owned().ok()?);
        Some(Self { fd, control, is_paced: true, age: Duration::ZERO, seen, is_squeezed: false, start: Start::First })
    }

    /// Looks at it again, so long after the last time. Returns whether its share of the path is small: at some look since
    /// it last began to pace it had lost segments and had a small window.
    pub fn look(&mut self, pause: Duration) -> bool {
        self.age += pause;
        // One that is gone is not squeezed by others.
        if let Ok(now) = path_state(self.fd.as_fd()) {
            let is_settled = self.age >= now.round_trip * ROUND_TRIPS_OF_START;
            self.is_squeezed |= is_settled && is_squeezed(&self.seen, &now);
            self.on_held_up(now.held_up_us != self.seen.held_up_us);
            self.seen = now;
        }
        self.is_squeezed
    }

    /// Since the last look its receiver had no room at times. In its start BBR takes the rate that is left then for the
    /// path's, and gets up from there slowly. Mostly that is when a stream has just left the ring: its reader has to empty
    /// this first. So BBR begins once more when it is over.
    fn on_held_up(&mut self, is_held_up: bool) {
        match (self.start, is_held_up) {
            (Start::First, true) => self.start = Start::HeldUp,
            (Start::HeldUp, false) => {
                self.start = Start::Again;
                if self.is_paced {
                    set_unpaced(self.fd.as_fd());
                    let _ = sockopt::set_tcp_congestion(&self.fd, &self.control);
                }
            }
            _ => {}
        }
    }

    /// Goes on without pacing, or as it began.
    pub fn set_paced(&mut self, is_paced: bool) {
        if self.is_paced == is_paced {
            return;
        }
        self.is_paced = is_paced;
        self.is_squeezed = false;
        if is_paced {
            // A name that was the connection's own before is one that it may have again.
            let _ = sockopt::set_tcp_congestion(&self.fd, &self.control);
        } else {
            set_unpaced(self.fd.as_fd());
        }
    }
}

fn is_squeezed(before: &PathState, now: &PathState) -> bool {
    let again = now.retransmitted.wrapping_sub(before.retransmitted);
    again >= LOST_MIN && now.window_segments <= WINDOW_SMALL
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_losses_with_a_small_window_squeeze() {
        let state = |window_segments, retransmitted| PathState {
            round_trip: Duration::from_millis(10),
            segment_bytes: 1448,
            window_segments,
            retransmitted,
            held_up_us: 0,
        };
        assert!(is_squeezed(&state(200, 7), &state(WINDOW_SMALL, 7 + LOST_MIN)));
        assert!(!is_squeezed(&state(4, 7), &state(WINDOW_SMALL + 1, 700)), "a large share");
        assert!(!is_squeezed(&state(4, 7), &state(4, 7 + LOST_MIN - 1)), "it sends little and loses nothing");
        assert!(is_squeezed(&state(4, u32::MAX), &state(4, LOST_MIN)), "the count wraps");
    }

    #[test]
    fn a_connection_leaves_a_control_that_paces() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let control = || control_of(stream.as_fd()).unwrap();
        if !control().starts_with(PACED) {
            assert!(PacedConnection::new(&stream).is_none(), "{}", control());
            return;
        }
        let mut paced = PacedConnection::new(&stream).unwrap();
        let second = Duration::from_secs(1);
        assert!(!paced.look(second), "nothing is lost");
        // As if more had been sent again meanwhile than the connection ever has: the count wraps.
        paced.seen.retransmitted = u32::MAX - LOST_MIN;
        assert!(paced.look(second) && paced.look(second), "what it lost is not forgotten");
        assert!(control().starts_with(PACED));
        paced.set_paced(false);
        assert!(!control().starts_with(PACED), "{}", control());
        assert!(PacedConnection::new(&stream).is_none());
        paced.set_paced(true);
        assert!(control().starts_with(PACED), "it is as it began");
        assert!(!paced.look(second), "it gets another chance");
    }
}

//! Many TCP connections over one far and narrow path, by a congestion control that paces.
//!
//! BBR never sends with a window below four segments, and estimates a share by what it once got. Where each of many
//! connections may have only a few segments under way, that is too much for all of them: the queue before the narrow
//! link drops a fifth of what they send, and they carry 0.6 of what the same number carries with cubic, which goes down
//! to one segment. Cubic alone would lose where shares are large: at a loss of 1% it keeps 12 segments under way, and BBR
//! as many as the path takes. So connections leave BBR by what their windows are, not by their losses. Those to one host
//! do the same: one with BBR among many with cubic takes what it likes.
//!
//! Owns a descriptor of each stream's connection that began with a control that paces, as long as the stream lives, and
//! when they are looked at. Programs have no right to choose the control, and know nothing of each other.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;
use verbs::Time;

use super::congestion::{LOST_MIN, PACED, control_of, set_unpaced};
use crate::sys::path_state::{PathState, path_state};

/// Largest window of a connection with a small share. BBR's is twice what it thinks its share to be, and at a loss of 5%
/// cubic has 5 or 6 segments under way.
const WINDOW_SMALL: u32 = 16;
/// A window says nothing before: it grows from ten segments.
const ROUND_TRIPS_OF_START: u32 = 8;

/// How often connections are looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Fewest streams to a host that are many.
const MANY: usize = 8;
/// Where one in so many has too small a share of the path, the others have what it lacks.
const SQUEEZED_OF: usize = 3;

/// A connection that began with a congestion control that paces.
#[derive(Debug)]
struct PacedConnection {
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
    fn new(fd: impl AsFd) -> Option<Self> {
        let fd = fd.as_fd();
        let control = control_of(fd).filter(|control| control.starts_with(PACED))?;
        let (seen, fd) = (path_state(fd).ok()?, fd.try_clone_to_owned().ok()?);
        Some(Self { fd, control, is_paced: true, age: Duration::ZERO, seen, is_squeezed: false, start: Start::First })
    }

    /// Looks at it again, so long after the last time. Returns whether its share of the path is small: at some look since
    /// it last began to pace it had lost segments and had a small window.
    fn look(&mut self, pause: Duration) -> bool {
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
    fn set_paced(&mut self, is_paced: bool) {
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

/// The streams to one host.
#[derive(Debug, Default)]
struct Crowd {
    streams: BTreeMap<u64, PacedConnection>,
    has_left_pacing: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Crowds {
    crowds: BTreeMap<IpAddr, Crowd>,
    next_look: Option<Time>,
}

impl Crowd {
    /// Returns whether anybody is left.
    fn look(&mut self, lives: impl Fn(u64) -> bool) -> bool {
        self.streams.retain(|&connection, _| lives(connection));
        let count = self.streams.len();
        let squeezed = self.streams.values_mut().map(|stream| usize::from(stream.look(LOOK_PAUSE))).sum::<usize>();
        self.has_left_pacing = leaves_pacing(self.has_left_pacing, count, squeezed);
        for stream in self.streams.values_mut() {
            stream.set_paced(!self.has_left_pacing);
        }
        count > 0
    }
}

/// Whether so many streams, of which some are squeezed, go on without pacing.
fn leaves_pacing(has_left: bool, count: usize, squeezed: usize) -> bool {
    count >= MANY && (has_left || squeezed * SQUEEZED_OF >= count)
}

impl Crowds {
    /// A stream to a host gets a connection.
    pub fn add(&mut self, peer: IpAddr, connection: u64, socket: &OwnedFd, now: Time) {
        if let Some(mut paced) = PacedConnection::new(socket) {
            let crowd = self.crowds.entry(peer).or_default();
            paced.set_paced(!crowd.has_left_pacing);
            crowd.streams.insert(connection, paced);
            self.next_look.get_or_insert(now + LOOK_PAUSE);
        }
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        self.next_look
    }

    /// Looks at all of them if it is time.
    pub fn handle_timeout(&mut self, now: Time, lives: impl Fn(u64) -> bool) {
        if self.next_look.is_none_or(|at| now < at) {
            return;
        }
        self.crowds.retain(|_, crowd| crowd.look(&lives));
        self.next_look = (!self.crowds.is_empty()).then(|| now + LOOK_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

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

    #[test]
    fn many_leave_together_and_return_when_few_are_left() {
        assert!(!leaves_pacing(false, MANY - 1, MANY - 1), "they are few");
        assert!(!leaves_pacing(false, 90, 29) && leaves_pacing(false, 90, 30));
        assert!(leaves_pacing(true, MANY, 0), "without pacing nobody is squeezed");
        assert!(!leaves_pacing(true, MANY - 1, 0));
    }

    #[test]
    fn descriptors_of_streams_that_ended_are_given_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let streams = [(); 3].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (mut crowds, peer) = (Crowds::default(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        for (connection, stream) in streams.into_iter().enumerate() {
            crowds.add(peer, connection as u64, &stream.into(), Time(1));
        }
        let kept = |crowds: &Crowds| crowds.crowds.get(&peer).map_or(0, |crowd| crowd.streams.len());
        // On a host whose congestion control does not pace there is nothing to look at.
        let is_paced = crowds.deadline().is_some();
        assert_eq!(kept(&crowds), if is_paced { 3 } else { 0 });
        crowds.handle_timeout(Time(2), |_| false);
        assert_eq!(kept(&crowds), if is_paced { 3 } else { 0 }, "it is not time");
        crowds.handle_timeout(Time(1) + LOOK_PAUSE, |connection| connection == 1);
        assert_eq!(kept(&crowds), usize::from(is_paced));
        assert_eq!(crowds.deadline(), is_paced.then(|| Time(1) + LOOK_PAUSE * 2));
        crowds.handle_timeout(Time(1) + LOOK_PAUSE * 2, |_| false);
        assert_eq!((crowds.crowds.len(), crowds.deadline()), (0, None));
    }
}

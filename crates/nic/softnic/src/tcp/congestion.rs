//! Which congestion control a TCP connection between hosts uses: the host's, or on a near path that loses nothing one
//! that does not pace.
//!
//! BBR spreads segments over the round trip with a timer for each burst. On a path of microseconds that costs a fifth of
//! the processor time of a stream, and half of what it carries, and brings nothing, because nothing is lost. Where
//! segments are lost, or the path is long, pacing is worth its cost. Linux goes on to pace a connection that BBR ever
//! had (`sk_pacing_status` is never taken back), so a socket begins without it, before it connects or listens. Owns the
//! choice; without permission, or where the host's control does not pace, nothing is changed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use verbs::Time;

use super::counters::TcpCounters;
use crate::sys::path_state::{PathState, path_state};

/// Controls of Linux that pace, by the begin of their names.
pub(super) const PACED: &str = "bbr";
/// Taken instead, the first that this process may use: any process may use reno.
const UNPACED: [&str; 2] = ["cubic", "reno"];
/// A longer path is not near.
const NEAR: Duration = Duration::from_millis(1);
/// How often the path is looked at while bytes leave.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Fewest segments sent again within a look, and their share of all, from which on the path loses.
pub(super) const LOST_MIN: u32 = 4;
const LOST_OF: u64 = 5_000;

/// The choice for one connection.
#[derive(Debug)]
pub(super) enum Congestion {
    /// Not chosen yet.
    Unknown,
    /// As the host has it, to the end.
    OfHost,
    /// Without pacing, as long as the path loses nothing.
    Unpaced {
        /// The host's.
        host: String,
        next_look: Time,
        sent_bytes: u64,
        seen: PathState,
    },
}

/// For a TCP socket that is to connect or to listen: it does not pace until [`prepare_stream`](crate::prepare_stream) or
/// the device has seen its path. What a
/// listener accepts begins as the listener.
pub fn begin_unpaced(fd: impl AsFd) {
    if control_of(fd.as_fd()).is_some_and(|host| host.starts_with(PACED)) {
        set_unpaced(fd.as_fd());
    }
}

/// Without permission nothing changes.
pub(super) fn set_unpaced(fd: BorrowedFd<'_>) {
    let _ = UNPACED.iter().any(|name| sockopt::set_tcp_congestion(fd, name).is_ok());
}

/// For a connection whose socket began by [`begin_unpaced`]: it gets the host's congestion control unless its path is
/// near, a round trip below a millisecond. Returns whether it goes on without pacing although the host's control paces.
pub(super) fn settle_pacing(fd: impl AsFd) -> bool {
    unpaced(fd.as_fd()).is_some()
}

/// The host's control and the path's state, of a connection that goes on without it.
fn unpaced(fd: BorrowedFd<'_>) -> Option<(String, PathState)> {
    let host = of_host()?;
    let own = control_of(fd)?;
    if own == host || !UNPACED.contains(&own.as_str()) {
        return None;
    }
    let near = path_state(fd).ok().filter(|state| is_near(&host, state));
    if near.is_none() {
        // A name that a new socket has is one that this one may have.
        let _ = sockopt::set_tcp_congestion(fd, &host);
    }
    near.map(|state| (host, state))
}

/// A socket's control.
pub(super) fn control_of(fd: BorrowedFd<'_>) -> Option<String> {
    sockopt::tcp_congestion(fd).ok().map(|name| name.trim_end_matches('\0').to_owned())
}

/// The host's control: sockets of both address families begin with it.
fn of_host() -> Option<String> {
    let new = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    control_of(new.as_fd())
}

impl Congestion {
    /// The connection stands. Its socket began by [`begin_unpaced`].
    pub(super) fn on_connected(&mut self, fd: &OwnedFd, now: Time, counters: &mut TcpCounters) {
        *self = match unpaced(fd.as_fd()) {
            None => Self::OfHost,
            Some((host, seen)) => {
                counters.tcp_unpaced += 1;
                Self::Unpaced { host, next_look: now + LOOK_PAUSE, sent_bytes: 0, seen }
            }
        };
    }

    /// Bytes left.
    pub(super) fn on_sent(&mut self, fd: &OwnedFd, now: Time, bytes: u64, counters: &mut TcpCounters) {
        let Self::Unpaced { host, next_look, sent_bytes, seen } = self else { return };
        *sent_bytes += bytes;
        if now < *next_look {
            return;
        }
        let Ok(state) = path_state(fd.as_fd()) else { return };
        if loses(seen, &state, *sent_bytes) {
            // A name that was the connection's own before is one that it may have again.
            let _ = sockopt::set_tcp_congestion(fd, host);
            counters.tcp_repaced += 1;
            *self = Self::OfHost;
            return;
        }
        (*next_look, *sent_bytes, *seen) = (now + LOOK_PAUSE, 0, state);
    }
}

fn is_near(host: &str, state: &PathState) -> bool {
    host.starts_with(PACED) && state.round_trip < NEAR
}

/// Whether the path loses segments, or has become longer.
fn loses(before: &PathState, now: &PathState, sent_bytes: u64) -> bool {
    let again = now.retransmitted.wrapping_sub(before.retransmitted);
    let segments = sent_bytes / u64::from(now.segment_bytes.max(1));
    again >= LOST_MIN && u64::from(again) * LOST_OF > segments
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn state(rtt_us: u64, retransmitted: u32) -> PathState {
        PathState {
            round_trip: Duration::from_micros(rtt_us),
            segment_bytes: 1000,
            window_segments: 10,
            retransmitted,
            held_up_us: 0,
        }
    }

    #[test]
    fn near_paths_go_unpaced_until_they_lose() {
        assert!(is_near("bbr", &state(80, 0)) && is_near("bbr2", &state(80, 0)));
        assert!(!is_near("bbr", &state(1_000, 0)) && !is_near("cubic", &state(80, 0)));
        // One segment in a thousand.
        assert!(loses(&state(80, 3), &state(80, 13), 10_000_000));
        // One in ten thousand, and a few of few.
        assert!(!loses(&state(80, 3), &state(80, 13), 100_000_000));
        assert!(!loses(&state(80, 3), &state(80, 6), 3_000));
    }

    #[test]
    fn the_choice_is_made_and_taken_back_on_a_connection() {
        let new = || rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let host = of_host().unwrap();
        let is_paced = host.starts_with(PACED);
        let listener = new().unwrap();
        begin_unpaced(&listener);
        rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let fd = new().unwrap();
        begin_unpaced(&fd);
        rustix::net::connect(&fd, &rustix::net::getsockname(&listener).unwrap()).unwrap();
        let accepted = rustix::net::accept(&listener).unwrap();
        let name = |fd: &OwnedFd| control_of(fd.as_fd()).unwrap();
        for fd in [&fd, &accepted] {
            assert_eq!(name(fd) == host, !is_paced, "{host}: {}", name(fd));
            assert_eq!(settle_pacing(fd), is_paced, "a path on loopback is near");
        }
        let (mut counters, mut choice) = (TcpCounters::default(), Congestion::Unknown);
        choice.on_connected(&fd, Time(1), &mut counters);
        assert_eq!(matches!(choice, Congestion::Unpaced { .. }), is_paced, "{host}: {choice:?}");
        // As if more had been sent again than the connection ever has: the count wraps.
        if let Congestion::Unpaced { seen, .. } = &mut choice {
            seen.retransmitted = seen.retransmitted.wrapping_sub(50);
            choice.on_sent(&fd, Time(1) + LOOK_PAUSE, 10_000, &mut counters);
            assert!(matches!(choice, Congestion::OfHost), "{choice:?}");
            assert_eq!((name(&fd), counters.tcp_repaced), (host, 1));
        }
    }
}

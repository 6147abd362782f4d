//! TCP connections of streams that share the path to a host with many others (docs/inside/kernel-tcp.md).
//!
//! Owns a descriptor of each such connection that began with a congestion control that paces, as long as its stream
//! lives, and when they are looked at. Programs have no right to choose the control, and know nothing of each other.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use softnic::PacedConnection;
use verbs::Time;

/// How often connections are looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Fewest streams to a host that are many.
const MANY: usize = 8;
/// Where one in so many has too small a share of the path, the others have what it lacks.
const SQUEEZED_OF: usize = 3;

/// The streams to one host.
#[derive(Debug, Default)]
struct Crowd {
    streams: BTreeMap<u64, PacedConnection>,
    has_left_pacing: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Crowds {
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
    pub(super) fn add(&mut self, peer: IpAddr, connection: u64, socket: &OwnedFd, now: Time) {
        if let Some(mut paced) = PacedConnection::new(socket) {
            let crowd = self.crowds.entry(peer).or_default();
            paced.set_paced(!crowd.has_left_pacing);
            crowd.streams.insert(connection, paced);
            self.next_look.get_or_insert(now + LOOK_PAUSE);
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.next_look
    }

    /// Looks at all of them if it is time.
    pub(super) fn handle_timeout(&mut self, now: Time, lives: impl Fn(u64) -> bool) {
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

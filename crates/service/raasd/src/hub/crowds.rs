//! TCP connections of streams that share the path to a host with many others (docs/tcp-direct.md).
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
        self.has_left_pacing = count >= MANY && (self.has_left_pacing || squeezed * SQUEEZED_OF >= count);
        for stream in self.streams.values_mut() {
            stream.set_paced(!self.has_left_pacing);
        }
        count > 0
    }
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

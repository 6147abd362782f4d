//! The keys of an encrypted connection: who has them, what is known to be forged, and how far they are used.
//!
//! Owns what the queue pair's owner is told of that. It must never let a key that is used up go on.

use records::{Keys, RecordLimit};
use rnic::Device;
use rustix::io::Errno;
use verbs::AsyncEvent;

use super::{Link, Shared, State};
use crate::sys::kernel_tls::Direction;
use wires::{KeyUse, Sealed, Telling};

impl Link {
    /// All but the MPA request, which says whose the connection is, is encrypted with these keys, of which each protects so many records.
    pub(crate) fn encrypt(&mut self, keys: Option<Keys>, limit: RecordLimit) {
        self.key_use = keys.as_ref().map(|_| KeyUse::new(limit));
        self.sealed = keys.map(|keys| Sealed::new(keys.limited(limit), !self.own.connects_to(&self.peer)));
    }

    /// Leaves the records of a direction to the kernel, if it takes them.
    pub(super) fn leave_to_kernel(&mut self, direction: Direction, shared: &mut Shared<'_>) {
        if let State::Open(fd) = &self.stage {
            self.in_kernel.take(direction, fd, &mut self.sealed, (shared.kernel_tls, shared.counters));
        }
    }

    /// The kernel says by errors of the socket what [`records::RecordError`] says here.
    pub(super) fn note_forgery(&self, error: Option<Errno>, shared: &mut Shared<'_>) {
        if let Some(fault) = error.filter(|error| self.in_kernel.is_forgery(*error)) {
            shared.counters.tcp_forged += 1;
            tracing::warn!(peer = %self.peer.address(), qpn = %self.qpn, %fault, "an encrypted stream was forged");
        }
    }

    /// Tells the owner how far the keys are used, and in time that another queue pair has to take this one's place.
    pub(super) fn look_at_keys(&mut self, dev: &mut Device, shared: &mut Shared<'_>) {
        let (Some(used), State::Open(_)) = (&mut self.key_use, &self.stage) else { return };
        if let Some(telling) = used.telling(self.sealed.as_ref()) {
            let is_due = telling == Telling::Due;
            shared.counters.tcp_keys_worn += u64::from(is_due);
            dev.raise(AsyncEvent::KeysWorn { qpn: self.qpn, is_due });
        }
    }

    /// A key has protected what it may: nothing more is sealed with it, and nothing taken.
    pub(super) fn fail_used_up(&mut self, dev: &mut Device, shared: &mut Shared<'_>) {
        shared.counters.tcp_keys_used_up += 1;
        tracing::warn!(
            peer = %self.peer.address(), qpn = %self.qpn,
            "an encrypted connection was not made anew in time: its key has protected as many records as it may, so the connection ends"
        );
        self.fail(Errno::KEYEXPIRED, dev, shared);
    }
}

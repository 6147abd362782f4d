//! Limits of open descriptors: a program's, and the daemon's own.
//!
//! Owns the text for the log, with the number, and decides which programs get it. It must never end a session for such
//! a limit.

use control::NotTaken;
use plane::ClientId;

use super::{Client, Hub};
use crate::client_socket::ProgramIdentity;

impl Hub {
    /// The program is at its limit.
    pub(super) fn log_own_limit(&mut self, id: ClientId, what: &NotTaken, limit: u64) {
        if let Some(Client { who, .. }) = self.clients.get(&id)
            && let Some(left_out) = self.log.take(std::time::Instant::now())
        {
            let ProgramIdentity { pid, uid, name, .. } = who;
            let words = "a program is at its limit of open descriptors: a connection is refused, its others go on";
            tracing::warn!(pid, uid, name, limit, ?what, left_out, "{words}");
        }
    }

    /// The daemon itself had no room for the descriptor of a segment: not the program's fault.
    pub(super) fn on_own_limit(&mut self, id: ClientId, pair: u64, index: u32) {
        if let Some(left_out) = self.may_log() {
            let limit = control::descriptor_limit();
            let words = "this daemon is at its limit of open descriptors: a same-host connection is refused; raise LimitNOFILE \
                         (`ulimit -n`)";
            tracing::warn!(limit, left_out, "{words}");
        }
        self.daemon.on_segment_lost(id, pair, index);
    }
}

//! TCP connections for streams of bulk: what a program and the tables get.
//!
//! Owns nothing.

use std::os::fd::OwnedFd;

use control::{ConnectionRow, PathKind, Reason, Reply};

use super::Hub;

impl Hub {
    pub(super) fn give_direct(&mut self, client: plane::ClientId, connection: u64, slot: u32, socket: OwnedFd) {
        tracing::debug!(connection, "a stream of bulk gets a TCP connection of its own");
        if let Some(peer) = self.daemon.directs().given_to(connection) {
            self.crowds.add(peer, connection, &socket, self.now());
        }
        self.send(client, Reply::Direct { connection, slot }, vec![socket]);
    }

    /// Rows as the control plane knows them: an application's word alone makes no path, except of a connection that a
    /// daemon before this one made, of whose sockets nobody else knows.
    pub(super) fn with_directs(&self, mut rows: Vec<ConnectionRow>) -> Vec<ConnectionRow> {
        for row in &mut rows {
            if row.path == PathKind::TcpDirect
                && self.incarnation.gave(row.id)
                && !self.daemon.directs().is_given(row.id)
            {
                (row.path, row.reason) = (PathKind::Lane, Reason::OtherHost);
            }
            if row.path == PathKind::Lane
                && row.reason == Reason::OtherHost
                && let Some(reason) = self.daemon.directs().refusal(row.id)
            {
                row.reason = reason;
            }
        }
        self.daemon.own_ends().put_into(&mut rows);
        rows
    }
}

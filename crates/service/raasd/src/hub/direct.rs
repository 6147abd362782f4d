//! TCP connections for streams of bulk: what engines report of streams, and what a program and the tables get.
//!
//! Owns nothing.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use control::{ConnectionRow, PathKind, Reason, Reply};
use engine::BulkStream;
use plane::BulkOf;

use super::Hub;
use super::actions::System;

impl Hub {
    /// The stream, with the program that has it; `None`: the program is gone.
    fn bulk_of(&self, engine: u32, stream: BulkStream) -> Option<BulkOf> {
        let client = self.names.program(engine, stream.app)?;
        let uid = self.daemon.party(client)?.uid;
        let BulkStream { connection, slot, peer, peer_route, .. } = stream;
        Some(BulkOf { client, uid, connection, slot, peer, lane: engine, peer_route })
    }

    /// An engine reports a stream of bulk.
    pub(super) fn on_bulk(&mut self, engine: u32, stream: BulkStream) {
        if let Some(of) = self.bulk_of(engine, stream) {
            self.daemon.on_bulk(of, &mut System);
        }
    }

    /// The engine of the lane says which stream a peer's offer means.
    pub(super) fn on_stream_of_route(&mut self, engine: u32, peer: IpAddr, number: u64, stream: Option<BulkStream>) {
        let of = stream.and_then(|stream| self.bulk_of(engine, stream));
        self.daemon.on_route(peer, number, of);
    }

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

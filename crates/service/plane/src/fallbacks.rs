//! Connections that programs reported, and that pass no part of the daemon: over kernel TCP, and with programs of this
//! host from the time of a daemon before this one. Rows for `raas ss`, and nothing else.
//!
//! Owns that table. It must believe only the addresses and counts of a row: the kernel gives the process.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::{ConnectionRow, ConnectionState, PathKind, Reason};

use crate::{ClientId, ConnectionRows, Party};

/// Rows of one program; more connections than these are not shown.
const ROWS_PER_CLIENT_MAX: usize = 4096;
/// Rows of all programs.
const ROWS_MAX: usize = 65_536;
/// The first number of a row: above those of connections that the daemon carries, below what JSON readers keep exactly
/// (2^53).
const FIRST_ID: u64 = 1 << 52;

#[derive(Debug)]
struct Row {
    pid: u32,
    uid: u32,
    local: SocketAddr,
    peer: SocketAddr,
    reason: Reason,
    path: PathKind,
    tx_bytes: u64,
    rx_bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Fallbacks {
    rows: BTreeMap<u64, Row>,
    /// The rows of programs, by the programs' own numbers.
    ids: BTreeMap<(ClientId, u64), u64>,
    told: u64,
}

impl Fallbacks {
    /// A program has one more. False: there are too many, and it is not shown. An error is what the program did wrong.
    pub fn handle_opened(
        &mut self,
        Party { client, pid, uid }: Party,
        number: u64,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Result<bool, String> {
        let (reason, path) = (Reason::TcpFallback, PathKind::Tcp);
        self.add((client, number), Row { pid, uid, local, peer, reason, path, tx_bytes: 0, rx_bytes: 0 })
    }

    /// A program has a connection with another of this host, from the time of a daemon before this one: its number, ends,
    /// and how many bytes it had written and read when it came back. As [`Fallbacks::handle_opened`].
    pub fn handle_returned(
        &mut self,
        Party { client, pid, uid }: Party,
        (number, (local, peer), (tx_bytes, rx_bytes)): (u64, (SocketAddr, SocketAddr), (u64, u64)),
    ) -> Result<bool, String> {
        let (reason, path) = (Reason::SameHost, PathKind::Shm);
        self.add((client, number), Row { pid, uid, local, peer, reason, path, tx_bytes, rx_bytes })
    }

    fn add(&mut self, (client, number): (ClientId, u64), row: Row) -> Result<bool, String> {
        if self.ids.contains_key(&(client, number)) {
            return Err(format!("connection {number} was told of before"));
        }
        let own = self.ids.range((client, 0)..=(client, u64::MAX)).count();
        if own >= ROWS_PER_CLIENT_MAX || self.rows.len() >= ROWS_MAX {
            return Ok(false);
        }
        let id = FIRST_ID.saturating_add(self.told);
        self.told += 1;
        self.ids.insert((client, number), id);
        self.rows.insert(id, row);
        Ok(true)
    }

    /// Why one is over kernel TCP; nothing if it is not shown.
    pub fn handle_reason(&mut self, client: ClientId, number: u64, reason: Reason) {
        if let Some(row) = self.ids.get(&(client, number)).and_then(|id| self.rows.get_mut(id)) {
            row.reason = reason;
        }
    }

    /// One is closed; nothing if it was not shown.
    pub fn handle_closed(&mut self, client: ClientId, number: u64) {
        if let Some(id) = self.ids.remove(&(client, number)) {
            self.rows.remove(&id);
        }
    }

    /// The program is gone, and with it its sockets.
    pub fn handle_gone(&mut self, client: ClientId) {
        let own: Vec<_> = self.ids.range((client, 0)..=(client, u64::MAX)).map(|(key, _)| *key).collect();
        for (_, number) in own {
            self.handle_closed(client, number);
        }
    }

    /// For `raas ss`: those whose users `sees` names, among the `looks` rows from `from` on. Bytes are not counted
    /// here.
    pub fn rows(&self, sees: impl Fn(u32) -> bool, from: u64, looks: u32) -> ConnectionRows {
        let mut places = self.rows.range(from..);
        let looked = places.by_ref().take(looks as usize).filter(|(_, row)| sees(row.uid));
        let rows = looked.map(|(&id, row)| {
            let row = ConnectionRow {
                id,
                local: row.local,
                peer: row.peer,
                state: ConnectionState::Established,
                lane: None,
                route_id: None,
                path: row.path,
                wire: None,
                encrypted: None,
                cipher: None,
                reason: row.reason,
                verb: None,
                verb_asked: None,
                verb_reason: None,
                tx_bytes: row.tx_bytes,
                rx_bytes: row.rx_bytes,
                direct_tx_bytes: 0,
                direct_rx_bytes: 0,
                tx_queued_bytes: 0,
                rx_queued_bytes: 0,
                app_pid: row.pid,
            };
            (id, row)
        });
        let rows = rows.collect();
        (rows, places.next().map(|(&id, _)| id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its user has the number of the program.
    fn party(client: u32, pid: u32) -> Party {
        Party { client: ClientId(client.into()), pid, uid: client }
    }

    fn everybody(_: u32) -> bool {
        true
    }

    fn addresses() -> (SocketAddr, SocketAddr) {
        ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap())
    }

    #[test]
    fn rows_stand_from_opening_to_closing_or_the_programs_end() {
        let mut table = Fallbacks::default();
        for (client, number) in [(1, 1), (1, 2), (2, 1)] {
            assert_eq!(table.handle_opened(party(client, 70), number, addresses()), Ok(true));
        }
        assert!(table.handle_opened(party(1, 70), 2, addresses()).is_err(), "the same number twice");
        let (rows, next) = table.rows(everybody, 0, 2);
        assert_eq!((rows.len(), next), (2, Some(FIRST_ID + 2)));
        assert_eq!(table.rows(everybody, FIRST_ID + 2, 2).0.len(), 1);
        let seen = |uid| table.rows(|u| u == uid, 0, 9).0.iter().map(|(_, r)| r.id).collect::<Vec<_>>();
        assert_eq!([seen(1), seen(2), seen(3)], [vec![FIRST_ID, FIRST_ID + 1], vec![FIRST_ID + 2], vec![]]);
        table.handle_closed(ClientId(1), 1);
        table.handle_closed(ClientId(1), 99);
        assert_eq!(table.rows(everybody, 0, 9).0.len(), 2);
        table.handle_gone(ClientId(1));
        let (left, _) = table.rows(everybody, 0, 9);
        assert!(
            matches!(&left[..], [(_, row)] if row.path == PathKind::Tcp && row.app_pid == 70 && row.peer == addresses().1)
        );
    }

    #[test]
    fn one_program_cannot_fill_the_table() {
        let mut table = Fallbacks::default();
        for number in 0..ROWS_PER_CLIENT_MAX as u64 {
            assert_eq!(table.handle_opened(party(1, 7), number, addresses()), Ok(true));
        }
        assert_eq!(table.handle_opened(party(1, 7), u64::MAX, addresses()), Ok(false));
        assert_eq!(table.handle_opened(party(2, 7), 0, addresses()), Ok(true));
    }
}

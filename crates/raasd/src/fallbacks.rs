//! Connections over kernel TCP that programs told of: rows for `raas ss`, and nothing else.
//!
//! Owns that table. It must never believe more of a row than its addresses: the process is the kernel's word, and the bytes of
//! such a connection pass no part of the daemon.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::{ConnectionRow, ConnectionState, PathKind, Reason};

use crate::command::ClientId;

/// Rows of one program; more connections than these are not shown.
const ROWS_PER_CLIENT_MAX: usize = 4096;
/// Rows of all programs.
const ROWS_MAX: usize = 65_536;
/// The first number of a row: above those of connections that the daemon carries, below what JSON readers keep exactly (2^53).
const FIRST_ID: u64 = 1 << 52;

#[derive(Debug)]
struct Row {
    id: u64,
    pid: u32,
    local: SocketAddr,
    peer: SocketAddr,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Fallbacks {
    rows: BTreeMap<(ClientId, u64), Row>,
    told: u64,
}

impl Fallbacks {
    /// A program has one more. False: there are too many, and it is not shown. An error is what the program did wrong.
    pub(crate) fn handle_opened(
        &mut self,
        (client, pid): (ClientId, u32),
        number: u64,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Result<bool, String> {
        if self.rows.contains_key(&(client, number)) {
            return Err(format!("kernel TCP connection {number} was told of before"));
        }
        let own = self.rows.range((client, 0)..=(client, u64::MAX)).count();
        if own >= ROWS_PER_CLIENT_MAX || self.rows.len() >= ROWS_MAX {
            return Ok(false);
        }
        let id = FIRST_ID.saturating_add(self.told);
        self.told += 1;
        self.rows.insert((client, number), Row { id, pid, local, peer });
        Ok(true)
    }

    /// One is closed; nothing if it was not shown.
    pub(crate) fn handle_closed(&mut self, client: ClientId, number: u64) {
        self.rows.remove(&(client, number));
    }

    /// The program is gone, and with it its sockets.
    pub(crate) fn handle_gone(&mut self, client: ClientId) {
        self.rows.retain(|(owner, _), _| *owner != client);
    }

    /// For `raas ss`. Bytes are not counted here.
    pub(crate) fn rows(&self) -> impl Iterator<Item = ConnectionRow> {
        self.rows.values().map(|row| ConnectionRow {
            id: row.id,
            local: row.local,
            peer: row.peer,
            state: ConnectionState::Established,
            lane: None,
            route_id: None,
            path: PathKind::Tcp,
            reason: Reason::TcpFallback,
            tx_bytes: 0,
            rx_bytes: 0,
            tx_queued_bytes: 0,
            rx_queued_bytes: 0,
            app_pid: row.pid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> (SocketAddr, SocketAddr) {
        ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap())
    }

    #[test]
    fn rows_stand_from_opening_to_closing_or_the_programs_end() {
        let mut table = Fallbacks::default();
        for (client, number) in [(1, 1), (1, 2), (2, 1)] {
            assert_eq!(table.handle_opened((ClientId(client), 70), number, addresses()), Ok(true));
        }
        assert!(table.handle_opened((ClientId(1), 70), 2, addresses()).is_err(), "the same number twice");
        let ids: std::collections::BTreeSet<u64> = table.rows().map(|r| r.id).collect();
        assert_eq!(ids.len(), 3);
        table.handle_closed(ClientId(1), 1);
        table.handle_closed(ClientId(1), 99);
        assert_eq!(table.rows().count(), 2);
        table.handle_gone(ClientId(1));
        let left: Vec<_> = table.rows().collect();
        assert!(
            matches!(&left[..], [row] if row.path == PathKind::Tcp && row.app_pid == 70 && row.peer == addresses().1)
        );
    }

    #[test]
    fn one_program_cannot_fill_the_table() {
        let mut table = Fallbacks::default();
        for number in 0..ROWS_PER_CLIENT_MAX as u64 {
            assert_eq!(table.handle_opened((ClientId(1), 7), number, addresses()), Ok(true));
        }
        assert_eq!(table.handle_opened((ClientId(1), 7), u64::MAX, addresses()), Ok(false));
        assert_eq!(table.handle_opened((ClientId(2), 7), 0, addresses()), Ok(true));
    }
}

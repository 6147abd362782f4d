//! Connections that programs reported, and that pass no part of the daemon: over kernel TCP, and with programs of this
//! host from the time of a daemon before this one. Rows for `raas ss`, and nothing else.
//!
//! Owns that table. It must believe only the addresses and counts of a row: the kernel gives the process.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::{ConnectionRow, ConnectionState, PathKind, Reason};

use crate::{ClientId, ConnectionRows, Party, UserPlaces};

/// Rows of one program; more connections than these are not shown.
const ROWS_PER_CLIENT_MAX: usize = 4096;
/// Rows of all programs, and of one user's.
const ROWS_MAX: u64 = 65_536;
const ROWS_PER_USER_MAX: u64 = ROWS_MAX / 4;
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
#[derive(Debug)]
pub struct Fallbacks {
    rows: BTreeMap<u64, Row>,
    /// The rows of programs, by the programs' own numbers.
    ids: BTreeMap<ClientId, BTreeMap<u64, u64>>,
    places: UserPlaces,
    told: u64,
}

impl Fallbacks {
    /// `owner_uid`: the daemon's own user, whom no share bounds.
    pub(crate) fn new(owner_uid: u32) -> Self {
        let places = UserPlaces::new(ROWS_MAX, ROWS_PER_USER_MAX, owner_uid);
        Self { rows: BTreeMap::new(), ids: BTreeMap::new(), places, told: 0 }
    }

    /// A program has one more. False: there are too many, and it is not shown. An error is what the program did wrong.
    pub(crate) fn handle_opened(
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
    pub(crate) fn handle_returned(
        &mut self,
        Party { client, pid, uid }: Party,
        (number, (local, peer), (tx_bytes, rx_bytes)): (u64, (SocketAddr, SocketAddr), (u64, u64)),
    ) -> Result<bool, String> {
        let (reason, path) = (Reason::SameHost, PathKind::Shm);
        self.add((client, number), Row { pid, uid, local, peer, reason, path, tx_bytes, rx_bytes })
    }

    fn add(&mut self, (client, number): (ClientId, u64), row: Row) -> Result<bool, String> {
        let own = self.ids.get(&client);
        if own.is_some_and(|own| own.contains_key(&number)) {
            return Err(format!("connection {number} was told of before"));
        }
        if own.is_some_and(|own| own.len() >= ROWS_PER_CLIENT_MAX) || self.places.try_take(row.uid, 1).is_err() {
            return Ok(false);
        }
        let id = FIRST_ID.saturating_add(self.told);
        self.told += 1;
        self.ids.entry(client).or_default().insert(number, id);
        self.rows.insert(id, row);
        Ok(true)
    }

    /// Why one is over kernel TCP; nothing if it is not shown.
    pub(crate) fn handle_reason(&mut self, client: ClientId, number: u64, reason: Reason) {
        if let Some(row) = self.ids.get(&client).and_then(|own| self.rows.get_mut(own.get(&number)?)) {
            row.reason = reason;
        }
    }

    /// One is closed; nothing if it was not shown.
    pub(crate) fn handle_closed(&mut self, client: ClientId, number: u64) {
        let Some(own) = self.ids.get_mut(&client) else { return };
        let closed = own.remove(&number);
        if own.is_empty() {
            self.ids.remove(&client);
        }
        closed.into_iter().for_each(|id| self.remove(id));
    }

    fn remove(&mut self, id: u64) {
        if let Some(row) = self.rows.remove(&id) {
            self.places.give_back(row.uid, 1);
        }
    }

    /// The program is gone, and with it its sockets.
    pub(crate) fn handle_gone(&mut self, client: ClientId) {
        self.ids.remove(&client).unwrap_or_default().into_values().for_each(|id| self.remove(id));
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
        let mut table = Fallbacks::new(77);
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
        let mut table = Fallbacks::new(77);
        for number in 0..ROWS_PER_CLIENT_MAX as u64 {
            assert_eq!(table.handle_opened(party(1, 7), number, addresses()), Ok(true));
        }
        assert_eq!(table.handle_opened(party(1, 7), u64::MAX, addresses()), Ok(false));
        assert_eq!(table.handle_opened(party(2, 7), 0, addresses()), Ok(true));
    }

    #[test]
    fn one_user_cannot_fill_the_table_with_many_programs_and_gets_its_share_back() {
        let mut table = Fallbacks::new(77);
        let mut told = |client: u64, uid: u32| {
            let party = Party { client: ClientId(client), pid: 7, uid };
            let mut number = 0;
            while table.handle_opened(party, number, addresses()) == Ok(true) {
                number += 1;
            }
            number
        };
        let of_one = ROWS_PER_CLIENT_MAX as u64;
        let programs = ROWS_PER_USER_MAX / of_one;
        assert!((0..programs).all(|client| told(client, 5) == of_one));
        assert_eq!(told(programs, 5), 0, "its user has all of its share");
        assert_eq!((told(1000, 6), told(1001, 77)), (of_one, of_one), "others have theirs");
        table.handle_gone(ClientId(0));
        table.handle_closed(ClientId(1), 3);
        assert_eq!(table.places.taken(), (programs + 1) * of_one - 1);
        let party = Party { client: ClientId(programs), pid: 7, uid: 5 };
        assert!((0..=of_one).all(|number| table.handle_opened(party, number, addresses()) == Ok(number < of_one)));
        (1..=1001).for_each(|client| table.handle_gone(ClientId(client)));
        assert_eq!((table.rows.len(), table.ids.len(), table.places.taken()), (0, 0, 0));
    }
}

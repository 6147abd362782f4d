//! Connections whose two ends are both programs of this host: the daemon has a row for each end, people want one.
//!
//! Owns which two rows are one connection. It must never put two connections together.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::ConnectionRow;

/// A connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection<'a> {
    /// The end that is shown: the first of the two in the daemon's order.
    pub(crate) row: &'a ConnectionRow,
    /// The other end, where it is among the rows.
    pub(crate) other: Option<&'a ConnectionRow>,
}

impl Connection<'_> {
    /// It as one sees it who takes these ends: of two the first, with the other beside it.
    pub(crate) fn seen_by(self, takes: impl Fn(&ConnectionRow) -> bool) -> Option<Self> {
        match self.other {
            _ if takes(self.row) => Some(self),
            Some(other) if takes(other) => Some(Self { row: other, other: Some(self.row) }),
            _ => None,
        }
    }
}

/// Ends, path and the reason for it.
type Key = (SocketAddr, SocketAddr, &'static str, &'static str);

fn key(row: &ConnectionRow) -> Key {
    (row.local, row.peer, row.path.as_str(), row.reason.key())
}

/// Both ends of a connection have the same addresses, the other way round. Programs of several network namespaces may
/// have several connections of one pair of addresses: then no two rows are known to be one.
pub(crate) fn connections(rows: &[ConnectionRow]) -> Vec<Connection<'_>> {
    let mut places: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        places.entry(key(row)).or_default().push(place);
    }
    let alone = |key: &Key| places.get(key).filter(|places| places.len() == 1).map(|places| places[0]);
    let all = rows.iter().enumerate().filter_map(|(place, row)| {
        let (local, peer, path, reason) = key(row);
        let other = alone(&(peer, local, path, reason)).filter(|other| *other != place && alone(&key(row)).is_some());
        let is_second = other.is_some_and(|other| other < place);
        (!is_second).then(|| Connection { row, other: other.map(|other| &rows[other]) })
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::connection;
    use super::*;
    use control::PathKind;

    fn row(id: u64, local: &str, peer: &str) -> ConnectionRow {
        let (local, peer) = (local.parse().unwrap(), peer.parse().unwrap());
        ConnectionRow { id, local, peer, path: PathKind::Shm, reason: control::Reason::SameHost, ..connection() }
    }

    fn shown(rows: &[ConnectionRow]) -> Vec<(u64, Option<u64>)> {
        connections(rows).iter().map(|c| (c.row.id, c.other.map(|other| other.id))).collect()
    }

    #[test]
    fn who_asks_for_an_end_sees_it_first_and_the_other_beside_it() {
        let rows = [row(1, "127.0.0.1:80", "127.0.0.1:5000"), row(2, "127.0.0.1:5000", "127.0.0.1:80")];
        let seen = |takes: fn(u64) -> bool| {
            connections(&rows)[0].seen_by(|row| takes(row.id)).map(|c| (c.row.id, c.other.map(|other| other.id)))
        };
        assert_eq!((seen(|_| true), seen(|id| id == 1)), (Some((1, Some(2))), Some((1, Some(2)))));
        assert_eq!((seen(|id| id == 2), seen(|_| false)), (Some((2, Some(1))), None));
    }

    #[test]
    fn two_ends_are_one_connection_and_nothing_else_is() {
        let (a, b, c) = ("127.0.0.1:80", "127.0.0.1:5000", "127.0.0.1:5001");
        assert_eq!(shown(&[row(1, a, b), row(2, a, c), row(3, b, a), row(4, c, a)]), [(1, Some(3)), (2, Some(4))]);
        assert_eq!(shown(&[row(1, a, b), row(2, a, c)]), [(1, None), (2, None)]);
        let tcp = ConnectionRow { path: PathKind::Tcp, ..row(2, b, a) };
        assert_eq!(shown(&[row(1, a, b), tcp]), [(1, None), (2, None)], "one that is being upgraded shows both");
        assert_eq!(shown(&[row(1, a, a)]), [(1, None)], "one to itself");
        let several = [row(1, a, b), row(2, b, a), row(3, a, b), row(4, b, a)];
        assert_eq!(shown(&several).len(), 4, "in which namespace each is, nobody knows");
        assert_eq!(shown(&several[..3]).len(), 3);
    }
}

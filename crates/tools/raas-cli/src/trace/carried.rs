//! What the connections of one host carried. Their bytes go from program to program through shared memory and pass no
//! engine, so there are no stages to show; what there is are the counts in the rings.
//!
//! Owns the difference between two looks. It must never count what was carried before the first.

use std::collections::BTreeMap;

use control::{ConnectionRow, PathKind};
use serde_json::{Value, json};

use crate::ss::ends::connections;
use crate::ss::programs::Programs;
use terminal::table::{self, Align, Table};

/// Lines that a person gets to see.
const SHOWN_MAX: usize = 20;

/// Looks at the connections of one host, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Carried {
    before: BTreeMap<u64, (u64, u64)>,
    last: BTreeMap<u64, ConnectionRow>,
}

impl Carried {
    /// Counts from what these have carried by now; without it from their beginnings.
    pub(super) fn since(rows: Vec<ConnectionRow>) -> Self {
        let before = rows.iter().map(|row| (row.id, (row.tx_bytes, row.rx_bytes))).collect();
        let mut all = Self { before, ..Self::default() };
        all.look(rows);
        all
    }

    /// One that has ended since keeps what it had at the look before.
    pub(super) fn look(&mut self, rows: Vec<ConnectionRow>) {
        self.last.extend(rows.into_iter().filter(|row| row.path == PathKind::Shm).map(|row| (row.id, row)));
    }

    /// The rows, each with the bytes that were counted. Of those that carried nothing only what was asked for by number.
    pub(super) fn rows(&self, id: Option<u64>) -> Vec<ConnectionRow> {
        let counted = self.last.values().filter(|row| id.is_none_or(|id| row.id == id)).map(|row| {
            let (sent, received) = self.before.get(&row.id).copied().unwrap_or_default();
            let (tx_bytes, rx_bytes) = (row.tx_bytes.saturating_sub(sent), row.rx_bytes.saturating_sub(received));
            ConnectionRow { tx_bytes, rx_bytes, ..row.clone() }
        });
        counted.filter(|row| id.is_some() || row.tx_bytes + row.rx_bytes > 0).collect()
    }
}

pub(super) fn to_json(rows: &[ConnectionRow]) -> Value {
    let row = |r: &ConnectionRow| {
        json!({
            "connection": r.id,
            "local": r.local,
            "peer": r.peer,
            "app_pid": r.app_pid,
            "tx_bytes": r.tx_bytes,
            "rx_bytes": r.rx_bytes,
        })
    };
    rows.iter().map(row).collect()
}

/// Those that carried most.
pub(super) fn to_text(rows: &[ConnectionRow], programs: &Programs) -> String {
    let mut all = connections(rows);
    all.sort_by_key(|c| std::cmp::Reverse(c.row.tx_bytes.saturating_add(c.row.rx_bytes)));
    let mut t = Table::new(&[
        ("LOCAL", Align::Left),
        ("PEER", Align::Left),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("PROGRAM", Align::Left),
        ("PEER-PROGRAM", Align::Left),
    ])
    .spare(&["PEER-PROGRAM", "PROGRAM"]);
    for c in all.iter().take(SHOWN_MAX) {
        t.row(vec![
            c.row.local.to_string(),
            c.row.peer.to_string(),
            table::bytes(c.row.tx_bytes),
            table::bytes(c.row.rx_bytes),
            programs.cell(c.row.app_pid),
            c.other.map_or("-".to_owned(), |other| programs.cell(other.app_pid)),
        ]);
    }
    let more = match all.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!("{more} more carried less (--json has all)\n"),
    };
    format!("on this host, through shared memory: bytes, no stages\n{}{more}", t.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ss::tests::connection;

    fn row(id: u64, tx_bytes: u64, rx_bytes: u64) -> ConnectionRow {
        ConnectionRow { id, tx_bytes, rx_bytes, path: PathKind::Shm, ..connection() }
    }

    fn bytes(carried: &Carried, id: Option<u64>) -> Vec<(u64, u64, u64)> {
        carried.rows(id).iter().map(|row| (row.id, row.tx_bytes, row.rx_bytes)).collect()
    }

    #[test]
    fn what_came_since_the_first_look_is_counted() {
        let mut carried = Carried::since(vec![row(1, 100, 10), row(2, 50, 5), row(3, 9, 9)]);
        carried.look(vec![row(1, 110, 10), row(2, 50, 5), row(4, 7, 0)]);
        carried.look(vec![row(1, 130, 11), ConnectionRow { path: PathKind::Lane, ..row(5, 1, 1) }]);
        assert_eq!(bytes(&carried, None), [(1, 30, 1), (4, 7, 0)]);
        assert_eq!((bytes(&carried, Some(2)), bytes(&carried, Some(5))), (vec![(2, 0, 0)], vec![]));
        let mut whole = Carried::default();
        whole.look(vec![row(1, 100, 10)]);
        assert_eq!(bytes(&whole, None), [(1, 100, 10)]);
    }

    #[test]
    fn a_person_sees_those_that_carried_most() {
        let rows: Vec<_> = (0..30).map(|n| row(n, n * 1000, 0)).collect();
        let text = to_text(&rows, &Programs::default());
        assert!(text.contains("29.0 kB") && !text.contains(" 9.00 kB") && text.contains("10 more"), "{text}");
    }
}

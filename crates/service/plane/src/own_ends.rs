//! Streams that took the place of programs' TCP connections (docs/use/run.md), with the addresses that the programs
//! know: for `raas ss`, and nothing else.
//!
//! Owns that table. A program's word changes the addresses of rows of its own process alone.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::ConnectionRow;

use crate::ClientId;
use crate::meetings::MEETINGS_PER_PROGRAM_MAX;

type Ends = (SocketAddr, SocketAddr);

/// See the head of this file.
#[derive(Debug, Default)]
pub struct OwnEnds {
    /// By the number and the process of the row.
    ends: BTreeMap<(u64, u32), Ends>,
    told: BTreeMap<(ClientId, u64), (u64, u32)>,
    per_program: BTreeMap<ClientId, usize>,
}

impl OwnEnds {
    /// A program has put a stream, the row of this number and process, in the place of a connection. Nothing if it told
    /// of too many.
    pub(crate) fn show(&mut self, of: (ClientId, u64), row: (u64, u32), ends: Ends) {
        let own = self.per_program.get(&of.0).copied().unwrap_or(0);
        if own < MEETINGS_PER_PROGRAM_MAX && !self.ends.contains_key(&row) && !self.told.contains_key(&of) {
            self.per_program.insert(of.0, own + 1);
            self.told.insert(of, row);
            self.ends.insert(row, ends);
        }
    }

    /// It is over.
    pub(crate) fn hide(&mut self, of: (ClientId, u64)) {
        if let Some(row) = self.told.remove(&of) {
            self.ends.remove(&row);
            if let Some(own) = self.per_program.get_mut(&of.0) {
                *own -= 1;
                if *own == 0 {
                    self.per_program.remove(&of.0);
                }
            }
        }
    }

    /// The program is gone.
    pub(crate) fn handle_gone(&mut self, client: ClientId) {
        let own: Vec<_> = self.told.range((client, 0)..=(client, u64::MAX)).map(|(of, _)| *of).collect();
        own.into_iter().for_each(|of| self.hide(of));
    }

    /// Puts the programs' addresses into rows.
    pub fn put_into<'a>(&self, rows: impl IntoIterator<Item = &'a mut ConnectionRow>) {
        for row in rows {
            if let Some((local, peer)) = self.ends.get(&(row.id, row.app_pid)) {
                (row.local, row.peer) = (*local, *peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fallbacks, Party};

    #[test]
    fn a_program_changes_the_addresses_of_its_own_rows_until_it_is_over() {
        let inner: Ends = ("10.0.0.1:40000".parse().unwrap(), "10.0.0.1:50000".parse().unwrap());
        let own: Ends = ("10.0.0.1:80".parse().unwrap(), "10.0.0.1:5555".parse().unwrap());
        let (client, other) = (ClientId(1), ClientId(2));
        let mut fallbacks = Fallbacks::new(0);
        fallbacks.handle_opened(Party { client, pid: 7, uid: 0 }, 1, inner).unwrap();
        let id = fallbacks.rows(|_| true, 0, 9).0[0].0;
        let shown = |table: &OwnEnds| {
            let mut rows = fallbacks.rows(|_| true, 0, 9).0;
            table.put_into(rows.iter_mut().map(|(_, row)| row));
            (rows[0].1.local, rows[0].1.peer)
        };
        let mut table = OwnEnds::default();
        table.show((other, 1), (id, 8), own);
        assert_eq!(shown(&table), inner, "another process's word");
        table.show((client, 1), (id, 7), own);
        table.show((client, 2), (id, 7), inner);
        assert_eq!(shown(&table), own);
        table.hide((client, 1));
        assert_eq!(shown(&table), inner);
        table.show((client, 1), (id, 7), own);
        table.handle_gone(client);
        assert_eq!((shown(&table), table.ends.len(), table.told.len()), (inner, 1, 1));
    }
}

//! How connections of this host end: closed by both sides, given up, or with one of their processes.
//!
//! Owns what is given back then: slots, places in backlogs, shares. It must never give a slot back before both sides
//! did.

use std::collections::BTreeMap;

use control::Reason;

use super::rows::carried;
use super::shares::{ONE_PAIR, ONE_SEGMENT};
use super::{CONNECTING_END, Pair, PairKey, Pairs, Pending};
use crate::ClientId;

impl<F> Pairs<F> {
    /// The application took the connection from its backlog.
    pub(crate) fn on_accepted(&mut self, client: ClientId, connection: u64) {
        let Some(use_) = self.uses.get_mut(&connection) else { return };
        let listening = |p: &Pair<F>| p.ends[1 - use_.side].client == client;
        if self.pairs.get(&use_.pair).is_some_and(listening) {
            use_.accepted = true;
        }
    }

    /// One side has finished a connection. Numbers that are no connection of the client's are those of a pair that
    /// ended meanwhile.
    pub(crate) fn handle_closed(&mut self, client: ClientId, id: u64) {
        let connecting = id >= CONNECTING_END;
        let connection = if connecting { id - CONNECTING_END } else { id };
        let Some(use_) = self.uses.get_mut(&connection) else { return };
        let Some(pair) = self.pairs.get_mut(&use_.pair) else { return };
        let side = if connecting { use_.side } else { 1 - use_.side };
        if pair.ends[side].client != client {
            return;
        }
        if !std::mem::replace(&mut use_.closed[side], true) {
            close_end(&mut self.open_ends, client);
        }
        if use_.closed == [true; 2] {
            let key = use_.pair;
            let bytes = carried(pair, use_);
            pair.connections.remove(&connection);
            if let Some(segment) = pair.segments.get_mut(use_.segment) {
                segment.give_back(use_.slot);
            }
            self.uses.remove(&connection);
            self.keep_bytes(bytes);
            self.place(key);
        }
    }

    /// Gives a connect up that has no slot yet. Whether there was one.
    pub(crate) fn handle_cancel(&mut self, client: ClientId, request: u64) -> bool {
        let keys = self.of_client.get(&client).into_iter().flatten();
        for key in keys.copied().collect::<Vec<_>>() {
            let Some(pair) = self.pairs.get_mut(&key) else { continue };
            let mine = |p: &Pending| p.connect.from.client == client && p.connect.request == request;
            if let Some(found) = pair.pending.iter().position(mine).and_then(|i| pair.pending.remove(i)) {
                self.give_back(&found.connect);
                return true;
            }
        }
        false
    }

    /// The client is gone: so are its pairs. The other processes notice by their wake sockets.
    pub(crate) fn handle_gone(&mut self, client: ClientId) {
        let gone = self.of_client.remove(&client).unwrap_or_default();
        for key in gone {
            for pending in self.drop_pair(key).into_iter().flat_map(|pair| pair.pending) {
                if pending.connect.from.client == client {
                    self.give_back(&pending.connect);
                } else {
                    self.fail(&pending.connect, Reason::PeerAppDied);
                }
            }
        }
        self.carried.remove(&client);
    }

    /// Takes a pair out, with its connections and shares. The caller must answer the connects that wait for it.
    pub(super) fn drop_pair(&mut self, key: PairKey) -> Option<Pair<F>> {
        self.waiting.remove(&key);
        let mut kept = Vec::new();
        let pair = self.pairs.remove(&key)?;
        for use_ in pair.connections.iter().filter_map(|connection| self.uses.remove(connection)) {
            kept.extend(carried(&pair, &use_));
            for (end, _) in pair.ends.iter().zip(use_.closed).filter(|(_, closed)| !closed) {
                close_end(&mut self.open_ends, end.client);
            }
        }
        self.keep_bytes(kept);
        self.shares.give_back(pair.ends[0].uid, ONE_PAIR);
        for segment in &pair.segments {
            self.shares.give_back(segment.uid, ONE_SEGMENT);
        }
        for end in &pair.ends {
            self.ends.remove(&end.id);
            if let Some(keys) = self.of_client.get_mut(&end.client) {
                keys.remove(&key);
            }
        }
        let [a, b] = [pair.ends[0].client, pair.ends[1].client];
        self.by_clients.remove(&(a.min(b), a.max(b)));
        Some(pair)
    }
}

/// An end of a connection is closed, or its pair is gone.
fn close_end(open_ends: &mut BTreeMap<ClientId, u32>, client: ClientId) {
    if let Some(open) = open_ends.get_mut(&client) {
        *open = open.saturating_sub(1);
        if *open == 0 {
            open_ends.remove(&client);
        }
    }
}

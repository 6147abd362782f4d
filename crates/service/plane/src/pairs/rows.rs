//! Same-host connections as `raas ss` shows them: two rows each, one for each end.
//!
//! Owns the reading of the two processes' words. They may lie: whatever they say only ends up in a table, so it is cut
//! to what is possible and believed no further.

use std::sync::atomic::Ordering;

use control::{ConnectionRow, ConnectionState, PathKind, Reason};
use shm::{PairWords, app_flag};

use super::{CONNECTING_END, Pair, Pairs, Use};
use crate::{ClientId, ConnectionRows};

struct Words {
    /// Bytes that this side has sent.
    sent: u64,
    tail: u64,
    head: u64,
    flags: u32,
}

impl Words {
    fn load(words: &PairWords, generation: u32) -> Self {
        if words.generation.load(Ordering::Acquire) != generation {
            return Self { sent: 0, tail: 0, head: 0, flags: 0 };
        }
        let tail = words.tail.load(Ordering::Acquire);
        Self {
            // One that has put its slot back has no cursors there any more.
            sent: tail.max(words.carried.load(Ordering::Relaxed)),
            tail,
            head: words.head.load(Ordering::Relaxed),
            flags: words.flags.load(Ordering::Relaxed),
        }
    }
}

impl<F> Pairs<F> {
    /// Pairs of processes.
    pub fn count(&self) -> u64 {
        u64::try_from(self.pairs.len()).unwrap_or(u64::MAX)
    }

    /// Rows of users whom `sees` names, of the `looks` connections from `from` on. A connection's ends have two places.
    pub fn rows(&self, sees: impl Fn(u32) -> bool, from: u64, looks: u32) -> ConnectionRows {
        let mut uses = self.uses.range(from / 2..);
        let mut rows = Vec::new();
        for (&id, use_) in uses.by_ref().take(looks as usize) {
            let ends = self.rows_of(id, use_).into_iter().flatten().zip([id * 2, id * 2 + 1]);
            let seen = ends.filter(|((uid, _), place)| *place >= from && sees(*uid));
            rows.extend(seen.map(|((_, row), place)| (place, row)));
        }
        (rows, uses.next().map(|(&id, _)| id * 2))
    }

    /// The client at the other end of a client's connection.
    pub(crate) fn other_end(&self, client: ClientId, id: u64) -> Option<ClientId> {
        let connecting = id >= CONNECTING_END;
        let connection = if connecting { id - CONNECTING_END } else { id };
        let use_ = self.uses.get(&connection)?;
        let pair = self.pairs.get(&use_.pair)?;
        let side = if connecting { use_.side } else { 1 - use_.side };
        (pair.ends[side].client == client).then_some(pair.ends[1 - side].client)
    }

    /// Connections of a client, an end each.
    pub fn connections_of(&self, client: ClientId) -> u32 {
        self.open_ends.get(&client).copied().unwrap_or(0)
    }

    /// Bytes that a client has sent and received by connections with programs of this host.
    pub fn bytes_of(&self, client: ClientId) -> (u64, u64) {
        let pairs = self.of_client.get(&client).into_iter().flatten().filter_map(|key| self.pairs.get(key));
        let live =
            pairs.flat_map(|pair| pair.connections.iter().filter_map(move |id| Some((pair, self.uses.get(id)?))));
        let begin = self.carried.get(&client).copied().unwrap_or_default();
        live.flat_map(|(pair, use_)| carried(pair, use_))
            .filter(|(of, _)| *of == client)
            .fold(begin, |sum, (_, n)| add(sum, n))
    }

    /// A connection is over: what it carried is kept.
    pub(super) fn keep_bytes(&mut self, ends: impl IntoIterator<Item = (ClientId, (u64, u64))>) {
        for (client, bytes) in ends.into_iter().filter(|(_, bytes)| *bytes != (0, 0)) {
            let sum = self.carried.entry(client).or_default();
            *sum = add(*sum, bytes);
        }
    }

    /// Both ends, each with its user.
    fn rows_of(&self, id: u64, use_: &Use) -> Option<[(u32, ConnectionRow); 2]> {
        let pair = self.pairs.get(&use_.pair)?;
        let segment = pair.segments.get(use_.segment)?;
        let generation = *segment.generations.get(use_.slot as usize)?;
        let words = |side: usize| Some(Words::load(&segment.halves[side].as_ref()?.view.slot(use_.slot), generation));
        let ring = u64::from(segment.ring_bytes);
        let (from, to) = (use_.side, 1 - use_.side);
        let (from_words, to_words) = (words(from)?, words(to)?);
        let [listening, connecting] = self.addresses(id, use_.port);
        let row = |id, local, peer, own: &Words, other: &Words, state, app_pid| ConnectionRow {
            id,
            local,
            peer,
            state,
            lane: None,
            route_id: None,
            path: PathKind::Shm,
            wire: None,
            encrypted: None,
            cipher: None,
            reason: Reason::SameHost,
            verb: None,
            verb_asked: None,
            verb_reason: None,
            tx_bytes: own.sent,
            rx_bytes: other.sent,
            direct_tx_bytes: 0,
            direct_rx_bytes: 0,
            tx_queued_bytes: own.tail.saturating_sub(other.head).min(ring),
            rx_queued_bytes: other.tail.saturating_sub(own.head).min(ring),
            app_pid,
        };
        let connecting_state = state(&from_words, &to_words, use_.closed[from]);
        let listening_state = match state(&to_words, &from_words, use_.closed[to]) {
            ConnectionState::Established if !use_.accepted => ConnectionState::Backlog,
            other => other,
        };
        let connecting_id = id + CONNECTING_END;
        let (from_pid, to_pid) = (pair.ends[from].pid, pair.ends[to].pid);
        let (from_uid, to_uid) = (pair.ends[from].uid, pair.ends[to].uid);
        Some([
            (to_uid, row(id, listening, connecting, &to_words, &from_words, listening_state, to_pid)),
            (from_uid, row(connecting_id, connecting, listening, &from_words, &to_words, connecting_state, from_pid)),
        ])
    }
}

fn add(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
}

/// What each end has sent and received.
pub(super) fn carried<F>(pair: &Pair<F>, use_: &Use) -> [(ClientId, (u64, u64)); 2] {
    let sent = |side: usize| {
        let segment = pair.segments.get(use_.segment)?;
        let generation = *segment.generations.get(use_.slot as usize)?;
        Some(Words::load(&segment.halves[side].as_ref()?.view.slot(use_.slot), generation).sent)
    };
    let sent = [sent(0).unwrap_or(0), sent(1).unwrap_or(0)];
    [(pair.ends[0].client, (sent[0], sent[1])), (pair.ends[1].client, (sent[1], sent[0]))]
}

fn state(own: &Words, other: &Words, closed: bool) -> ConnectionState {
    let over = app_flag::CLOSED | app_flag::ABORT;
    match (own.flags & app_flag::FIN != 0, other.flags & app_flag::FIN != 0) {
        _ if closed || own.flags & over != 0 => ConnectionState::Closing,
        (true, true) => ConnectionState::Closing,
        (true, false) => ConnectionState::FinSent,
        (false, true) => ConnectionState::FinReceived,
        (false, false) => ConnectionState::Established,
    }
}

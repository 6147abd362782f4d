//! What a process had no descriptor for: its end of a pair, or a segment.
//!
//! Owns which connects are refused then, and by which reason. It must never touch a connection that is established.

use std::collections::VecDeque;

use control::Reason;

use super::{Pairs, Pending};
use crate::ClientId;

/// The side that had no descriptor for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentLost {
    /// The program: it could not make its own, or not map the other's.
    ByProgram,
    /// This daemon, when the program sent it.
    ByDaemon,
}

impl<F> Pairs<F> {
    /// A process has no descriptor for its end of a new pair: there is none. An error: the client broke the rules.
    pub(crate) fn handle_pair_not_taken(&mut self, client: ClientId, end: u64) -> Result<(), String> {
        let Some((key, _)) = self.end_of(client, end)? else { return Ok(()) };
        if self.pairs.get(&key).is_some_and(|pair| !pair.connections.is_empty()) {
            return Err(format!("pair {end} has connections"));
        }
        for pending in self.drop_pair(key).into_iter().flat_map(|pair| pair.pending) {
            self.fail(&pending.connect, not_taken_by(client, &pending));
        }
        Ok(())
    }

    /// A segment of a pair is lost because there was no descriptor for it. The connects that wait for it are refused,
    /// and another segment may come in its place. An error: the client broke the rules.
    pub(crate) fn handle_segment_not_taken(
        &mut self,
        client: ClientId,
        end: u64,
        index: u32,
        by: SegmentLost,
    ) -> Result<(), String> {
        let Some((key, side)) = self.end_of(client, end)? else { return Ok(()) };
        let Some(pair) = self.pairs.get_mut(&key) else { return Ok(()) };
        let segment = pair.segments.get_mut(index as usize);
        let segment = segment.ok_or_else(|| format!("segment {index} of pair {end} was not asked for"))?;
        segment.answered[side] = true;
        segment.is_lost = true;
        let ring_bytes = segment.ring_bytes;
        let (refused, left) =
            std::mem::take(&mut pair.pending).into_iter().partition(|pending| pending.connect.ring_bytes == ring_bytes);
        pair.pending = left;
        let refused: VecDeque<Pending> = refused;
        for pending in refused {
            let reason = match by {
                SegmentLost::ByProgram => not_taken_by(client, &pending),
                SegmentLost::ByDaemon => Reason::LocalLimit,
            };
            self.fail(&pending.connect, reason);
        }
        self.place(key);
        Ok(())
    }
}

/// The reason that a connect gets if the process `client` is at its limit of open descriptors.
fn not_taken_by(client: ClientId, pending: &Pending) -> Reason {
    if pending.connect.from.client == client { Reason::AppDescriptors } else { Reason::PeerAppDescriptors }
}

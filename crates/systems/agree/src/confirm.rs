//! Reads that every client would call right.
//!
//! Owns when a read may be answered: when a majority of memories was seen, after the read was asked for, of which none
//! has a greater term in its head. A later leader writes its term into a majority of heads before anything else, and any
//! two majorities meet: so nobody else had committed anything when the read was asked for, and what this leader had
//! committed then is everything. No clock is asked, and no program of another member takes part.

use std::collections::BTreeSet;

use crate::action::{Answer, Event, Outbox, Use};
use crate::layout::{HEAD_AT, HEAD_WORDS_BYTES, TERM_AT};
use crate::members::Members;
use crate::term::Term;
use crate::words::word;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Confirm {
    /// Reads that were asked for after the round under way had begun.
    waiting: Vec<u64>,
    /// The number of the round under way, or of the last one.
    number: u64,
    round: Option<Round>,
    /// When the last round began that a majority answered.
    confirmed: Option<u64>,
}

#[derive(Debug)]
struct Round {
    begun: u64,
    reads: Vec<u64>,
    /// As of its begin: nobody else can have led with others before.
    members: Members,
    seen: BTreeSet<u8>,
    missing: BTreeSet<u8>,
}

impl Confirm {
    pub(crate) fn ask(&mut self, read: u64) {
        self.waiting.push(read);
    }

    /// When the last round began that a majority answered, since this was asked.
    pub(crate) fn take_confirmed(&mut self) -> Option<u64> {
        self.confirmed.take()
    }

    /// Begins a round, if reads wait or one is due, and none is under way. It is `now` or later.
    pub(crate) fn begin(&mut self, is_due: bool, members: &Members, (now, outbox): (u64, &mut Outbox)) {
        if self.round.is_some() || self.waiting.is_empty() && !is_due {
            return;
        }
        self.number += 1;
        let (seen, missing, members_then) = (BTreeSet::new(), BTreeSet::new(), members.clone());
        let reads = std::mem::take(&mut self.waiting);
        self.round = Some(Round { begun: now, reads, members: members_then, seen, missing });
        for member in members.iter() {
            outbox.read(Use::Confirm(member.id, self.number), member.id, (HEAD_AT, HEAD_WORDS_BYTES));
        }
    }

    /// A head, or none. An error: somebody has this greater term.
    pub(crate) fn on_answer(
        &mut self,
        (id, number): (u8, u64),
        answer: &Answer,
        term: Term,
        outbox: &mut Outbox,
    ) -> Result<(), Term> {
        let head = match answer {
            Answer::Read { number, bytes } => {
                word(bytes, TERM_AT as usize).map(|term| (*number, Term::from_bits(term)))
            }
            _ => None,
        };
        // It is said also where a majority has answered before.
        let is_wild = head.is_some_and(|(_, other)| other > term && !other.is_believed(term));
        if is_wild {
            outbox.events.push_back(Event::Wild { member: id });
        }
        let Some(round) = self.round.as_mut().filter(|_| number == self.number) else { return Ok(()) };
        match head.filter(|(memory, _)| !is_wild && round.members.contains(id, *memory)) {
            Some((_, other)) if other > term => return Err(other),
            Some(_) => round.seen.insert(id),
            None => round.missing.insert(id),
        };
        if round.seen.len() >= round.members.majority() {
            self.confirmed = Some(round.begun);
            let reads = self.round.take().map(|round| round.reads).unwrap_or_default();
            outbox.events.extend(reads.into_iter().map(|read| Event::Readable { read }));
        } else if round.seen.len() + round.missing.len() == round.members.len() {
            // They are tried again with the next round.
            self.waiting.extend(self.round.take().map(|round| round.reads).unwrap_or_default());
        }
        Ok(())
    }

    /// No read is answered here any more.
    pub(crate) fn end(&mut self) -> Vec<u64> {
        let round = self.round.take().map(|round| round.reads).unwrap_or_default();
        round.into_iter().chain(std::mem::take(&mut self.waiting)).collect()
    }
}

//! A look at all memories, before a campaign.
//!
//! Owns whether to campaign: nobody must who does not see a majority of memories, or sees a leader that he did not know.

use std::collections::{BTreeMap, BTreeSet};

use crate::action::{Answer, Use};
use crate::context::Context;
use crate::members::Members;
use crate::scan::{Found, Scan, Step};
use crate::settings::LOOK_PERIODS;
use crate::term::Term;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Look {
    scans: BTreeMap<u8, Scan>,
    found: BTreeMap<u8, Found>,
    waiting: BTreeSet<u8>,
    /// Those that do not answer are waited for until then.
    pub(crate) until: u64,
}

/// What was seen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The greatest term.
    pub(crate) term: Term,
    /// Memories whose terms nobody of the group's can have written.
    pub(crate) wild: Vec<u8>,
    /// The members by the log that is furthest on.
    pub(crate) members: Members,
    /// Whether a majority of them was seen.
    pub(crate) is_majority: bool,
}

impl Look {
    pub(crate) fn begin<M>(ids: &BTreeSet<u8>, cx: &mut Context<'_, M>) -> Self {
        for id in ids {
            cx.outbox.read(Use::Look(*id), *id, Scan::HEAD);
        }
        let scans = ids.iter().map(|id| (*id, Scan::default())).collect();
        Self { scans, found: BTreeMap::new(), waiting: ids.clone(), until: cx.patiently_after(LOOK_PERIODS) }
    }

    pub(crate) fn on_answer<M>(&mut self, id: u8, answer: Answer, cx: &mut Context<'_, M>) {
        let step = match (self.scans.get_mut(&id), answer) {
            (Some(scan), Answer::Read { number, bytes }) => scan.on_read(number, &bytes, cx.settings),
            _ => Step::Foreign,
        };
        match step {
            Step::Read(place) => cx.outbox.read(Use::Look(id), id, place),
            Step::Done(found) => {
                self.found.insert(id, *found);
                self.waiting.remove(&id);
            }
            Step::Foreign => {
                self.waiting.remove(&id);
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn seen<M>(&mut self, cx: &Context<'_, M>) -> Seen {
        let wild = self.take_wild();
        let logs = self.found.values().max_by_key(|found| found.log.tail.rank());
        let further = logs.filter(|found| found.log.tail.rank() >= cx.state.applied.rank());
        let members = further.map_or_else(|| cx.state.members.clone(), Found::members);
        let seen = self.found.iter().filter(|(id, found)| members.contains(**id, found.number)).count();
        let term = self.found.values().map(|found| found.head.term).max().unwrap_or(Term::NONE);
        Seen { term, wild, is_majority: seen >= members.majority(), members }
    }

    /// Takes those away whose term is impossible, or far above what all others have. Of two nobody knows which is wrong.
    fn take_wild(&mut self) -> Vec<u8> {
        let mut wild: Vec<u8> =
            self.found.iter().filter(|(_, found)| !found.head.term.is_possible()).map(|(id, _)| *id).collect();
        let mut terms: Vec<(Term, u8)> = self.found.iter().map(|(id, found)| (found.head.term, *id)).collect();
        terms.retain(|(term, _)| term.is_possible());
        terms.sort_unstable();
        if let [.., (_, _), (second, _), (first, id)] = *terms.as_slice()
            && !first.is_believed(second)
        {
            wild.push(id);
        }
        self.found.retain(|id, _| !wild.contains(id));
        wild
    }
}

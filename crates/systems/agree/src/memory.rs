//! A member's memory, as a candidate and then a leader takes hold of it.
//!
//! Owns the order: grant, head, own term into the head, log. It must never write the own term into a head that has a
//! greater one, and must read nothing for the log that was read before the grant.

use crate::action::{Answer, Hold, Outbox, Use};
use crate::held::Held;
use crate::kept::Kept;
use crate::layout::{HEAD_AT, Head};
use crate::log::Log;
use crate::scan::{Found, Place, Scan, Step};
use crate::settings::{RETRY_DOUBLINGS, RETRY_PERIODS, Settings};
use crate::term::{ATTEMPTS_MAX, Term};

/// Where it stands.
#[derive(Debug)]
pub(crate) enum Stage {
    /// It is not this one's to write; it is asked for again at this moment.
    Away { until: u64 },
    /// Its daemon is asked.
    Asked,
    /// Its head is read, then its log.
    Reading(Scan),
    /// The own term is written into the head; the log is read from there.
    Naming(Scan, Place),
    /// The own term is in its head, and not in its owner's file yet: until it is, the memory could come back without.
    Promising(Scan, Place),
    /// Its log is known.
    Ready(Box<Found>),
    /// It is written.
    Held(Box<Held>),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) id: u8,
    /// The number of the memory that was granted.
    pub(crate) number: u64,
    attempt: u32,
    /// It held the leader's log to this index, and its file did in a synced group, when it was lost.
    had: u64,
    /// How often it was lost since it was written.
    losses: u32,
    /// A WRITE of the own term into its head was begun.
    is_named: bool,
    pub(crate) stage: Stage,
}

/// What came of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// It goes on.
    On,
    /// The memory cannot be written for now.
    Lost,
    /// Neither, and it says what nobody can have written.
    Wild,
    /// Somebody has a greater term.
    Superseded(Term),
}

impl Memory {
    /// Asks for it.
    pub(crate) fn ask(id: u8, term: Term, outbox: &mut Outbox) -> Self {
        let mut memory = Self { id, number: 0, attempt: 0, had: 0, losses: 0, is_named: false, stage: Stage::Asked };
        memory.ask_again(term, outbox);
        memory
    }

    pub(crate) fn ask_again(&mut self, term: Term, outbox: &mut Outbox) {
        self.attempt = (self.attempt + 1).min(ATTEMPTS_MAX);
        self.stage = Stage::Asked;
        outbox.take_over(self.id, term.fence(self.attempt));
    }

    /// It is lost, and asked for again later: each time later, to a bound.
    pub(crate) fn lose(&mut self, now: u64, settings: &Settings, outbox: &mut Outbox) {
        let id = self.id;
        if let Stage::Held(held) = &self.stage {
            self.had = held.counted(settings.is_synced);
        }
        outbox.forget(|what| matches!(what, Use::Hold(member, _) if *member == id));
        let periods = RETRY_PERIODS << self.losses.min(RETRY_DOUBLINGS);
        self.losses = self.losses.saturating_add(1);
        self.stage = Stage::Away { until: now + periods * settings.period_us };
    }

    /// It is written from here on, with the log that it was found to have. `false`: it had more of this leader's, which
    /// nobody but its owner can have taken back.
    #[must_use]
    pub(crate) fn hold(&mut self, held: Held, log: &Log) -> bool {
        let has_all = held.matched >= self.had || self.had < log.base.index;
        (self.losses, self.had) = (0, 0);
        self.stage = Stage::Held(Box::new(held));
        has_all
    }

    /// Whether no attempt is left in this term.
    pub(crate) fn is_worn(&self) -> bool {
        self.attempt >= ATTEMPTS_MAX
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.attempt
    }

    pub(crate) fn writer(&self, term: Term) -> (u8, u64) {
        (self.id, term.fence(self.attempt))
    }

    pub(crate) fn on_answer(
        &mut self,
        (hold, id): (Hold, u64),
        answer: Answer,
        term: Term,
        (settings, outbox): (&Settings, &mut Outbox),
    ) -> Came {
        match (hold, answer) {
            (_, Answer::Superseded { fence }) if Term::of_fence(fence) > term => {
                return superseded(Term::of_fence(fence), term);
            }
            // An own attempt whose answer was lost.
            (_, Answer::Superseded { fence }) if Term::of_fence(fence) == term => {
                self.attempt = self.attempt.max(Term::attempt_of(fence));
                return Came::Lost;
            }
            (Hold::Grant, Answer::Granted { number, .. }) => {
                self.had = if number == self.number { self.had } else { 0 };
                self.number = number;
                self.stage = Stage::Reading(Scan::default());
                outbox.read(Use::Hold(self.id, Hold::Head), self.id, Scan::HEAD);
            }
            (Hold::Head | Hold::Log, Answer::Read { number, bytes }) if number == self.number => {
                return self.on_read(&bytes, term, (settings, outbox));
            }
            (Hold::Name, Answer::Done) => match std::mem::replace(&mut self.stage, Stage::Asked) {
                Stage::Naming(scan, place) if settings.is_synced => {
                    self.stage = Stage::Promising(scan, place);
                    self.ask_file(outbox);
                }
                Stage::Naming(scan, place) => {
                    self.stage = Stage::Reading(scan);
                    outbox.read(Use::Hold(self.id, Hold::Log), self.id, place);
                }
                other => self.stage = other,
            },
            (Hold::Kept, Answer::Read { number, bytes }) if number == self.number => {
                return self.on_kept(Kept::decode(&bytes).unwrap_or_default(), term, outbox);
            }
            (_, Answer::Done) => {
                if let Stage::Held(held) = &mut self.stage {
                    match hold {
                        Hold::Entries => held.on_entries(id),
                        Hold::Piece => held.on_piece(),
                        Hold::Mark => held.on_mark(),
                        Hold::Commit => held.on_told(),
                        _ => {}
                    }
                }
            }
            _ => return Came::Lost,
        }
        Came::On
    }

    /// Looks what its owner's file has, unless that is under way.
    pub(crate) fn ask_file(&self, outbox: &mut Outbox) {
        let what = Use::Hold(self.id, Hold::Kept);
        if self.waits_for_file() && !outbox.waits_for(|other| *other == what) {
            outbox.read(what, self.id, (Kept::AT, Kept::BYTES));
        }
    }

    /// Writes the own term into the head once more, where a file is waited for. A memory that was made of its file
    /// meanwhile has the same number, and neither the grant nor what was written and not synced: this WRITE fails then.
    pub(crate) fn probe(&self, term: Term, settings: &Settings, outbox: &mut Outbox) {
        let what = Use::Hold(self.id, Hold::Name);
        if self.waits_for_file() && !outbox.waits_for(|other| *other == what) {
            outbox.write(Hold::Name, self.writer(term), HEAD_AT, Head::name(settings.group, term));
        }
    }

    /// Whether its owner's file has less than is wanted.
    pub(crate) fn waits_for_file(&self) -> bool {
        match &self.stage {
            Stage::Promising(..) => true,
            Stage::Held(held) => held.is_unsynced(),
            _ => false,
        }
    }

    fn on_kept(&mut self, kept: Kept, term: Term, outbox: &mut Outbox) -> Came {
        match std::mem::replace(&mut self.stage, Stage::Asked) {
            Stage::Promising(scan, place) if kept.promised == term => {
                self.stage = Stage::Reading(scan);
                outbox.read(Use::Hold(self.id, Hold::Log), self.id, place);
            }
            Stage::Promising(..) if kept.promised > term => return superseded(kept.promised, term),
            mut other => {
                if let Stage::Held(held) = &mut other {
                    held.on_kept(kept.synced);
                }
                self.stage = other;
            }
        }
        Came::On
    }

    fn on_read(&mut self, bytes: &[u8], term: Term, (settings, outbox): (&Settings, &mut Outbox)) -> Came {
        let Stage::Reading(scan) = &mut self.stage else { return Came::On };
        let is_head = scan.head().is_none();
        let step = scan.on_read(self.number, bytes, settings);
        let above = |head: &Head| head.term > term || head.term == term && !self.is_named;
        if let Some(head) = scan.head().filter(|head| is_head && above(head)) {
            return superseded(head.term, term);
        }
        match step {
            Step::Read(place) if is_head => {
                let scan = std::mem::take(scan);
                self.is_named = true;
                let name = Head::name(settings.group, term);
                outbox.write(Hold::Name, self.writer(term), HEAD_AT, name);
                self.stage = Stage::Naming(scan, place);
            }
            Step::Read(place) => outbox.read(Use::Hold(self.id, Hold::Log), self.id, place),
            Step::Done(found) if self.is_named => self.stage = Stage::Ready(found),
            Step::Done(_) | Step::Foreign => return Came::Lost,
        }
        Came::On
    }
}

/// What a memory's greater term means for one who has `term`.
fn superseded(by: Term, term: Term) -> Came {
    if by.is_believed(term) { Came::Superseded(by) } else { Came::Wild }
}

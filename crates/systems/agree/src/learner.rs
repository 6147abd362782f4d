//! How a follower learns: it looks at its own memory, and nobody's program tells it anything.
//!
//! Owns what it takes for committed. Its memory may hold entries of a leader that is gone, and a leader may be writing
//! there at this moment: it must apply nothing but what a whole chain of entries behind its own last one says.

use crate::action::{Answer, Event, Use};
use crate::context::Context;
use crate::layout::Head;
use crate::machine::Machine;
use crate::scan::{Load, LogScan, Place, Scan};
use crate::term::Term;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) enum Learner {
    #[default]
    Idle,
    Head,
    Log(Box<(Head, LogScan)>),
    Load(Box<Load>),
    /// It has met a snapshot that the machine does not know.
    Stopped,
}

impl Learner {
    /// For people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Head => "reads its head",
            Self::Log(_) => "reads its log",
            Self::Load(_) => "reads a snapshot",
            Self::Stopped => "stopped",
        }
    }

    /// Looks, unless it does already.
    pub(crate) fn begin<M>(&mut self, cx: &mut Context<'_, M>) {
        if matches!(self, Self::Idle) {
            *self = Self::Head;
            ask(Scan::HEAD, cx);
        }
    }

    /// What came; the term in the own memory's head, if it was read.
    pub(crate) fn on_answer<M: Machine>(&mut self, answer: Answer, cx: &mut Context<'_, M>) -> Option<Term> {
        let Answer::Read { bytes, .. } = answer else {
            *self = Self::Idle;
            return None;
        };
        let mut term = None;
        *self = match std::mem::take(self) {
            Self::Head => match Head::decode(&bytes, cx.settings.group, &cx.settings.first()) {
                Some(head) => {
                    term = Some(head.term).filter(|term| term.is_possible());
                    let applied = cx.state.applied;
                    read_log(head, LogScan::new(applied, applied.line, cx.settings), cx)
                }
                None => Self::Idle,
            },
            Self::Log(log) => {
                let (head, mut scan) = *log;
                if scan.on_read(&bytes, cx.settings) { read_log(head, scan, cx) } else { learn(&head, &scan, cx) }
            }
            Self::Load(mut load) => {
                load.on_read(&bytes);
                read_snapshot(load, cx)
            }
            other => other,
        };
        term
    }
}

fn ask<M>(place: Place, cx: &mut Context<'_, M>) {
    cx.outbox.read(Use::Learn, cx.settings.me, place);
}

fn read_log<M: Machine>(head: Head, scan: LogScan, cx: &mut Context<'_, M>) -> Learner {
    match scan.next(cx.settings) {
        Some(place) => {
            ask(place, cx);
            Learner::Log(Box::new((head, scan)))
        }
        None => learn(&head, &scan, cx),
    }
}

/// Applies what is committed of the entries behind the last applied one. An entry names its leader's commit index, and
/// its sum says that all entries before it are that leader's: so what an entry says of those before it holds, whatever
/// became of that leader.
fn learn<M: Machine>(head: &Head, scan: &LogScan, cx: &mut Context<'_, M>) -> Learner {
    let told = scan.entries.iter().map(|entry| entry.tail).filter(|tail| tail.commit_word() == head.commit);
    let said = scan.entries.iter().map(|entry| entry.commit);
    let commit = told.map(|tail| tail.index).chain(said).max().unwrap_or(0);
    let mut learned = false;
    for entry in scan.entries.iter().take_while(|entry| entry.tail.index <= commit) {
        cx.state.apply(entry);
        learned = true;
    }
    if learned || head.mark.tail.index <= cx.state.applied.index {
        return Learner::Idle;
    }
    // The ring has gone past it.
    Load::new(&head.mark, head.bank, cx.settings).map_or(Learner::Idle, |load| read_snapshot(Box::new(load), cx))
}

fn read_snapshot<M: Machine>(load: Box<Load>, cx: &mut Context<'_, M>) -> Learner {
    if let Some(place) = load.next(cx.settings) {
        ask(place, cx);
        return Learner::Load(load);
    }
    match load.snapshot().map(|bytes| cx.state.load(&load.mark, bytes)) {
        Some(Err(_)) => {
            cx.outbox.events.push_back(Event::BadSnapshot);
            Learner::Stopped
        }
        // Else the leader wrote into it meanwhile: the next look finds another.
        _ => Learner::Idle,
    }
}

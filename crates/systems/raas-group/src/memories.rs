//! The members' memories as regions: what a replica's actions become, and how they ended.
//!
//! Owns the handles. It must never write by another handle than that of the fence that an action names, and must answer
//! each action once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use agree::{Action, Answer};
use raas::elsewhere::Sleeper;
use raas::{Batch, Completion, Ended, Pending, Region, RegionError, RegionKey, RegionRefusal, Session};

use crate::class::Class;
use crate::sign;
use crate::wish::{Inbox, News};
use crate::worker::{self, Job, Target};
use crate::writers::Writers;

/// A memory that could not be opened is tried again after this long.
const OPEN_AGAIN: Duration = Duration::from_millis(50);

/// READs of one member's memory that are under way, at most: a host that stands still answers none, and is looked at again
/// and again.
const READS_MAX: usize = 32;

/// Where the memories are.
pub(crate) struct Places {
    pub(crate) session: Session,
    pub(crate) region: String,
    pub(crate) key: RegionKey,
    pub(crate) me: u8,
    pub(crate) hosts: Vec<(u8, IpAddr)>,
    pub(crate) class: Class,
    /// The number of this host's memory.
    pub(crate) number: u64,
}

impl Places {
    /// Who founds the group.
    pub(crate) fn founder(&self) -> u8 {
        self.hosts.iter().map(|(id, _)| *id).min().unwrap_or(self.me)
    }
}

/// What an answer is made of.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Read {
        number: u64,
    },
    /// By the handle of this fence.
    Write {
        fence: u64,
    },
}

#[derive(Debug)]
struct Flight {
    id: u64,
    member: u8,
    kind: Kind,
    pending: Pending,
}

/// Answers, and members that were found to be lost.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) answers: Vec<(u64, Answer)>,
    pub(crate) lost: BTreeSet<u8>,
}

/// See the head of this file.
pub(crate) struct Memories {
    session: Session,
    me: u8,
    own: Region,
    /// Of this host's memory.
    number: u64,
    /// With their memories' numbers.
    readers: BTreeMap<u8, (u64, Region)>,
    /// Memories that a worker opens, or that are to be opened at this moment.
    opening: BTreeMap<u8, Option<Instant>>,
    writers: Writers<Region>,
    workers: BTreeMap<u8, Sender<Job>>,
    flights: Vec<Flight>,
    outcomes: Outcomes,
}

impl Memories {
    pub(crate) fn new<M: Send + 'static>(places: Places, own: Region, inbox: &Arc<Inbox<M>>) -> Self {
        let Places { session, region, key, me, hosts, class, number } = places;
        let worker = |(member, host): (u8, IpAddr)| {
            let target = Target { session: session.clone(), member, host, region: region.clone(), key, class };
            (member, worker::start(target, Arc::clone(inbox) as _))
        };
        let mut memories = Self {
            session: session.clone(),
            me,
            own,
            number,
            readers: BTreeMap::new(),
            opening: BTreeMap::new(),
            writers: Writers::default(),
            workers: hosts.into_iter().map(worker).collect(),
            flights: Vec::new(),
            outcomes: Outcomes::default(),
        };
        let others: Vec<u8> = memories.workers.keys().copied().filter(|id| *id != me).collect();
        others.into_iter().for_each(|member| memories.open(member));
        memories
    }

    fn work(&self, member: u8, job: Job) -> bool {
        self.workers.get(&member).is_some_and(|worker| worker.send(job).is_ok())
    }

    fn open(&mut self, member: u8) {
        let due = match self.opening.get(&member) {
            Some(None) => false,
            Some(Some(at)) => Instant::now() >= *at,
            None => true,
        };
        if due && self.work(member, Job::Open) {
            self.opening.insert(member, None);
        }
    }

    /// Takes the news of the session, which nobody else may follow while no thread waits in it.
    pub(crate) fn follow(&self) {
        Sleeper::new(&self.session).hear(true);
    }

    /// Begins an action.
    pub(crate) fn begin(&mut self, action: Action) {
        match action {
            Action::TakeOver { id, member, fence } => {
                if !self.work(member, Job::TakeOver { id, fence }) {
                    self.outcomes.answers.push((id, Answer::Lost));
                }
            }
            Action::Read { id, member, offset, bytes } => self.read(id, member, offset, bytes),
            Action::Write { id, member, fence, offset, bytes } => self.write(id, (member, fence), offset, bytes),
            Action::Publish { offset, bytes } => {
                if let Err(error) = self.own.write(offset, &bytes) {
                    tracing::debug!(%error, "this host's memory cannot be written");
                }
            }
        }
    }

    fn read(&mut self, id: u64, member: u8, offset: u64, bytes: usize) {
        if member == self.me {
            let mut found = vec![0; bytes];
            let number = self.number;
            let answer = match self.own.read(offset, &mut found) {
                Ok(()) => Answer::Read { number, bytes: found },
                Err(error) => lost(&error),
            };
            return self.outcomes.answers.push((id, answer));
        }
        let Some((number, region)) = self.readers.get(&member) else {
            self.open(member);
            return self.outcomes.answers.push((id, Answer::Lost));
        };
        let is_read = |flight: &&Flight| flight.member == member && matches!(flight.kind, Kind::Read { .. });
        if self.flights.iter().filter(is_read).count() >= READS_MAX {
            return self.outcomes.answers.push((id, Answer::Lost));
        }
        let mut batch = Batch::new();
        batch.read(region, offset, bytes);
        self.submit(id, member, Kind::Read { number: *number }, batch);
    }

    fn write(&mut self, id: u64, (member, fence): (u8, u64), offset: u64, bytes: Vec<u8>) {
        let Some(region) = self.writers.get(member, fence) else {
            return self.outcomes.answers.push((id, Answer::Unknown));
        };
        let mut batch = Batch::new();
        batch.write_as(region, offset, bytes, Completion::Acked);
        self.submit(id, member, Kind::Write { fence }, batch);
    }

    fn submit(&mut self, id: u64, member: u8, kind: Kind, batch: Batch) {
        match batch.submit() {
            Ok(pending) => self.flights.push(Flight { id, member, kind, pending }),
            Err(error) => self.fail(id, member, kind, &error),
        }
    }

    fn fail(&mut self, id: u64, member: u8, kind: Kind, error: &RegionError) {
        tracing::debug!(member, ?kind, %error, "an operation on a member's memory failed");
        let answer = match (kind, error) {
            (Kind::Write { .. }, RegionError::Superseded { term, .. }) => Answer::Superseded { fence: *term },
            (Kind::Write { .. }, RegionError::TooManyPending { .. }) => Answer::Unknown,
            _ => lost(error),
        };
        match kind {
            Kind::Write { fence } => self.writers.remove(member, fence),
            Kind::Read { .. } => {
                self.readers.remove(&member);
                self.opening.insert(member, Some(Instant::now() + OPEN_AGAIN));
                self.outcomes.lost.insert(member);
            }
        }
        self.outcomes.answers.push((id, answer));
    }

    /// A worker is done.
    pub(crate) fn on_news(&mut self, news: News) {
        match news {
            News::Opened { member, result: Ok((0, _)) } => {
                self.opening.insert(member, Some(Instant::now() + OPEN_AGAIN));
            }
            News::Opened { member, result: Ok((number, region)) } => {
                self.opening.remove(&member);
                self.readers.insert(member, (number, region));
            }
            News::Opened { member, result: Err(error) } => {
                tracing::debug!(member, %error, "a member's memory is not opened");
                self.opening.insert(member, Some(Instant::now() + OPEN_AGAIN));
            }
            News::Taken { member, id, fence, result } => {
                let answer = match result {
                    Ok((0, ..)) => Answer::Lost,
                    Ok((number, region, last)) => {
                        self.writers.add(member, fence, region);
                        Answer::Granted { number, last }
                    }
                    Err(RegionError::Superseded { term, .. }) => Answer::Superseded { fence: term },
                    Err(error) => {
                        tracing::debug!(member, %error, "a member's memory is not taken over");
                        Answer::Lost
                    }
                };
                self.outcomes.answers.push((id, answer));
            }
        }
    }

    /// What has ended since the last look. It waits for the oldest operation under way, at most for so long.
    pub(crate) fn collect(&mut self, wait: Duration) -> Outcomes {
        // This host's memory is the quickest, and alone is no majority: it wakes nobody if others are under way.
        let far = self.flights.iter().position(|flight| flight.member != self.me).unwrap_or(0);
        if !wait.is_zero()
            && self.outcomes.answers.is_empty()
            && let Some(first) = self.flights.get_mut(far)
        {
            // What it ended with is taken below, unless this took it.
            if let Ok(Some(ended)) = first.pending.wait_timeout(wait) {
                let Flight { id, member, kind, .. } = self.flights.remove(far);
                self.end(id, member, kind, ended);
            }
        }
        let mut at = 0;
        while let Some(flight) = self.flights.get_mut(at) {
            match flight.pending.try_take() {
                Some(ended) => {
                    let Flight { id, member, kind, .. } = self.flights.remove(at);
                    self.end(id, member, kind, ended);
                }
                None => at += 1,
            }
        }
        std::mem::take(&mut self.outcomes)
    }

    fn end(&mut self, id: u64, member: u8, kind: Kind, mut ended: Ended) {
        let answer = match kind {
            Kind::Write { .. } => ended.check().map(|()| Answer::Done),
            Kind::Read { number } => ended.take_bytes(0).map(|bytes| Answer::Read { number, bytes }),
        };
        match answer {
            Ok(answer) => self.outcomes.answers.push((id, answer)),
            Err(error) => self.fail(id, member, kind, &error),
        }
    }

    /// This member came to lead.
    pub(crate) fn count_led(&self) {
        if let Err(error) = sign::count_led(&self.own) {
            tracing::debug!(%error, "this host's memory cannot be written");
        }
    }

    /// For people: handles by member, and what is under way.
    pub(crate) fn describe(&self) -> String {
        let readers: Vec<&u8> = self.readers.keys().collect();
        let opening: Vec<(&u8, bool)> = self.opening.iter().map(|(id, until)| (id, until.is_none())).collect();
        let writers: Vec<(u8, u64)> = self.writers.fences().collect();
        let flights: Vec<String> = self
            .flights
            .iter()
            .map(|Flight { id, member, kind, pending }| format!("{id} at {member} {kind:?} {pending:?}"))
            .collect();
        format!("readers {readers:?}, opening {opening:?}, writers {writers:?}, under way {flights:?}")
    }

    /// Whether nothing is under way that hastens: if the replica is patient nothing does but what has come.
    pub(crate) fn is_idle(&self, is_patient: bool) -> bool {
        (is_patient || self.flights.is_empty()) && self.outcomes.answers.is_empty()
    }
}

/// What an error means that is no fence.
fn lost(error: &RegionError) -> Answer {
    match error {
        RegionError::OutcomeUnknown { .. }
        | RegionError::Revoked { may_have_landed: true, .. }
        | RegionError::OwnerGone { may_have_landed: true, .. }
        | RegionError::DaemonLost { may_have_landed: true, .. } => Answer::Unknown,
        RegionError::Refused { why: RegionRefusal::Superseded { term }, .. } => Answer::Superseded { fence: *term },
        _ => Answer::Lost,
    }
}

//! What drives a replica: it gives it time and answers, and does what it asks for.
//!
//! Owns the replica. It must answer every caller once, also when the group is closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use agree::{Event, Machine, Refused, Replica, Role};
use rustix::time::{ClockId, clock_gettime};

use crate::class::Class;
use crate::committed::Committed;
use crate::error::GroupError;
use crate::memories::{Memories, Outcomes};
use crate::proposal::Outcome;
use crate::wish::{Caller, Inbox, Reader, Shown, Wish};

/// Longest wait for an operation under way while callers may come.
const LOOK: Duration = Duration::from_micros(100);

/// Of a period, how often members' files are looked at while something waits for them: one in so many.
const FILES_SHARE: u32 = 16;

/// What is said of a member whose memory cannot be believed.
const WILD: &str = "the memory of a member of a group has a term that no program of the group can have, and counts for \
                    nothing, or lacks what was written there: look who else has the group's key there; a new memory is a \
                    member again";

/// See the head of this file.
pub(crate) struct Driver<M> {
    replica: Replica<M>,
    memories: Memories,
    inbox: Arc<Inbox<M>>,
    period: Duration,
    /// The next period begins.
    next: Instant,
    is_over: bool,
    class: Class,
    role: Role,
    applied: u64,
    waiting: BTreeMap<(u64, u64), Vec<Caller>>,
    reads: BTreeMap<u64, Reader<M>>,
    /// By member: how often its memory said what nobody can have written.
    wild: BTreeMap<u8, u64>,
}

impl<M: Machine> Driver<M> {
    pub(crate) fn new(
        replica: Replica<M>,
        memories: Memories,
        inbox: &Arc<Inbox<M>>,
        (period, class): (Duration, Class),
    ) -> Self {
        let role = Role::Follower { leader: None };
        let driver = Self {
            replica,
            memories,
            inbox: Arc::clone(inbox),
            period,
            next: Instant::now(),
            is_over: false,
            class,
            role,
            applied: 0,
            waiting: BTreeMap::new(),
            reads: BTreeMap::new(),
            wild: BTreeMap::new(),
        };
        driver.show();
        driver
    }

    /// One round: what was left here, time, and what ends. It waits for an operation under way, but not for long.
    pub(crate) fn round(&mut self) {
        let (wishes, news) = self.inbox.take();
        for wish in wishes {
            if matches!(wish, Wish::Close) {
                return self.close();
            }
            self.on_wish(wish);
        }
        news.into_iter().for_each(|news| self.memories.on_news(news));
        self.hear(Duration::ZERO);
        if Instant::now() >= self.next {
            self.memories.follow();
            self.replica.tick(now_us());
            self.next = Instant::now() + self.period;
        }
        self.pump();
        if self.replica.waits_for_files() {
            self.next = self.next.min(Instant::now() + self.period / FILES_SHARE);
        }
        if self.rest().is_zero() {
            self.hear(LOOK.min(self.next.saturating_duration_since(Instant::now())));
        }
        self.inbox.wakes.finish();
    }

    /// Gives the replica what has ended; waits for it at most so long.
    fn hear(&mut self, wait: Duration) {
        let Outcomes { answers, lost } = self.memories.collect(wait);
        lost.into_iter().for_each(|member| self.replica.link_lost(member));
        answers.into_iter().for_each(|(id, answer)| self.replica.answer(id, answer));
        self.pump();
    }

    /// For how long there is nothing to do, unless something is left here.
    pub(crate) fn rest(&self) -> Duration {
        let is_idle = self.memories.is_idle(self.replica.is_patient());
        if is_idle { self.next.saturating_duration_since(Instant::now()) } else { Duration::ZERO }
    }

    /// Whether callers wait for an answer.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty() || !self.reads.is_empty()
    }

    /// The group was closed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Begins what the replica asks for, and tells callers what it says.
    fn pump(&mut self) {
        while let Some(action) = self.replica.action() {
            self.memories.begin(action);
        }
        let mut has_news = false;
        while let Some(event) = self.replica.event() {
            has_news |= self.on_event(event);
        }
        self.inbox.wakes.begin();
        let has_applied = self.applied != self.replica.applied();
        self.applied = self.replica.applied();
        if has_news {
            self.show();
        } else if has_applied {
            self.inbox.show_applied(self.applied);
        }
    }

    fn show(&self) {
        let members = self.replica.members().clone();
        let (role, applied, is_over) = (self.role, self.applied, self.is_over);
        self.inbox.show(Shown { role, members, applied, is_over });
    }

    fn on_wish(&mut self, wish: Wish<M>) {
        match wish {
            Wish::Propose { client, number, bytes, caller } => match self.replica.propose(client, number, &bytes) {
                Ok(()) => self.waiting.entry((client, number)).or_default().push(caller),
                Err(refused) => caller(Err(refused.into())),
            },
            Wish::Read(reader) => match self.replica.read(now_us()) {
                Ok(read) => drop(self.reads.insert(read, reader)),
                Err(refused) => reader(Err(refused.into())),
            },
            Wish::Alter { id, is_added, reply } => {
                let altered = if is_added { self.replica.add(id) } else { self.replica.remove(id) };
                tell(&reply, altered.map_err(Refused::into));
            }
            Wish::Describe(reply) => {
                tell(&reply, format!("{}; {}", self.replica.describe(), self.memories.describe()));
            }
            Wish::Close => {}
        }
    }

    /// Whether what is shown changes.
    fn on_event(&mut self, event: Event) -> bool {
        match event {
            Event::Committed { index, client, number, reply } => {
                self.answer((client, number), &Ok(Committed { index, reply, class: self.class }));
            }
            Event::Unknown { client, number } => self.answer((client, number), &Err(GroupError::Unknown)),
            Event::Readable { read } => {
                if let Some(reader) = self.reads.remove(&read) {
                    reader(Ok(self.replica.machine()));
                }
            }
            Event::ReadFailed { read } => {
                if let Some(reader) = self.reads.remove(&read) {
                    reader(Err(GroupError::LeadsNoMore));
                }
            }
            Event::Role(role) => {
                if matches!(role, Role::Leader { .. }) {
                    self.memories.count_led();
                }
                tracing::info!(?role, "this member of a group");
                self.role = role;
                return true;
            }
            Event::Members(members) => {
                tracing::info!(?members, "the members of a group are others now");
                return true;
            }
            Event::SnapshotTooLarge { bytes, max } => {
                tracing::warn!(bytes, max, "the state of a group is too large, so its log will be full");
            }
            Event::Wild { member } => self.on_wild(member),
            Event::BadSnapshot => {
                tracing::error!("the machine does not know a snapshot of its group: this member learns nothing more");
            }
        }
        false
    }

    /// Says it, and again when it was met twice as often.
    fn on_wild(&mut self, member: u8) {
        let times = self.wild.entry(member).or_insert(0u64);
        *times += 1;
        if times.is_power_of_two() {
            let times = *times;
            tracing::warn!(member, times, "{WILD}");
        }
    }

    fn answer(&mut self, of: (u64, u64), outcome: &Outcome) {
        let waiting = self.waiting.remove(&of).unwrap_or_default();
        waiting.into_iter().for_each(|caller| caller(outcome.clone()));
    }

    /// Answers everybody who waits, and nobody drives from here on.
    pub(crate) fn close(&mut self) {
        self.is_over = true;
        self.show();
        for of in self.waiting.keys().copied().collect::<Vec<_>>() {
            self.answer(of, &Err(GroupError::Unknown));
        }
        std::mem::take(&mut self.reads).into_values().for_each(|reader| reader(Err(GroupError::Closed)));
        self.inbox.wakes.finish();
        // Those who came between the two have no answer, and find that nobody has their end.
        drop(self.inbox.take());
    }
}

/// The clock of leases goes on while the machine sleeps.
fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1000).unwrap_or(0)
}

/// A caller that has gone wants nothing.
fn tell<T>(reply: &SyncSender<T>, result: T) {
    let _ = reply.try_send(result);
}

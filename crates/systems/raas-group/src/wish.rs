//! What callers and workers leave for the driver's thread.
//!
//! Owns the one lock between them, and the bell. It must never hold that lock while anything else is done.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use agree::{Members, Role};
use raas::{Region, RegionError};

use crate::error::GroupError;
use crate::proposal::{Outcome, Wakes};

/// Who waits for the end of a command. Dropped, it says that the group was closed.
pub(crate) type Caller = Box<dyn FnOnce(Outcome) + Send>;

/// A call with the machine, when it has everything that was committed.
pub(crate) type Reader<M> = Box<dyn FnOnce(Result<&M, GroupError>) + Send>;

/// What a caller wants.
pub(crate) enum Wish<M> {
    Propose { client: u64, number: u64, bytes: Vec<u8>, caller: Caller },
    Read(Reader<M>),
    Alter { id: u8, is_added: bool, reply: SyncSender<Result<(), GroupError>> },
    Describe(SyncSender<String>),
    Close,
}

/// What a worker has done.
pub(crate) enum News {
    /// With the number of the memory: 0 if it waits for its file.
    Opened { member: u8, result: Result<(u64, Region), RegionError> },
    /// The same, and what was granted before.
    Taken { member: u8, id: u64, fence: u64, result: Result<(u64, Region, u64), RegionError> },
}

/// What everybody may see of a replica.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) role: Role,
    pub(crate) members: Members,
    pub(crate) applied: u64,
    pub(crate) is_over: bool,
}

struct State<M> {
    wishes: VecDeque<Wish<M>>,
    news: VecDeque<News>,
    shown: Shown,
    /// Clients of this program that have nothing under way, and their last numbers.
    clients: Vec<(u64, u64)>,
    last_client: u64,
    /// The group's thread is to look: it sleeps, or was called since it last did.
    is_asleep: bool,
    is_rung: bool,
    /// Threads that wait for what is shown.
    watchers: u32,
    /// Tasks that wait for another role.
    role_watchers: Vec<Waker>,
}

/// See the head of this file.
pub(crate) struct Inbox<M> {
    state: Mutex<State<M>>,
    bell: Condvar,
    /// Rung when what is shown has changed.
    changed: Condvar,
    /// Of tasks whose commands have ended.
    pub(crate) wakes: Arc<Wakes>,
}

/// What workers know of it.
pub(crate) trait Mailbox: Send + Sync {
    fn tell(&self, news: News);
}

impl<M: Send> Mailbox for Inbox<M> {
    fn tell(&self, news: News) {
        self.lock().news.push_back(news);
        self.ring();
    }
}

impl<M> Inbox<M> {
    /// Clients get numbers from this one on.
    pub(crate) fn new(first_client: u64) -> Arc<Self> {
        let role = Role::Follower { leader: None };
        let shown = Shown { role, members: Members::new(&[]), applied: 0, is_over: false };
        let state = State {
            wishes: VecDeque::new(),
            news: VecDeque::new(),
            shown,
            clients: Vec::new(),
            last_client: first_client,
            is_asleep: false,
            is_rung: false,
            watchers: 0,
            role_watchers: Vec::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            bell: Condvar::new(),
            changed: Condvar::new(),
            wakes: Arc::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A caller leaves a wish, and sees to it that somebody looks. False: nobody takes it any more.
    pub(crate) fn wish(&self, wish: Wish<M>) -> bool {
        let mut state = self.lock();
        let is_open = !state.shown.is_over;
        if is_open {
            state.wishes.push_back(wish);
        }
        is_open
    }

    /// Calls the group's thread.
    pub(crate) fn ring(&self) {
        let mut state = self.lock();
        state.is_rung = true;
        if std::mem::take(&mut state.is_asleep) {
            drop(state);
            self.bell.notify_one();
        }
    }

    pub(crate) fn has_wishes(&self) -> bool {
        !self.lock().wishes.is_empty()
    }

    /// The group's thread sleeps until it is called, at most for so long.
    pub(crate) fn rest(&self, most: Duration) {
        let mut state = self.lock();
        if !state.is_rung && !most.is_zero() {
            state.is_asleep = true;
            state = self.bell.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
            state.is_asleep = false;
        }
        state.is_rung = false;
    }

    /// What is there.
    pub(crate) fn take(&self) -> (VecDeque<Wish<M>>, VecDeque<News>) {
        let mut state = self.lock();
        (std::mem::take(&mut state.wishes), std::mem::take(&mut state.news))
    }

    /// A client without a command under way, and the number of its next one.
    pub(crate) fn take_client(&self) -> (u64, u64) {
        let mut state = self.lock();
        let (client, last) = state.clients.pop().unwrap_or_else(|| {
            state.last_client = state.last_client.wrapping_add(1);
            (state.last_client, 0)
        });
        (client, last + 1)
    }

    /// Its command has ended. One of which nobody knows may still come: its client is not used again.
    pub(crate) fn on_end(&self, client: u64, number: u64, outcome: &Outcome) {
        if !matches!(outcome, Err(GroupError::Unknown | GroupError::Closed)) {
            self.lock().clients.push((client, number));
        }
    }

    pub(crate) fn show(&self, shown: Shown) {
        self.change(|state| state.shown = shown);
    }

    pub(crate) fn show_applied(&self, applied: u64) {
        self.change(|state| state.shown.applied = applied);
    }

    fn change(&self, change: impl FnOnce(&mut State<M>)) {
        let mut state = self.lock();
        let role = state.shown.role;
        change(&mut state);
        let has_changed = state.shown.role != role || state.shown.is_over;
        let tasks = if has_changed { std::mem::take(&mut state.role_watchers) } else { Vec::new() };
        let is_watched = state.watchers > 0;
        drop(state);
        if is_watched {
            self.changed.notify_all();
        }
        tasks.into_iter().for_each(Waker::wake);
    }

    /// What the role is, if it is another one than `was` or the last one; else `waker` is woken when it may be.
    pub(crate) fn poll_role(&self, was: Role, waker: &Waker) -> Poll<Role> {
        let mut state = self.lock();
        if state.shown.role != was || state.shown.is_over {
            return Poll::Ready(state.shown.role);
        }
        if !state.role_watchers.iter().any(|other| other.will_wake(waker)) {
            state.role_watchers.push(waker.clone());
        }
        Poll::Pending
    }

    pub(crate) fn shown(&self) -> Shown {
        self.lock().shown.clone()
    }

    /// Waits until what is shown is as wanted, or for so long: whether it is.
    pub(crate) fn wait_until(&self, within: Duration, wanted: &dyn Fn(&Shown) -> bool) -> bool {
        let mut state = self.lock();
        state.watchers += 1;
        let waits = |state: &mut State<M>| !wanted(&state.shown);
        let waited = self.changed.wait_timeout_while(state, within, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.watchers -= 1;
        wanted(&state.shown)
    }
}

//! Looking at the hot connections of a set: what of them is asked, and what the program is told.
//!
//! It must never keep what it found of a connection of which something was told or asked meanwhile.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::epoll_event;

use super::entry::{bits_of_epoll, bits_of_poll, is_edge};
use super::{EpollSet, HOT_MAX, State};
use crate::connection::{Connection, Edges, How, Ready, lock};

/// One of so many looks asks hot connections too whose stamp has not changed: for what this side did.
const WHOLE_SHARE: u32 = 16;

/// What a look is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looking {
    /// One of many, between yields.
    InPassing,
    /// The one of a wait.
    ForWait,
    /// The thread is about to sleep: connections that are not ready announce it.
    BeforeSleep,
}

/// A hot connection, and how the program asked for it.
pub(super) struct Hot {
    pub(super) fd: c_int,
    pub(super) connection: Arc<Connection>,
    /// None: it is not armed.
    pub(super) events: u32,
    pub(super) is_announced: bool,
    pub(super) turn: u32,
    pub(super) stamp: Option<u64>,
}

/// What was found of it.
pub(super) struct Looked {
    pub(super) hot: Hot,
    pub(super) ready: Ready,
    pub(super) edges: Edges,
    /// It announces changes since.
    pub(super) was_told: bool,
}

impl Hot {
    pub(super) fn look(self, announces: bool) -> Looked {
        let was_told = announces && !self.is_announced;
        let how = if was_told { How::announce(is_edge(self.events)) } else { How::Glance };
        let ready = self.connection.ready(self.fd, bits_of_poll(self.events), how);
        // Behind the look: what came before the announcement is told by nobody, so it must be counted here.
        let edges = if is_edge(self.events) { self.connection.edges() } else { Edges::default() };
        Looked { hot: self, ready, edges, was_told }
    }
}

impl EpollSet {
    /// Hot connections that are there, as they were asked for; without those of which a look is sure to find nothing.
    pub(super) fn hot(&self, looking: Looking) -> Vec<Hot> {
        let is_whole =
            looking == Looking::BeforeSleep || self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(WHOLE_SHARE);
        let mut state = lock(&self.state);
        let State { registered, hot, .. } = &mut *state;
        let is_crowded = hot.len() > HOT_MAX;
        let mut all = Vec::with_capacity(hot.len());
        hot.retain(|fd| {
            let Some(entry) = registered.get_mut(fd) else { return false };
            if let Some(connection) = entry.connection.upgrade() {
                // Before the look: what comes behind it has another stamp.
                let stamp = connection.stamp();
                if !is_whole && stamp.is_some() && stamp == entry.stamp {
                    entry.note_still(looking != Looking::InPassing, is_crowded);
                    return entry.is_hot;
                }
                let events = if entry.is_armed { entry.events } else { 0 };
                let (turn, is_announced) = (entry.turn(), entry.is_announced);
                all.push(Hot { fd: *fd, connection, events, is_announced, turn, stamp });
                return true;
            }
            // It was closed.
            if entry.is_linked {
                self.linked.fetch_sub(1, Ordering::AcqRel);
            }
            registered.remove(fd);
            false
        });
        // The next look begins elsewhere, so that a short list of events starves nobody.
        if hot.len() > 1 {
            hot.rotate_left(1);
        }
        all
    }

    /// What streams have to report.
    pub(super) fn look(&self, room: &mut [epoll_event], looking: Looking) -> usize {
        self.take_told();
        self.pump_unsettled();
        if self.linked.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ready_count = 0;
        let hot = self.hot(looking);
        let mut looked = Vec::with_capacity(hot.len());
        for one in hot {
            if ready_count == room.len() {
                break;
            }
            // Without the lock, as in `pump_unsettled`.
            let one = one.look(looking == Looking::BeforeSleep);
            ready_count += usize::from(one.ready.now != 0);
            looked.push(one);
        }
        self.report(room, &mut looked, looking)
    }

    /// Tells the program of what was found.
    fn report(&self, room: &mut [epoll_event], looked: &mut [Looked], looking: Looking) -> usize {
        let (mut count, mut has_still) = (0, false);
        let mut state = lock(&self.state);
        let State { registered, hot, .. } = &mut *state;
        let is_crowded = hot.len() > HOT_MAX;
        for Looked { hot: Hot { fd, connection, events, turn, stamp, .. }, ready, edges, was_told } in looked {
            if count == room.len() {
                break;
            }
            let Some(entry) = registered.get_mut(fd).filter(|entry| entry.is_of(connection)) else { continue };
            self.update_kernel(*fd, entry, connection, false);
            if entry.is_linked && connection.is_the_kernels() && self.unlink(*fd, entry) {
                (entry.is_hot, has_still) = (false, true);
                continue;
            }
            entry.add_kernels(*fd, connection, ready);
            if *was_told {
                entry.note_announced(*turn);
            }
            if !entry.reports(ready, *edges) {
                entry.note_stamp(*turn, *stamp);
                entry.note_still(looking != Looking::InPassing, is_crowded);
                has_still |= !entry.is_hot;
                continue;
            }
            entry.begin_turn();
            if *events & libc::EPOLLONESHOT as u32 != 0 {
                entry.is_armed = false;
                self.update_kernel(*fd, entry, connection, false);
            }
            room[count] = epoll_event { events: bits_of_epoll(ready.now), u64: entry.data };
            count += 1;
        }
        if has_still {
            hot.retain(|fd| registered.get(fd).is_some_and(|entry| entry.is_hot));
        }
        count
    }
}

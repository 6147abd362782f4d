//! Sleeping until something happens, and what the leading thread does meanwhile: takes the doorbell, reads the sockets,
//! follows the daemon, notifies the others.
//!
//! Owns the sleep handshake with the engine. It must never hold a table's lock while it notifies, and never sleep
//! without having announced it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use control::{ChannelError, Received, Reply};
use raas_core::{DaemonMessage, News, PairSocket, SessionFault, Woken, admit};
use rustix::event::PollFd;
use shm::{Drained, end_sleep, prepare_sleep};

use crate::attachment::Attachment;
use crate::driver::{Driver, TOKEN_CONTROL, TOKEN_DIRECT, TOKEN_KICK, TOKEN_PAIRS, TOKEN_TCP, TOKEN_WAKE};
use crate::error::SessionError;
use crate::park::{Parker, lock};
use crate::poller::Waiter;
use crate::reactor::{Role, SLEEP_MAX, sleep_bound};

/// Control messages handled in one round.
const MESSAGES_MAX: usize = 256;

impl Attachment {
    /// Sleeps until `ready`, a notification of `parker`, `deadline` or [`SLEEP_MAX`]; the caller looks again. The
    /// caller announced before that it waits.
    pub(crate) fn block(
        self: &Arc<Self>,
        parker: &Arc<Parker>,
        deadline: Option<Instant>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<(), SessionError> {
        self.block_beside(parker, None, deadline, &mut || {}, ready)
    }

    /// As [`Attachment::block`]. A thread that does not lead sleeps on the descriptor `beside` too, if it can, and so
    /// needs nobody to wake it for that. Otherwise `arm` has the session's set tell of it.
    pub(crate) fn block_beside(
        self: &Arc<Self>,
        parker: &Arc<Parker>,
        beside: Option<PollFd<'_>>,
        deadline: Option<Instant>,
        arm: &mut dyn FnMut(),
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<(), SessionError> {
        self.check_fork()?;
        let beside = beside.filter(|_| parker.can_poll());
        parker.prepare();
        if beside.is_none() {
            arm();
        }
        // A notification that was forgotten just now came with news that are seen by this look.
        fence(Ordering::SeqCst);
        if ready() {
            return Ok(());
        }
        let leadership = match self.reactor.enter(parker) {
            Role::Leader(leadership) => leadership,
            Role::Follower(ticket) => match self.reactor.follow(ticket, parker, beside, deadline) {
                Some(leadership) => leadership,
                None => return Ok(()),
            },
        };
        // Leadership is dropped last, so that the next leader finds the driver free.
        let mut driver = lock(&self.driver);
        self.lead(&mut driver, parker, deadline, &mut || {
            arm();
            ready()
        });
        drop(driver);
        drop(leadership);
        Ok(())
    }

    /// Watches the descriptors until the leader's own wait is over. A notification ends it too: a thread that announced
    /// a sleep to a peer and was woken must announce the next sleep again.
    fn lead(
        self: &Arc<Self>,
        driver: &mut Driver,
        parker: &Parker,
        deadline: Option<Instant>,
        ready: &mut dyn FnMut() -> bool,
    ) {
        loop {
            prepare_sleep(&self.app_sleep);
            self.take_doorbells(driver);
            if ready() || parker.is_notified() {
                return end_sleep(&self.app_sleep);
            }
            let bound = sleep_bound(deadline);
            let woken = driver.sleep(self.epoll.as_fd(), self.look_due().map_or(bound, |due| due.min(bound)));
            end_sleep(&self.app_sleep);
            if woken {
                self.handle_events(driver);
            }
            self.try_return();
            self.try_show();
            self.sweep(driver);
            if parker.is_notified() || ready() || deadline.is_some_and(|d| Instant::now() >= d) {
                return;
            }
        }
    }

    /// Does what a sleeping leader would do now, and returns: for threads that look and do not sleep. Nothing if
    /// somebody leads.
    pub(crate) fn look(self: &Arc<Self>) {
        // A forked child would take its parent's news.
        if self.check_fork().is_err() {
            return;
        }
        if let Some(leadership) = self.reactor.try_lead() {
            let mut driver = lock(&self.driver);
            self.take_doorbells(&mut driver);
            if driver.sleep(self.epoll.as_fd(), Duration::ZERO) {
                self.handle_events(&mut driver);
            }
            self.try_return();
            self.try_show();
            self.sweep(&mut driver);
            drop(driver);
            drop(leadership);
        }
    }

    /// Wakes the threads that wait on the slots which the engine marked.
    pub(crate) fn take_doorbells(&self, driver: &mut Driver) {
        driver.take_doorbells(|slots| {
            let bells = lock(&self.bells).of_slots(slots);
            bells.iter().for_each(|bell| bell.notify());
        });
    }

    /// Reads every descriptor that was ready.
    pub(crate) fn handle_events(&self, driver: &mut Driver) {
        let ready = std::mem::take(&mut driver.ready);
        if ready.contains(&TOKEN_CONTROL) {
            self.read_control(driver);
        }
        for &token in &ready {
            match token {
                TOKEN_CONTROL => {}
                TOKEN_WAKE => self.read_wake(driver),
                TOKEN_KICK => {
                    // Nothing to read means that a leader before took it.
                    let _ = rustix::io::read(&self.kick, &mut [0; 8]);
                }
                token if token >= TOKEN_TCP => {
                    let waiters = lock(&self.tables).waiters_at(u16::try_from(token - TOKEN_TCP).unwrap_or_default());
                    waiters.iter().for_each(Waiter::notify);
                }
                token if token >= TOKEN_DIRECT => {
                    self.on_direct_event(u32::try_from(token - TOKEN_DIRECT).unwrap_or(u32::MAX));
                }
                token => {
                    let pair = lock(&self.tables).session.pair(token - TOKEN_PAIRS).cloned();
                    if let Some(pair) = pair {
                        self.read_pair(driver, &pair);
                    }
                }
            }
        }
        driver.ready = ready;
        self.take_doorbells(driver);
    }

    fn read_control(&self, driver: &mut Driver) {
        for _ in 0..MESSAGES_MAX {
            if self.is_over() || self.is_away() {
                return;
            }
            match control::receive::<Reply>(self.control.as_fd(), &mut driver.buffer) {
                Ok(received) => {
                    if let Err(e) = self.on_reply(received) {
                        return self.on_gone(e);
                    }
                }
                Err(ChannelError::WouldBlock) => return,
                Err(e) => return self.on_gone(SessionFault::from(e).into()),
            }
        }
    }

    /// Follows one message of the daemon.
    fn on_reply(&self, received: Received<Reply>) -> Result<(), SessionError> {
        let mut message = admit(received)?;
        if let DaemonMessage::Direct { connection, slot, socket } = &mut message
            && let Some(socket) = socket.take()
        {
            self.take_direct(*connection, *slot, socket);
            return Ok(());
        }
        let (news, pair) = {
            let mut tables = lock(&self.tables);
            let news = tables.on_message(message)?;
            let pair = if let News::PairOpened(pair) = news { tables.session.pair(pair).cloned() } else { None };
            (news, pair)
        };
        if let (News::PairOpened(id), Some(pair)) = (news, pair) {
            let token = id.checked_add(TOKEN_PAIRS).filter(|token| *token < TOKEN_DIRECT);
            let token = token.ok_or_else(|| SessionError::Protocol(format!("pair number {id} is too large")))?;
            self.watch(pair.fd(), token)?;
        }
        if news == News::Region {
            self.follow_region_news();
        }
        self.send_outgoing()
    }

    fn follow_region_news(&self) {
        loop {
            let news = lock(&self.tables).session.next_region_news();
            let Some(news) = news else { return };
            // Outside of the tables' lock: the handle may send.
            self.regions.follow(news);
        }
    }

    fn read_wake(&self, driver: &mut Driver) {
        driver.dirty.clear();
        match self.wake.drain(&mut driver.dirty) {
            // The daemon ends: its engines may be gone before its last words come. The control socket has them, and ends
            // with the process however that ends, so it alone decides what this end means.
            Ok(Drained::Hangup) | Err(_) => self.unwatch(self.wake.fd()),
            Ok(_) => {}
        }
    }

    fn read_pair(&self, driver: &mut Driver, pair: &PairSocket) {
        driver.dirty.clear();
        let woken = pair.drain(&mut driver.dirty);
        lock(&self.tables).session.take_told(pair.id(), &mut driver.dirty);
        if woken == Woken::HungUp {
            self.unwatch(pair.fd());
        }
        let bells = match woken {
            Woken::Slots => lock(&self.bells).of_pair_slots(pair.id(), &driver.dirty),
            Woken::All | Woken::HungUp => lock(&self.bells).of_pair(pair.id()),
        };
        bells.iter().for_each(|bell| bell.notify());
        self.reap(pair.id());
    }

    /// About once a second: finishes what a lost wake left over.
    pub(crate) fn sweep(&self, driver: &mut Driver) {
        if driver.swept.elapsed() < SLEEP_MAX {
            return;
        }
        driver.swept = Instant::now();
        lock(&self.tables).session.sweep();
        let _ = self.send_outgoing();
    }
}

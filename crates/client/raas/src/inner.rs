//! The session with the daemon: its descriptors and memory, and sleeping until something happens.
//!
//! Owns the control socket, the session segment and the sleep protocol with the engine. It must never block without a
//! bound, and never be used by a forked child.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use control::{ChannelError, Reason, Request, Role};
use rustix::event::{EventfdFlags, PollFlags, epoll, eventfd};
use shm::{EnginePage, Segment, Sharing, WakeSocket, Word32, end_sleep, prepare_sleep};

use crate::SessionError;
use crate::attach::{Welcome, attach, channel_error, is_hung_up, wait_for};
use crate::driver::{Driver, TOKEN_CONTROL, TOKEN_KICK, TOKEN_TCP, TOKEN_WAKE};
use crate::entrance::Entrance;
use crate::lane::LaneSlots;
use crate::listening::Listening;
use crate::pair::PairLink;
use crate::park::{Parker, lock};
use crate::patience::{WaitPolicy, YieldTurns};
use crate::reactor::{Place, Reactor};
use crate::tables::Tables;

/// How long the control socket may be full before the daemon counts as silent.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// What a session is made with.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) policy: WaitPolicy,
    pub(crate) timeout: Duration,
}

/// A session; shared by all its streams and listeners.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) policy: WaitPolicy,
    pub(crate) turns: YieldTurns,
    pub(crate) path: PathBuf,
    pub(crate) timeout: Duration,
    pub(crate) config: Config,
    /// What took its place when the daemon was lost.
    pub(crate) successor: Mutex<Option<Arc<Self>>>,
    /// Ports that were opened in it.
    listenings: Mutex<Vec<Weak<Listening>>>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) release: String,
    pub(crate) number: u64,
    pub(crate) memory: shm::Session,
    pub(crate) engine_sleep: Word32,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) lane_slots: Mutex<LaneSlots>,
    pub(crate) control: OwnedFd,
    pub(crate) wake: WakeSocket,
    pub(crate) epoll: OwnedFd,
    /// Wakes the leader, who sleeps on descriptors and not on its parker.
    pub(crate) kick: OwnedFd,
    app_sleep: Word32,
    pid: AtomicU32,
    /// Code of the reason + 1 once the daemon is gone.
    lost: AtomicU32,
    next_request: AtomicU64,
    /// There is a watcher.
    watched: Mutex<bool>,
    reactor: Reactor,
    driver: Mutex<Driver>,
}

impl Inner {
    /// Attaches to the daemon as an application; it has `within` to answer.
    pub(crate) fn connect(config: Config, within: Duration) -> Result<Arc<Self>, SessionError> {
        let (control, welcome) = attach(&config.path, Role::Application, config.name.clone(), within)?;
        let Welcome { release, session, slots, session_bytes, engine_page_bytes, addresses, fds } = welcome;
        let Ok([segment, page, wake]) = <[OwnedFd; 3]>::try_from(fds) else {
            return Err(SessionError::Protocol("Welcome without its three descriptors".into()));
        };
        let refused = |e: &dyn std::fmt::Display| SessionError::Protocol(format!("session memory: {e}"));
        let segment = Segment::accept(segment, session_bytes, Sharing::ReadWrite).map_err(|e| refused(&e))?;
        let memory = shm::Session::open(segment.into_region(), slots).map_err(|e| refused(&e))?;
        let page = Segment::accept(page, engine_page_bytes, Sharing::PeerReadOnly).map_err(|e| refused(&e))?;
        let page = EnginePage::open(page.into_region()).map_err(|e| refused(&e))?;
        let wake = WakeSocket::from_fd(wake).map_err(|e| SessionError::io("wake socket", e))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(SessionError::os("epoll_create"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let kick = eventfd(0, flags).map_err(SessionError::os("eventfd"))?;
        watch(epoll.as_fd(), kick.as_fd(), TOKEN_KICK)?;
        watch(epoll.as_fd(), control.as_fd(), TOKEN_CONTROL)?;
        watch(epoll.as_fd(), wake.fd(), TOKEN_WAKE)?;
        Ok(Arc::new(Self {
            policy: config.policy,
            turns: YieldTurns::new(),
            path: config.path.clone(),
            timeout: config.timeout,
            config,
            successor: Mutex::new(None),
            listenings: Mutex::default(),
            addresses,
            release,
            number: session,
            engine_sleep: page.engine_sleep(),
            app_sleep: memory.app_sleep(),
            driver: Mutex::new(Driver::new(memory.e2a())),
            lane_slots: Mutex::new(LaneSlots::new(memory.slots())),
            memory,
            tables: Mutex::default(),
            control,
            wake,
            epoll,
            kick,
            pid: AtomicU32::new(std::process::id()),
            lost: AtomicU32::new(0),
            next_request: AtomicU64::new(1),
            watched: Mutex::new(false),
            reactor: Reactor::default(),
        }))
    }

    /// The process that made the session.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Refuses a forked child: descriptors, slots and rings are its parent's.
    pub(crate) fn check_fork(&self) -> Result<(), SessionError> {
        let owner = self.pid();
        if std::process::id() == owner { Ok(()) } else { Err(SessionError::Forked { owner }) }
    }

    /// Makes this process look like a forked child, or its own again.
    #[cfg(test)]
    pub(crate) fn pretend_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    pub(crate) fn next_request(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    // ---- talking to the daemon

    /// Sends a request; waits, with a bound, while the socket is full.
    pub(crate) fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), SessionError> {
        self.check_fork()?;
        let deadline = Instant::now() + SEND_TIMEOUT;
        loop {
            if let Some(reason) = self.lost() {
                return Err(SessionError::Lost { reason });
            }
            match control::send_message(self.control.as_fd(), request, fds) {
                Ok(()) => return Ok(()),
                Err(ChannelError::WouldBlock) => {
                    if !wait_for(self.control.as_fd(), PollFlags::OUT, deadline)? {
                        return Err(SessionError::Silent { path: self.path.clone(), waited: SEND_TIMEOUT });
                    }
                }
                // Whoever waits for the answer finds the loss, with the daemon's last words if it had any.
                Err(ChannelError::Closed) => return Ok(()),
                Err(e) => return Err(channel_error(e)),
            }
        }
    }

    /// Sends what the daemon need not know if it is gone.
    pub(crate) fn tell(&self, request: &Request) {
        // An error means that the session is over or the daemon hangs; either way it forgets this session as a whole.
        let _ = self.send(request, &[]);
    }

    /// Wakes the engine, which was seen asleep.
    #[cold]
    pub(crate) fn wake_engine(&self) {
        if self.wake.wake().is_err() {
            self.lose(SessionError::Lost { reason: Reason::DaemonLost });
        }
    }

    /// Why the daemon is gone, if it is.
    #[inline]
    pub(crate) fn lost(&self) -> Option<Reason> {
        match self.lost.load(Ordering::Acquire) {
            0 => None,
            code => Some(Reason::from_code(code - 1)),
        }
    }

    /// Whether the daemon is there, as far as the kernel knows now.
    pub(crate) fn daemon_is_there(&self) -> bool {
        self.lost().is_none() && !matches!(is_hung_up(self.control.as_fd()), Ok(true))
    }

    /// The daemon is gone, or not to be believed: everything that needs it fails now. Same-host connections go on.
    pub(crate) fn lose(&self, error: SessionError) {
        let reason = match &error {
            SessionError::Lost { reason } | SessionError::Refused { reason, .. } => *reason,
            _ => Reason::DaemonLost,
        };
        if self.lost.compare_exchange(0, reason.code() + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        // Explicitly: a forked child may hold the descriptors open, and then closing would not take them out.
        let _ = epoll::delete(&self.epoll, &self.control);
        let _ = epoll::delete(&self.epoll, self.wake.fd());
        // A daemon that lives and broke the protocol learns it this way.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        let waiters = lock(&self.tables).lose(error);
        waiters.iter().for_each(|w| w.notify());
        let conns: Vec<_> = lock(&self.lane_slots).iter().filter_map(std::sync::Weak::upgrade).collect();
        conns.iter().for_each(|c| c.notify());
        self.kick();
    }

    /// The slot is about to be given back.
    pub(crate) fn forget_slot(&self, slot: u32) {
        lock(&self.lane_slots).set(slot, std::sync::Weak::new());
    }

    /// Starts to watch a pair's socket.
    pub(crate) fn watch_pair(&self, pair: &PairLink, token: u64) -> Result<(), SessionError> {
        watch(self.epoll.as_fd(), pair.socket.fd(), token)
    }

    /// Stops watching a pair's socket.
    pub(crate) fn unwatch_pair(&self, pair: &PairLink) {
        let _ = epoll::delete(&self.epoll, pair.socket.fd());
    }

    /// Starts to watch a listener's socket of kernel TCP: each connection that comes wakes who waits at the port.
    pub(crate) fn watch_entrance(&self, entrance: &Entrance, port: u16) -> Result<(), SessionError> {
        let what = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, entrance.fd(), epoll::EventData::new_u64(TOKEN_TCP + u64::from(port)), what)
            .map_err(SessionError::os("epoll_ctl"))
    }

    /// Stops watching it.
    pub(crate) fn unwatch_entrance(&self, entrance: &Entrance) {
        let _ = epoll::delete(&self.epoll, entrance.fd());
    }

    /// A port is open in it.
    pub(crate) fn add_listening(&self, listening: &Arc<Listening>) {
        let mut all = lock(&self.listenings);
        all.retain(|l| l.strong_count() > 0);
        all.push(Arc::downgrade(listening));
    }

    /// Ports that were opened in it and still have a listener.
    pub(crate) fn listenings(&self) -> Vec<Arc<Listening>> {
        lock(&self.listenings).iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether there is a watcher.
    pub(crate) fn is_watched(&self) -> bool {
        *lock(&self.watched)
    }

    /// Runs `start` if it did not succeed before.
    pub(crate) fn start_once(&self, start: impl FnOnce() -> Result<(), SessionError>) -> Result<(), SessionError> {
        let mut watched = lock(&self.watched);
        if !*watched {
            start()?;
            *watched = true;
        }
        Ok(())
    }

    /// Does what a sleeping leader would do now, and returns: for threads that look and do not sleep. Nothing if somebody
    /// leads.
    pub(crate) fn turn(self: &Arc<Self>) {
        if let Some(leadership) = self.reactor.try_lead() {
            let mut driver = lock(&self.driver);
            driver.take_doorbells(self);
            if driver.sleep(self, Duration::ZERO) {
                driver.handle_events(self);
            }
            driver.sweep(self);
            drop(driver);
            drop(leadership);
        }
    }

    // ---- sleeping

    /// Makes the leader look again. For threads that notified somebody without being the leader: it may have been him.
    pub(crate) fn kick(&self) {
        if self.reactor.is_led() {
            // It can only fail by being full, and then the leader will look.
            let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until `ready`, a notification of `parker`, `deadline` or [`crate::reactor::SLEEP_MAX`]; the caller looks
    /// again. The caller announced before that it waits.
    pub(crate) fn block(
        self: &Arc<Self>,
        parker: &Arc<Parker>,
        deadline: Option<Instant>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<(), SessionError> {
        self.check_fork()?;
        parker.prepare();
        // PAIRS WITH the fence in PairEnd::wake: announced, then looked; the peer stores, then looks for announcements.
        fence(Ordering::SeqCst);
        if ready() {
            return Ok(());
        }
        let leadership = match self.reactor.enter(parker) {
            Place::Leader(leadership) => leadership,
            Place::Follower(ticket) => match self.reactor.follow(ticket, parker, deadline) {
                Some(leadership) => leadership,
                None => return Ok(()),
            },
        };
        // Leadership is dropped last, so that the next leader finds the driver free.
        let mut driver = lock(&self.driver);
        self.lead(&mut driver, parker, deadline, ready);
        drop(driver);
        drop(leadership);
        Ok(())
    }

    /// Watches the descriptors until the leader's own wait is over. A notification ends it too: who announced a sleep to a
    /// peer and was woken must announce the next one anew.
    fn lead(
        self: &Arc<Self>,
        driver: &mut Driver,
        parker: &Parker,
        deadline: Option<Instant>,
        ready: &mut dyn FnMut() -> bool,
    ) {
        loop {
            prepare_sleep(&self.app_sleep);
            driver.take_doorbells(self);
            if ready() || parker.is_notified() {
                return end_sleep(&self.app_sleep);
            }
            let woken = driver.sleep(self, crate::reactor::sleep_bound(deadline));
            end_sleep(&self.app_sleep);
            if woken {
                driver.handle_events(self);
            }
            driver.sweep(self);
            if ready() || parker.is_notified() || deadline.is_some_and(|d| Instant::now() >= d) {
                return;
            }
        }
    }
}

fn watch(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, token: u64) -> Result<(), SessionError> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        .map_err(SessionError::os("epoll_ctl"))
}

//! One attachment of this process to the daemon: its descriptors, its session, and the waiters in it.
//!
//! Owns the control socket and the end of the session. It must never block without a bound, and never be used by a
//! forked child.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use control::{ChannelError, Reason, Request, Role};
use raas_core::{Attached, Daemon, Given, Session, SessionFault, SessionMemory};
use rustix::event::{EventfdFlags, PollFlags, epoll, eventfd};
use shm::{WakeSocket, Word32, YieldTurns};

use crate::bell::Bells;
use crate::control_socket::attach;
use crate::descriptor::{is_hung_up, wait_for};
use crate::driver::{Driver, TOKEN_CONTROL, TOKEN_KICK, TOKEN_TCP, TOKEN_WAKE};
use crate::error::SessionError;
use crate::kept::{KeptSession, Showing};
use crate::park::lock;
use crate::patience::{Patience, WaitPolicy};
use crate::reactor::Reactor;
use crate::region_table::RegionTable;
use crate::tables::Tables;
#[cfg(feature = "tokio")]
use crate::task_patience::Reads;
use crate::watch_end::WatchEnd;

/// How long the control socket may be full before the daemon counts as silent.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// What a session is made with.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) policy: WaitPolicy,
    pub(crate) timeout: Duration,
    /// How long a daemon that ended without a word is waited for.
    pub(crate) daemon_wait: Duration,
    /// The watcher leads only while threads sleep elsewhere and nobody else leads.
    pub(crate) is_led_elsewhere: bool,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is in the daemon's socket, whether the daemon lives or not.
    Yes,
    /// Nothing of it was sent: the daemon has ended.
    No,
}

/// What outlives the loss of an attachment and is to be opened again in the next one.
pub(crate) trait Recover: std::fmt::Debug + Send + Sync {
    /// Tries to open it again if it is time.
    fn try_recover(self: Arc<Self>);

    /// When the next try is due, if it is lost and was last open in `attachment`.
    fn next_try_in(&self, attachment: &Attachment) -> Option<Instant>;
}

/// See the head of this file; shared by all streams and listeners of the session.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) config: Config,
    pub(crate) turns: YieldTurns,
    #[cfg(feature = "tokio")]
    pub(crate) reads: Reads,
    /// What took its place when the daemon was lost.
    pub(crate) successor: Mutex<Option<Arc<Self>>>,
    /// What was opened in it.
    recoverable: Mutex<Vec<Weak<dyn Recover>>>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) release: String,
    pub(crate) requires_encryption: bool,
    pub(crate) returning: KeptSession,
    pub(crate) showing: Mutex<Showing>,
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) bells: Mutex<Bells>,
    pub(crate) control: OwnedFd,
    pub(crate) wake: Arc<WakeSocket>,
    pub(crate) epoll: Arc<OwnedFd>,
    /// Wakes the leader, which sleeps on descriptors and not on its parker.
    pub(crate) kick: OwnedFd,
    pub(crate) app_sleep: Word32,
    /// All waiters have been notified that the daemon is gone.
    is_over: AtomicBool,
    next_number: AtomicU64,
    /// There is a watcher.
    watched: Mutex<bool>,
    /// It is to end, and has.
    pub(crate) watch_end: WatchEnd,
    pub(crate) reactor: Reactor,
    pub(crate) regions: RegionTable,
    /// The queues for operations on regions of other hosts, by host and whether they are its writers', while somebody has
    /// such a region open. What a queue is, the module `region` alone knows.
    pub(crate) operations: Mutex<BTreeMap<(IpAddr, bool), Weak<dyn Any + Send + Sync>>>,
    pub(crate) driver: Mutex<Driver>,
}

/// The clock of the daemon's traces.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let [seconds, ns] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or_default());
    seconds * 1_000_000_000 + ns
}

impl Attachment {
    /// Attaches to the daemon as an application; it has `within` to answer.
    pub(crate) fn connect(config: Config, within: Duration) -> Result<Arc<Self>, SessionError> {
        let (control, attached) = attach(&config.path, Role::Application, config.name.clone(), within)?;
        let Attached { release, number, addresses, requires_encryption, session } = attached;
        let Some(Given { memory, segment, page, wakes, wake }) = session else {
            return Err(SessionError::Protocol("Welcome without a session".into()));
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(SessionError::os("epoll_create"))?;
        let epoll = shm::raised(epoll);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let kick = shm::raised(eventfd(0, flags).map_err(SessionError::os("eventfd"))?);
        watch(epoll.as_fd(), kick.as_fd(), TOKEN_KICK)?;
        watch(epoll.as_fd(), control.as_fd(), TOKEN_CONTROL)?;
        watch(epoll.as_fd(), wake.fd(), TOKEN_WAKE)?;
        let session = Session::new(SessionMemory { clock: Some(monotonic_ns), ..memory })?;
        Ok(Arc::new(Self {
            config,
            turns: YieldTurns::default(),
            #[cfg(feature = "tokio")]
            reads: Reads::new(),
            successor: Mutex::new(None),
            recoverable: Mutex::default(),
            addresses,
            release,
            requires_encryption,
            returning: KeptSession::new(segment, page, wakes, number),
            showing: Mutex::default(),
            daemon: Arc::clone(session.daemon()),
            app_sleep: session.memory().app_sleep(),
            driver: Mutex::new(Driver::new(session.memory())),
            bells: Mutex::new(Bells::new(session.memory().slots())),
            tables: Mutex::new(Tables::new(session)),
            control,
            wake,
            epoll: Arc::new(epoll),
            kick,
            is_over: AtomicBool::new(false),
            next_number: AtomicU64::new(1),
            watched: Mutex::new(false),
            watch_end: WatchEnd::default(),
            reactor: Reactor::default(),
            regions: RegionTable::default(),
            operations: Mutex::default(),
        }))
    }

    /// Refuses a forked child: descriptors, slots and rings are its parent's.
    pub(crate) fn check_fork(&self) -> Result<(), SessionError> {
        Ok(self.daemon.life().check_fork()?)
    }

    /// A number that nothing else of the attachment has.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    // ---- talking to the daemon

    /// Sends a message; waits, with a bound, while the socket is full.
    pub(crate) fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), SessionError> {
        match self.try_send(request, fds)? {
            Sent::No if self.is_away() => Err(SessionError::Lost { reason: Reason::DaemonLost }),
            // Who follows the session finds the loss, with the daemon's last message if there was one.
            Sent::No | Sent::Yes => Ok(()),
        }
    }

    /// As [`Self::send`], and says whether a daemon has it.
    pub(crate) fn try_send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Sent, SessionError> {
        self.check_fork()?;
        let deadline = Instant::now() + SEND_TIMEOUT;
        loop {
            if let Some(reason) = self.lost() {
                return Err(SessionError::Lost { reason });
            }
            if self.is_away() {
                return Ok(Sent::No);
            }
            match control::send_message(self.control.as_fd(), request, fds) {
                Ok(()) => return Ok(Sent::Yes),
                Err(ChannelError::WouldBlock) => {
                    if !wait_for(self.control.as_fd(), PollFlags::OUT, deadline)? {
                        return Err(SessionError::Silent { path: self.config.path.clone(), waited: SEND_TIMEOUT });
                    }
                }
                Err(ChannelError::Closed) => return Ok(Sent::No),
                Err(e) => return Err(SessionFault::from(e).into()),
            }
        }
    }

    /// Sends what the daemon need not know if it is gone.
    pub(crate) fn tell(&self, request: &Request) {
        if self.lost().is_some() {
            return self.tell_shown(request);
        }
        // An error means that the session is over or the daemon hangs; either way it forgets this session as a whole.
        let _ = self.send(request, &[]);
    }

    /// Sends what the session has for the daemon on its own account.
    pub(crate) fn send_outgoing(&self) -> Result<(), SessionError> {
        loop {
            let next = lock(&self.tables).session.next_outgoing();
            let Some(outgoing) = next else { return Ok(()) };
            match outgoing.fd() {
                // A segment that is not sent would leave a connect without an answer.
                Some(fd) => self.send(&outgoing.request, &[fd])?,
                None => self.tell(&outgoing.request),
            }
        }
    }

    /// Finishes what a connection of a pair left when it was closed.
    pub(crate) fn reap(&self, pair: u64) {
        lock(&self.tables).session.reap(pair);
        // As in `tell`; descriptors are sent by the thread that follows the daemon.
        let _ = self.send_outgoing();
    }

    /// How a thread waits for what the daemon says: it looks for a while, and spins never, since the daemon may need
    /// this very processor.
    pub(crate) fn patience(&self) -> Patience<'_> {
        Patience::new(WaitPolicy { spins: 0, ..self.config.policy }, &self.turns, None)
    }

    // ---- the end

    /// Why the daemon is gone, if it is.
    pub(crate) fn lost(&self) -> Option<Reason> {
        self.daemon.life().lost()
    }

    /// Whether all waiters have been notified that it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether the daemon is there, as far as the kernel knows now.
    pub(crate) fn daemon_is_there(&self) -> bool {
        self.lost().is_none() && !self.is_away() && !matches!(is_hung_up(self.control.as_fd()), Ok(true))
    }

    /// The daemon is gone, or not to be believed: everything that needs it fails now. Same-host connections go on.
    pub(crate) fn lose(&self, error: SessionError) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::debug!(socket = %self.config.path.display(), %error, "the session is lost");
        let reason = match &error {
            SessionError::Lost { reason } | SessionError::Refused { reason, .. } => *reason,
            _ => Reason::DaemonLost,
        };
        self.daemon.life().lose(reason);
        // Explicitly: a forked child may hold the descriptors open, and then closing would not take them out.
        let _ = epoll::delete(&self.epoll, &self.control);
        let _ = epoll::delete(&self.epoll, self.wake.fd());
        // A daemon that lives and broke the protocol learns it this way.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        let waiters = lock(&self.tables).lose(error);
        waiters.iter().for_each(|w| w.notify());
        let bells = lock(&self.bells).of_session();
        bells.iter().for_each(|bell| bell.notify());
        self.regions.wake_all();
        self.begin_showing(reason);
        self.kick();
    }

    /// Makes the leader look again. For threads that notified somebody without being the leader: it may have been him.
    pub(crate) fn kick(&self) {
        if self.reactor.is_led() {
            // It can only fail by being full, and then the leader will look.
            let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
        }
    }

    // ---- descriptors

    /// Starts to watch a descriptor; the leader knows it by `token`.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), SessionError> {
        watch(self.epoll.as_fd(), fd, token)
    }

    /// Stops watching it.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Starts to watch a listener's socket of kernel TCP: each connection that comes wakes the waiters at the port.
    pub(crate) fn watch_listener(&self, socket: BorrowedFd<'_>, port: u16) -> Result<(), SessionError> {
        let what = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(TOKEN_TCP + u64::from(port)), what)
            .map_err(SessionError::os("epoll_ctl"))
    }

    // ---- what outlives it

    /// Something is open in it that is to be opened again after a loss.
    pub(crate) fn add_recoverable(&self, one: Weak<dyn Recover>) {
        let mut all = lock(&self.recoverable);
        all.retain(|r| r.strong_count() > 0);
        all.push(one);
    }

    /// What was opened in it and is still wanted.
    pub(crate) fn recoverable(&self) -> Vec<Arc<dyn Recover>> {
        lock(&self.recoverable).iter().filter_map(Weak::upgrade).collect()
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
}

fn watch(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, token: u64) -> Result<(), SessionError> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        .map_err(SessionError::os("epoll_ctl"))
}

//! What a session keeps for a daemon that comes after its own: the descriptors and memory that stay the same, and since when
//! there is none.
//!
//! Owns nothing but these; `returning` says what is done with them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shm::{EnginePage, Life, WakeSocket, Word32};

use crate::control_socket::Bringing;

/// How long a session waits for a daemon when the program says nothing else.
pub(crate) const DAEMON_WAIT_DEFAULT: Duration = Duration::from_secs(5);

/// Since when a session has no daemon, and when the next is looked for.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) until: Instant,
    pub(crate) next_try: Instant,
    pub(crate) pause: Duration,
    /// To a daemon that has not answered yet.
    pub(crate) bringing: Option<Bringing>,
}

/// Whether a daemon shows the same-host connections of a session that is lost.
#[derive(Debug, Default)]
pub(crate) enum Showing {
    /// None is to.
    #[default]
    Not,
    /// One is looked for.
    Looks { next_try: Instant, pause: Duration },
    /// It does as long as the control socket is open, which is this daemon's then.
    Shown,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct KeptSession {
    pub(crate) segment: Arc<OwnedFd>,
    pub(crate) page: EnginePage,
    /// The daemon's, in that page.
    life: Word32,
    pub(crate) wakes: Vec<Arc<WakeSocket>>,
    pub(crate) number: AtomicU64,
    /// There is no daemon, and one is waited for.
    pub(crate) is_away: AtomicBool,
    pub(crate) away: Mutex<Option<Away>>,
}

impl KeptSession {
    pub(crate) fn new(segment: OwnedFd, page: EnginePage, wakes: Vec<Arc<WakeSocket>>, number: u64) -> Self {
        let (number, is_away) = (AtomicU64::new(number), AtomicBool::new(false));
        let (segment, life) = (Arc::new(segment), page.life());
        Self { segment, page, life, wakes, number, is_away, away: Mutex::new(None) }
    }

    /// Whether the page says that its daemon has ended.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        Life::is_over(self.life.load(Ordering::Relaxed))
    }

    /// The session's number in the daemon.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }
}

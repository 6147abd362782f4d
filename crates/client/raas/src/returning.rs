//! A session whose daemon ended without a word: waiting for the daemon that comes after it, and going on with that one
//! (docs/operate/restart.md).
//!
//! Owns when the next try is due, and that the new daemon takes the old one's place. It must never wait for a daemon
//! without a bound, and never have two daemons at a time.

use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use control::{Reason, Role};
use raas_core::Returned;
use rustix::event::epoll;
use shm::{WakeSocket, replace_descriptor};

use crate::attachment::Attachment;
use crate::control_socket::{Bringing, knock};
use crate::driver::{TOKEN_CONTROL, TOKEN_WAKE};
use crate::error::SessionError;
use crate::kept::Away;
use crate::park::lock;
use crate::region_table::RegionUser;

/// Pause after the first try; each further one is twice as long, and a part of each is random.
pub(crate) const PAUSE_FIRST: Duration = Duration::from_millis(5);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(160);
/// How long a call waits for the answer of a daemon that it found, while others wait for what the call hears. An answer
/// that comes later is taken by a later look, which does not wait.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_millis(200);
/// The same of a call that is for the next daemon alone.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);

impl Attachment {
    /// Whether the daemon has ended, and the next one is waited for.
    pub(crate) fn is_away(&self) -> bool {
        self.returning.is_away.load(Ordering::Acquire)
    }

    /// Whether the next daemon is still waited for.
    pub(crate) fn may_come_back(&self) -> bool {
        self.is_away() && !self.is_over()
    }

    /// The control socket ended, or says what cannot be. A daemon that ended without a word may have a successor.
    pub(crate) fn on_gone(&self, error: SessionError) {
        let is_death = matches!(error, SessionError::Lost { reason: Reason::DaemonLost });
        if !is_death || !self.begin_away() {
            self.lose(error);
        }
    }

    /// The daemon has ended, as its page says. A call that finds bytes or room each time never waits, and would not
    /// hear of it; meanwhile the peer gives the connection up.
    #[cold]
    pub(crate) fn follow_death(self: &Arc<Self>) {
        // A watcher hears of it by itself, and spares the call the wait for the next daemon.
        if self.check_fork().is_ok() && !self.is_over() && !self.is_watched() {
            self.look();
        }
    }

    /// Nothing more comes of this daemon. False: the session cannot go on with another.
    fn begin_away(&self) -> bool {
        let mut away = lock(&self.returning.away);
        if self.is_away() {
            return true;
        }
        let wait = self.config.daemon_wait;
        if self.is_over() || wait.is_zero() {
            return false;
        }
        let now = Instant::now();
        *away = Some(Away { until: now + wait, next_try: now, pause: PAUSE_FIRST, bringing: None });
        // First the flag: what is asked from here on fails at once, what was asked before fails below.
        self.returning.is_away.store(true, Ordering::Release);
        // A forked child may hold the descriptors open, so closing them would not take them out.
        let _ = epoll::delete(&self.epoll, &self.control);
        let _ = epoll::delete(&self.epoll, self.wake.fd());
        let (waiters, daemons) = {
            let mut tables = lock(&self.tables);
            (tables.lose_requests(Reason::DaemonLost), tables.session.daemons_before())
        };
        // Before the next daemon is asked for anything: rings of the queues may be other connections' then.
        let handles = self.regions.part(daemons);
        drop(away);
        tracing::warn!(socket = %self.config.path.display(), ?wait, "the daemon ended; waiting for the next one");
        waiters.iter().for_each(|waiter| waiter.notify());
        handles.iter().for_each(|handle| handle.wake());
        self.kick();
        true
    }

    /// How long a thread that follows the session may sleep before it looks for the next daemon.
    pub(crate) fn return_due(&self) -> Option<Duration> {
        if !self.is_away() {
            return None;
        }
        lock(&self.returning.away).as_ref().map(|away| away.next_try.saturating_duration_since(Instant::now()))
    }

    /// Looks for the next daemon if it is time. To be called by the thread that follows the session.
    pub(crate) fn try_return(&self) {
        if !self.is_away() {
            return;
        }
        let place = lock(&self.returning.away);
        if let Some(away) = place.as_ref().filter(|away| Instant::now() >= away.next_try) {
            let wait = if away.bringing.is_none() { ANSWER_WAIT } else { Duration::ZERO };
            // It is remembered, or was told.
            let _ = self.return_with(place, wait);
        }
    }

    /// Looks for the next daemon now. An error: there is none, it does not take the session, or it has not answered
    /// yet.
    pub(crate) fn return_now(&self) -> Result<(), SessionError> {
        let away = lock(&self.returning.away);
        if self.is_away() { self.return_with(away, ANSWER_WAIT_MAX) } else { Ok(()) }
    }

    fn return_with(&self, mut place: MutexGuard<'_, Option<Away>>, wait: Duration) -> Result<(), SessionError> {
        let Some(away) = place.as_mut() else { return Ok(()) };
        match self.attempt(&mut away.bringing, wait) {
            Ok(()) => {
                *place = None;
                self.returning.is_away.store(false, Ordering::Release);
                drop(place);
                tracing::info!(socket = %self.config.path.display(), "the session goes on with another daemon");
                // What fails here shows at the socket.
                let _ = self.send_outgoing();
                self.send_unsent();
                self.bring_regions_back();
                self.kick();
                Ok(())
            }
            Err(error) => {
                let is_over = Instant::now() >= away.until;
                if is_over || !is_worth_a_try(&error) {
                    *place = None;
                    drop(place);
                    let told = if is_over { SessionError::Lost { reason: Reason::DaemonLost } } else { error.clone() };
                    self.lose(told);
                } else {
                    let pause;
                    (pause, away.pause) = pauses(away.pause);
                    away.next_try = (Instant::now() + pause).min(away.until);
                }
                Err(error)
            }
        }
    }

    /// Regions of this program go on with the new daemon: each is copied, which takes long, and so not by this thread.
    fn bring_regions_back(&self) {
        let handles = self.regions.take_parted();
        if handles.is_empty() {
            return;
        }
        let all = handles.clone();
        let bring = move || handles.into_iter().for_each(RegionUser::bring_back);
        if let Err(error) = std::thread::Builder::new().name("raas-region".into()).spawn(bring) {
            tracing::warn!(%error, regions = all.len(), "no thread to bring regions to the next daemon: they end");
            all.iter().for_each(|handle| handle.lose());
        }
    }

    /// Goes to the daemon that is there. One that has not answered within `wait` keeps what it was told, and its answer
    /// is waited for in later tries: it may have taken the session over by now, and if this program went away again it
    /// would end all connections.
    fn attempt(&self, place: &mut Option<Bringing>, wait: Duration) -> Result<(), SessionError> {
        let deadline = Instant::now() + wait;
        let mut bringing = match place.take() {
            Some(bringing) => bringing,
            None => self.bring(deadline)?,
        };
        let Some((reply, fds)) = bringing.answer(deadline)? else {
            *place = Some(bringing);
            return Err(SessionError::Silent { path: self.config.path.clone(), waited: wait });
        };
        let given = lock(&self.tables).session.returned(reply, fds)?;
        self.install(bringing.socket(), given)
    }

    fn bring(&self, deadline: Instant) -> Result<Bringing, SessionError> {
        let socket = knock(&self.config.path, deadline)?;
        let hello = raas_core::Greeting::new(Role::Returning, self.config.name.clone()).hello();
        let session = lock(&self.tables).session.return_messages(&self.returning.segment);
        Ok(Bringing::new(socket, std::iter::once((hello, None)).chain(session)))
    }

    /// The new daemon takes the old one's place, under the same descriptors and addresses.
    fn install(&self, socket: &OwnedFd, given: Returned) -> Result<(), SessionError> {
        let Returned { number, page, wakes } = given;
        let at = |what| move |e| SessionError::io(what, e);
        self.returning.page.follow(&page).map_err(at("mapping the new engine page"))?;
        self.take_descriptors(socket, wakes)?;
        self.watch(self.control.as_fd(), TOKEN_CONTROL)?;
        self.watch(self.wake.fd(), TOKEN_WAKE)?;
        self.returning.number.store(number, Ordering::Relaxed);
        lock(&self.tables).session.on_returned();
        Ok(())
    }

    /// A daemon's descriptors get the numbers of those of the daemon before.
    pub(crate) fn take_descriptors(&self, socket: &OwnedFd, wakes: Vec<WakeSocket>) -> Result<(), SessionError> {
        let at = |what| move |e| SessionError::io(what, e);
        for (old, new) in self.returning.wakes.iter().zip(wakes) {
            replace_descriptor(old.fd(), &new.into_fd()).map_err(at("dup3 of a wake socket"))?;
        }
        replace_descriptor(self.control.as_fd(), socket).map_err(at("dup3 of the control socket"))
    }
}

/// Whether another daemon, or the same one a moment later, may do what this one did not.
pub(crate) fn is_worth_a_try(error: &SessionError) -> bool {
    matches!(error, SessionError::NoDaemon { .. } | SessionError::Silent { .. } | SessionError::Lost { .. })
}

/// How long to wait before the next try, and what the pause after that is made of.
fn pauses(pause: Duration) -> (Duration, Duration) {
    (jittered(pause), (2 * pause).min(PAUSE_MAX))
}

/// From half of a pause to the whole of it, so that many programs do not come back at one moment.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let any = std::hash::RandomState::new().build_hasher().finish() % 1024;
    pause / 2 + pause.mul_f64(any as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_cut_by_chance_to_half_at_most() {
        let pause = Duration::from_millis(100);
        let many: Vec<_> = (0..100).map(|_| jittered(pause)).collect();
        assert!(many.iter().all(|p| (pause / 2..=pause).contains(p)));
        assert!(many.iter().any(|p| *p != many[0]));
    }

    /// When a program looks for its daemon, which ends at 0 and is not there before `end`.
    fn looks(end: Duration) -> Vec<Duration> {
        let (mut at, mut pause, mut looks) = (Duration::ZERO, PAUSE_FIRST, Vec::new());
        while at < end {
            looks.push(at);
            let wait;
            (wait, pause) = pauses(pause);
            at += wait;
        }
        looks.push(at);
        looks
    }

    #[test]
    fn a_thousand_programs_look_seldom_and_not_together() {
        const PROGRAMS: usize = 1000;
        let outage = Duration::from_secs(4);
        let all: Vec<_> = (0..PROGRAMS).map(|_| looks(outage)).collect();
        // Pauses of 5, 10, 20, 40 and 80 ms, and then of 160 ms, each by half at most shorter; the first and the last look.
        let most = 2 + 5 + outage.as_millis().div_ceil(80) as usize;
        assert!(all.iter().all(|looks| looks.len() <= most), "one looks more than {most} times");
        // The next daemon meets each program once, within one pause.
        let last = |looks: &Vec<Duration>| *looks.last().unwrap();
        assert!(all.iter().all(|looks| last(looks) - outage < PAUSE_MAX));
        // In each millisecond after the first pauses come 8 on average; together they would be 1,000.
        let mut in_ms = vec![0; 2 * outage.as_millis() as usize];
        let later = all.iter().flatten().filter(|at| **at > Duration::from_millis(400));
        later.for_each(|at| in_ms[at.as_millis() as usize] += 1);
        let together = in_ms.iter().max().unwrap();
        assert!(*together <= PROGRAMS / 10, "{together} of {PROGRAMS} come in one millisecond");
    }
}

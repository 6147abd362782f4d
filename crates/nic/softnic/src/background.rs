//! The thread that makes progress while the owner does not: targets of one-sided operations look at memory, not at
//! completions, and timers run while the owner sleeps. It leaves the port alone while the owner works on it, never
//! blocks with the lock held, and never keeps the owner waiting for more than one round of progress.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::OpenError;
use crate::shared::{Shared, Signals};
use crate::sys;

/// The owner counts as away when it has made no call for so long. Below the wake-up of an idle core nothing is won.
const AWAY_AFTER: Duration = Duration::from_micros(50);
/// Longest nap between two looks at whether an owner that is there is still there. A nap is never longer than the
/// owner has been there, so what it delays grows with the length of a busy phase and not with their number.
const NAP_MAX: Duration = Duration::from_millis(1);
/// The thread looks after so long even if nothing arrives and no timer runs.
const WATCH_MAX: Duration = Duration::from_secs(1);
/// How long [`Background::drop`] waits for the thread.
const STOP_MAX: Duration = Duration::from_secs(5);

/// The running thread; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Background {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self, OpenError> {
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("softnic".into())
            .spawn(move || {
                if let Some(signals) = for_thread.signals() {
                    run(&for_thread, signals);
                }
            })
            .map_err(|e| OpenError::os("spawning the progress thread", e))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(signals) = self.shared.signals() {
            signals.stop();
        }
        let Some(thread) = self.thread.take() else { return };
        let begin = Instant::now();
        while !thread.is_finished() {
            if begin.elapsed() > STOP_MAX {
                tracing::warn!("the progress thread did not stop in time and is left behind");
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        if thread.join().is_err() {
            tracing::warn!("the progress thread had panicked");
        }
    }
}

fn run(shared: &Shared, signals: &Signals) {
    // Signals belong to the application's own threads, and naps end on time only with a small timer slack.
    sys::block_signals();
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let mut nap_length = AWAY_AFTER;
    let clock = shared.clock();
    while !signals.is_stopped() {
        if let Some(away) = signals.owner_away(clock.now())
            && away < AWAY_AFTER
        {
            nap(signals, nap_length.max(AWAY_AFTER - away));
            nap_length = (nap_length * 2).min(NAP_MAX);
            continue;
        }
        let Some(mut port) = shared.try_lock() else {
            nap(signals, AWAY_AFTER);
            continue;
        };
        nap_length = AWAY_AFTER;
        let worked = port.progress(clock.now());
        if port.take_notify() {
            signals.signal_owner(&mut port);
        }
        if worked {
            continue;
        }
        let now = clock.now();
        let bound = port.sleep_bound(now).unwrap_or(WATCH_MAX).min(WATCH_MAX);
        let wants_room = port.is_send_blocked();
        signals.begin_watch(now + bound);
        drop(port);
        watch(signals, shared, wants_room, bound);
        signals.end_watch();
    }
}

/// Sleeps without looking at the socket; arming a CQ ends it.
fn nap(signals: &Signals, length: Duration) {
    if signals.begin_nap() {
        let mut fds = [PollFd::from_borrowed_fd(signals.wake_fd(), PollFlags::IN)];
        wait(&mut fds, length);
        signals.end_nap();
        if !fds[0].revents().is_empty() {
            signals.clear_wake();
        }
    }
}

/// Sleeps until something arrives, there is room to send if that is wanted, or the time is over.
fn watch(signals: &Signals, shared: &Shared, wants_room: bool, length: Duration) {
    let room = if wants_room { PollFlags::OUT } else { PollFlags::empty() };
    let mut fds = [
        PollFd::from_borrowed_fd(shared.input(), PollFlags::IN),
        PollFd::from_borrowed_fd(signals.wake_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(shared.socket(), room),
    ];
    wait(&mut fds, length);
    if !fds[1].revents().is_empty() {
        signals.clear_wake();
    }
}

fn wait(fds: &mut [PollFd<'_>], length: Duration) {
    let timeout = Timespec { tv_sec: length.as_secs() as i64, tv_nsec: length.subsec_nanos().into() };
    // An interrupted or failed wait only means that the caller looks again.
    let _ = poll(fds, Some(&timeout));
}

//! The watcher: a thread that follows the session while nobody sleeps in this library.
//!
//! Owns that thread, which is started when somebody asks for a descriptor or polls a task, or for
//! [`crate::SessionBuilder::background`]; of a session that was lost it opens the listeners' ports again in another. It
//! must never keep a session alive for longer than one of its rounds.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::{Parker, lock};
use crate::reactor::SLEEP_MAX;

/// Shortest sleep between two looks at listeners that another thread may be opening again.
const ROUND_MIN: Duration = Duration::from_millis(10);

impl Attachment {
    /// Sees to it that there is a watcher.
    pub(crate) fn ensure_watched(self: &Arc<Self>) -> Result<(), SessionError> {
        self.check_fork()?;
        self.start_once(|| {
            let attachment = Arc::downgrade(self);
            std::thread::Builder::new()
                .name("raas-watcher".into())
                .spawn(move || watch(&attachment))
                .map(|thread| *lock(&self.watch_end.thread) = Some(thread))
                .map_err(|e| SessionError::io("starting the session's watcher thread", e))
        })
    }
}

/// How long a watcher may take to end: it may be reading what has come.
const END_MAX: Duration = Duration::from_secs(5);

impl Attachment {
    /// Ends the watcher, if there is one, and waits until it makes no more calls.
    pub(crate) fn end_watcher(&self) {
        let Some(thread) = lock(&self.watch_end.thread).take() else { return };
        self.watch_end.is_due.store(true, Ordering::SeqCst);
        let until = Instant::now() + END_MAX;
        while !thread.is_finished() && Instant::now() < until {
            self.reactor.notify_watcher();
            self.kick();
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            // What it ended with is nobody's business.
            let _ = thread.join();
        }
    }
}

/// Takes part in the waiting like any thread that sleeps, so that somebody leads at all times.
fn watch(session: &Weak<Attachment>) {
    let parker = Arc::new(Parker::default());
    if let Some(attachment) = session.upgrade().filter(|attachment| attachment.config.is_led_elsewhere) {
        attachment.reactor.set_watcher(&parker);
    }
    while let Some(attachment) = session.upgrade() {
        if Arc::strong_count(&attachment) == 1 {
            return;
        }
        if attachment.watch_end.is_due.load(Ordering::SeqCst) {
            return;
        }
        let next = recover(&attachment);
        let until = next.unwrap_or_else(|| Instant::now() + SLEEP_MAX).max(Instant::now() + ROUND_MIN);
        if attachment.config.is_led_elsewhere && !attachment.reactor.has_outsiders() {
            // Whoever comes to rely on a leader wakes it. What comes while nobody waits is taken once a second.
            parker.park(until.saturating_duration_since(Instant::now()).min(SLEEP_MAX));
            if !attachment.reactor.has_outsiders() {
                attachment.look();
            }
            continue;
        }
        let is_due = || attachment.watch_end.is_due.load(Ordering::SeqCst);
        let is_needless = || is_due() || attachment.config.is_led_elsewhere && !attachment.reactor.has_outsiders();
        if attachment.block(&parker, Some(until), &mut || is_needless()).is_err() {
            return;
        }
    }
}

/// Opens again what nobody sleeps for. When to look again, if there is something left to be opened.
fn recover(attachment: &Arc<Attachment>) -> Option<Instant> {
    let all = attachment.recoverable();
    all.iter().for_each(|one| Arc::clone(one).try_recover());
    // What moved on belongs to another attachment's watcher.
    all.iter().filter_map(|one| one.next_try_in(attachment)).min()
}

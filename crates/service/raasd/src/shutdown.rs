//! Stops a daemon. Owns the one bit, and the tasks that wait for it.

use std::sync::Arc;

use tokio::sync::watch;

/// How a daemon stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    InOrder,
    /// Without a word to programs and peers, as one that is killed: the next daemon takes over (docs/operate/restart.md).
    HandsOver,
}

/// A handle that stops the daemon it was given to, in order. Clones are the same handle.
#[derive(Debug, Clone)]
pub struct Shutdown {
    sender: Arc<watch::Sender<Option<Stop>>>,
    pub(crate) signals: bool,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// Stops only by [`Self::trigger`].
    pub fn new() -> Self {
        Self { sender: Arc::new(watch::Sender::new(None)), signals: false }
    }

    /// Stops by SIGTERM and SIGINT too, and by SIGUSR2 as [`Self::hand_over`] does; from the daemon's start on these signals
    /// do nothing else to the process.
    pub fn on_signals() -> Self {
        Self { signals: true, ..Self::new() }
    }

    /// Stops the daemon; returns at once.
    pub fn trigger(&self) {
        self.stop(Stop::InOrder);
    }

    /// Stops the daemon without a word to its programs and peers, which wait for the daemon that comes after it; returns
    /// at once.
    pub fn hand_over(&self) {
        self.stop(Stop::HandsOver);
    }

    /// The first way counts.
    fn stop(&self, how: Stop) {
        self.sender.send_modify(|stop| {
            stop.get_or_insert(how);
        });
    }

    /// Whether it stops without a word.
    pub(crate) fn hands_over(&self) -> bool {
        *self.sender.borrow() == Some(Stop::HandsOver)
    }

    /// Whether it was.
    #[cfg(test)]
    pub(crate) fn is_triggered(&self) -> bool {
        self.sender.borrow().is_some()
    }

    pub(crate) async fn triggered(&self) {
        // The sender lives as long as `self`.
        let _ = self.sender.subscribe().wait_for(Option::is_some).await;
    }
}

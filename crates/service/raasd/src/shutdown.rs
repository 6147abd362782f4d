//! Stops a daemon. Owns the one bit, and the tasks that wait for it.

use std::sync::Arc;

use tokio::sync::watch;

/// A handle that stops the daemon it was given to, in order. Clones are the same handle.
#[derive(Debug, Clone)]
pub struct Shutdown {
    sender: Arc<watch::Sender<bool>>,
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
        Self { sender: Arc::new(watch::Sender::new(false)), signals: false }
    }

    /// Stops by SIGTERM and SIGINT too; from the daemon's start on these signals do nothing else to the process.
    pub fn on_signals() -> Self {
        Self { signals: true, ..Self::new() }
    }

    /// Stops the daemon; returns at once.
    pub fn trigger(&self) {
        self.sender.send_replace(true);
    }

    /// Whether it was.
    #[cfg(test)]
    pub(crate) fn is_triggered(&self) -> bool {
        *self.sender.borrow()
    }

    pub(crate) async fn triggered(&self) {
        // The sender lives as long as `self`.
        let _ = self.sender.subscribe().wait_for(|stop| *stop).await;
    }
}

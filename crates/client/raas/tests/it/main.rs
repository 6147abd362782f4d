//! Tests of the library against a daemon played in the test, in one process and in several.

mod fake_daemon;
mod fallback;
mod forks;
mod hostile;
mod lifecycles;
mod loans;
mod messages;
mod polling;
mod processes;
mod refusals;
mod streams;
mod surface;
#[cfg(feature = "tokio")]
mod tasks;
mod waiting;
mod world;

/// Ends the process if a test hangs: generous, since the machine may be busy.
pub(crate) struct Watchdog(std::sync::mpsc::Sender<()>);

impl Watchdog {
    pub(crate) fn start(what: &'static str) -> Self {
        let (alive, gone) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            use std::sync::mpsc::RecvTimeoutError;
            if gone.recv_timeout(std::time::Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{what} hangs");
                std::process::abort();
            }
        });
        Self(alive)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

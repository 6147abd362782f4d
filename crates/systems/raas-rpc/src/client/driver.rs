//! Two threads for a client that tasks use: one sends their requests, one takes responses.
//!
//! Owns their start. Both end when the client is dropped. They are there because a task must not wait, and a send may.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::core::Core;
use crate::error::CallError;
use crate::server::lock;

/// How often a thread without work looks whether its client is still there.
const TICK: Duration = Duration::from_millis(100);

/// The way to the thread that sends.
#[derive(Debug)]
pub(crate) struct Driver(Sender<u64>);

impl Driver {
    /// Has a request sent.
    pub(crate) fn send(&self, sequence: u64) -> Result<(), std::sync::mpsc::SendError<u64>> {
        self.0.send(sequence)
    }
}

/// The threads, started when they are first needed.
pub(crate) fn ensure(core: &Arc<Core>) -> Result<Driver, CallError> {
    let mut known = lock(&core.requests);
    if let Some(sender) = &*known {
        return Ok(Driver(sender.clone()));
    }
    let (sender, requests) = channel();
    let no_thread = |e: std::io::Error| CallError::Unreachable { why: format!("no thread: {e}"), was_sent: false };
    let start = |name: &str| std::thread::Builder::new().name(name.into());
    let (sends, takes) = (Arc::downgrade(core), Arc::downgrade(core));
    start("raas-rpc-send").spawn(move || send(&sends, &requests)).map_err(no_thread)?;
    start("raas-rpc-take").spawn(move || take(&takes)).map_err(no_thread)?;
    Ok(Driver(known.insert(sender).clone()))
}

fn send(core: &Weak<Core>, requests: &Receiver<u64>) {
    loop {
        match requests.recv_timeout(TICK) {
            Ok(sequence) => match core.upgrade() {
                Some(core) => core.transmit(sequence, false),
                None => return,
            },
            Err(RecvTimeoutError::Timeout) if core.strong_count() > 0 => {}
            Err(_) => return,
        }
    }
}

fn take(core: &Weak<Core>) {
    while let Some(core) = core.upgrade() {
        if core.wait_for_work(TICK) {
            core.lead(Instant::now() + TICK, &|| false);
        }
    }
}

//! Waiting for the end of a thread of the library's, for a while: it may be in a call that its program delays.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::connection::PATIENCE;

/// Between looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until a thread has ended, which is about to, or for a while.
pub(crate) fn await_end(thread: Option<JoinHandle<()>>) {
    let Some(thread) = thread else { return };
    let until = Instant::now() + PATIENCE;
    while !thread.is_finished() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    if thread.is_finished() {
        // What it ended with is nobody's business.
        let _ = thread.join();
    }
}

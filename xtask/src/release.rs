//! The release build, as `cargo build --release` makes it for a user: stage `demo` runs it, stage `packaging` packs it. Owns
//! the one build of a run. It begins beside the unit tests, which wait most of the time, and gives way to them.

use anyhow::{Result, anyhow};
use harness::build;
use harness::ledger::{self, Kind};
use harness::repo::Repo;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Instant;

const WORDS: &[&str] = &["build", "--release"];

static AHEAD: Mutex<Option<JoinHandle<Result<()>>>> = Mutex::new(None);

/// Begins the build on a thread of its own, with the least priority. Who needs it calls [`ready`].
pub(crate) fn begin(repo: &Repo) {
    let repo = repo.clone();
    let started = std::thread::spawn(move || {
        let words = [&["-n", "19", "cargo"], WORDS].concat();
        let ended = build::aside(&mut repo.command("nice", &words))?;
        // What it says is said by `ready`, which builds what is left.
        if ended.success() { Ok(()) } else { Err(anyhow!("{}", build::failure(&WORDS.join(" "), &ended))) }
    });
    *AHEAD.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(started);
}

/// Waits for the build that [`begin`] began, then builds what is left of it: all, where nobody began.
pub(crate) fn ready(repo: &Repo) -> Result<()> {
    let begun = AHEAD.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    if let Some(thread) = begun {
        let begin = Instant::now();
        let ended = thread.join().map_err(|_| anyhow!("the thread of the release build failed"))?;
        ledger::spent(Kind::Compiling, begin.elapsed());
        ended?;
    }
    build::must(&mut repo.command("cargo", WORDS))
}

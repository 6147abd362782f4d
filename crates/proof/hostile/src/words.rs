//! Every word of a session segment, and the steps of a connection at which each is overwritten.
//!
//! Owns the two lists. It must never spare a word because a polite application would not write it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;
use shm::{Class, Doorbell, Opcode, Submission, Word32, Word64, app_flag};

use crate::breach::Target;
use crate::raw::{PATIENCE, RawApp, RawConnection, RawError};

/// How far a connection is when its words are overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The application is attached, and has no connection.
    Attached,
    /// The daemon was asked for a connection, and has not answered.
    Connecting,
    /// The connection is there, no byte was sent.
    Established,
    /// The ring is full and is being sent.
    InFlight,
    /// The application will send no more.
    FinSent,
    /// The application gave the slot back.
    Closed,
    /// The slot is an operation queue, and a submission is in its ring.
    Operating,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Attached,
        Self::Connecting,
        Self::Established,
        Self::InFlight,
        Self::FinSent,
        Self::Closed,
        Self::Operating,
    ];
}

/// One shared word.
#[derive(Debug, Clone)]
pub enum Word {
    /// Of 32 bits.
    Narrow(Word32),
    /// Of 64 bits.
    Wide(Word64),
}

impl Word {
    /// Overwrites it.
    pub fn store(&self, value: u64) {
        match self {
            Self::Narrow(word) => word.store(value as u32, Ordering::Release),
            Self::Wide(word) => word.store(value, Ordering::Release),
        }
    }

    /// Reads it.
    pub fn load(&self) -> u64 {
        match self {
            Self::Narrow(word) => word.load(Ordering::Acquire).into(),
            Self::Wide(word) => word.load(Ordering::Acquire),
        }
    }
}

/// Bytes of the header that have a meaning.
const HEADER_BYTES: u64 = 192;
/// Where the application's doorbells begin (docs/inside/shared-memory.md).
const A2E_AT: u64 = 8192;

/// Every word of the session, with names, except most of the doorbells and of other slots.
pub fn of(app: &RawApp, slot: u32) -> Vec<(String, Word)> {
    let region = app.session.region();
    let mut words = Vec::new();
    for at in (0..HEADER_BYTES).step_by(4) {
        words.extend(region.word32(at).map(|w| (format!("header+{at}"), Word::Narrow(w))));
    }
    words.push(("app_sleep".into(), Word::Narrow(app.session.app_sleep())));
    words.push(("app_epoch".into(), Word::Wide(app.session.app_epoch())));
    let shape = app.session.shape();
    let mut start = A2E_AT;
    let rows = (0..shape.engines).map(|engine| (format!("a2e-{engine}"), Doorbell::bytes(shape.slots_per_engine())));
    for (name, bytes) in rows.chain([("e2a".to_owned(), Doorbell::bytes(shape.slots))]) {
        // The summary, the word of the first slots, and the last one.
        for at in [0, 64, bytes - 8] {
            words.extend(region.word64(start + at).map(|w| (format!("{name}+{at}"), Word::Wide(w))));
        }
        start += bytes.next_multiple_of(4096);
    }
    let s = app.session.slot(slot);
    let wide = [
        ("tx_tail", &s.tx_tail),
        ("rx_head", &s.rx_head),
        ("tx_head", &s.tx_head),
        ("rx_tail", &s.rx_tail),
        ("epoch", &s.epoch),
    ];
    words.extend(wide.map(|(name, w)| (name.to_owned(), Word::Wide(w.clone()))));
    let narrow = [
        ("app_flags", &s.app_flags),
        ("app_wait", &s.app_wait),
        ("app_generation", &s.app_generation),
        ("app_owner_pid", &s.app_owner_pid),
        ("tx_use", &s.tx_use),
        ("peer_timeout_ms", &s.peer_timeout_ms),
        ("tx_verb", &s.tx_verb),
        ("tx_rest", &s.tx_rest),
        ("state", &s.state),
        ("engine_flags", &s.engine_flags),
        ("reason", &s.reason),
        ("generation", &s.generation),
    ];
    words.extend(narrow.map(|(name, w)| (name.to_owned(), Word::Narrow(w.clone()))));
    words
}

/// Attaches, again and again while the daemon's table of applications is full of those that left a moment ago.
pub fn attach_patiently(socket: &Path, name: &str) -> Result<RawApp, RawError> {
    let start = Instant::now();
    loop {
        match RawApp::attach(socket, name) {
            Err(RawError::Refused(control::Reason::LocalLimit)) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Brings an application to a step. The connection is there from [`Step::Established`] on.
pub fn at_step(target: Target<'_>, name: &str, step: Step) -> Result<(RawApp, Option<RawConnection>), RawError> {
    let mut app = attach_patiently(target.socket, name)?;
    if step == Step::Attached {
        return Ok((app, None));
    }
    if step == Step::Operating {
        return operating(app);
    }
    let request = app.ask(target.far, 16_384)?;
    if step == Step::Connecting {
        return Ok((app, None));
    }
    let connection = match app.connected(request) {
        Ok(connection) => connection,
        // At a limit only the session itself can be overwritten.
        Err(RawError::No(_)) => return Ok((app, None)),
        Err(e) => return Err(e),
    };
    let flags = match step {
        Step::Established => return Ok((app, Some(connection))),
        Step::Attached | Step::Connecting | Step::InFlight | Step::Operating => 0,
        Step::FinSent => app_flag::FIN,
        Step::Closed => app_flag::FIN | app_flag::STOP | app_flag::CLOSED,
    };
    connection.words.tx_tail.store(connection.ring_bytes, Ordering::Release);
    connection.words.app_flags.store(flags, Ordering::Release);
    app.ring(connection.slot);
    Ok((app, Some(connection)))
}

/// An operation queue with a submission that is refused: what comes of it is a completion.
fn operating(mut app: RawApp) -> Result<(RawApp, Option<RawConnection>), RawError> {
    let queue = match app.open_operations(16_384) {
        Ok(queue) => queue,
        Err(RawError::No(_)) => return Ok((app, None)),
        Err(e) => return Err(e),
    };
    let submission = Submission {
        tag: 1,
        opcode: Opcode::Read,
        flags: 0,
        class: Class::Visible,
        segments: 0,
        region: 0,
        epoch: 1,
        offset: 0,
        bytes: 8,
        notify: 0,
        operand: 0,
        compare: 0,
    };
    queue.tx.0.write(queue.tx.1, &submission.to_bytes()).map_err(|e| RawError::Unexpected(e.to_string()))?;
    queue.words.tx_tail.store(submission.ring_bytes(), Ordering::Release);
    app.ring(queue.slot);
    Ok((app, Some(queue)))
}

/// Overwrites one word at one step by several values, ringing after each. Says whether the daemon ended the session.
pub fn flip(target: Target<'_>, step: Step, which: usize, rng: &mut SmallRng) -> Result<Option<bool>, RawError> {
    let (mut app, connection) = at_step(target, "flips-words", step)?;
    let slot = connection.map_or(0, |c| c.slot);
    let words = of(&app, slot);
    let Some((_, word)) = words.get(which) else { return Ok(None) };
    let before = word.load();
    for value in [
        before.wrapping_add(1),
        before.wrapping_sub(1),
        0,
        u64::MAX,
        before ^ (1 << rng.random_range(0..64)),
        rng.random(),
    ] {
        word.store(value);
        app.ring(slot);
    }
    // The engine may be asleep on another core; most verdicts are there by then, none is waited for.
    std::thread::sleep(Duration::from_micros(300));
    match app.drain() {
        Ok(()) => Ok(Some(false)),
        Err(e) if e.is_end() => Ok(Some(true)),
        Err(e) => Err(e),
    }
}

/// Words that [`flip`] knows, for any session.
pub fn count(target: Target<'_>) -> Result<usize, RawError> {
    Ok(of(&attach_patiently(target.socket, "counts-words")?, 0).len())
}

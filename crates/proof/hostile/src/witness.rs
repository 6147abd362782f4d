//! Polite applications at the other ends: they take connections, read or write until the end, and report how it ended.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, ensure};
use control::Reason;
use raas::{Listener, Session, Stream, StreamError};

use crate::host::{Host, WATCHDOG, eventually};

/// How a connection ended for the end that survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The other side said that it sends no more.
    Orderly,
    /// An error, with its reason.
    Broken(Option<Reason>),
    /// Nothing came, for as long as a wait may take: what must never be.
    Silence,
}

#[derive(Debug, Default)]
struct Notes {
    taken: usize,
    ends: Vec<End>,
    /// Times that no connection waited.
    looks: u64,
}

/// One listener and everything that came to it.
#[derive(Debug)]
pub struct Witness {
    /// Where it listens.
    pub at: SocketAddr,
    notes: Arc<Mutex<Notes>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const LOOK: Duration = Duration::from_millis(5);
/// Bytes that a witness writes at a time.
const PIECE: usize = 16 << 10;

impl Witness {
    /// Listens on a host; reads what comes, and writes too if `talks`.
    pub fn start(host: &Host, talks: bool) -> Result<Self> {
        let session = Session::builder().socket(&host.socket).name("witness").daemon_wait(Duration::ZERO).connect()?;
        let listener = Listener::bind_with(&session, (host.ip, 0))?;
        let at = listener.local_addr()?;
        let (notes, stop) = (Arc::new(Mutex::new(Notes::default())), Arc::new(AtomicBool::new(false)));
        let (noted, told) = (Arc::clone(&notes), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept_timeout(LOOK) else {
                    lock(&noted).looks += 1;
                    continue;
                };
                lock(&noted).taken += 1;
                let noted = Arc::clone(&noted);
                std::thread::spawn(move || {
                    let end = watch(stream, talks);
                    lock(&noted).ends.push(end);
                });
            }
        });
        Ok(Self { at, notes, stop, thread: Some(thread) })
    }

    /// Connections that were taken.
    pub fn taken(&self) -> usize {
        lock(&self.notes).taken
    }

    /// Waits until every connection has ended; the ends since the last call. None may be silence.
    pub fn ends(&self) -> Result<Vec<End>> {
        // A connect has its answer before the thread that accepts has counted the connection. Of two looks that find
        // none, the second began after this call, so what was answered by then is counted.
        let before = lock(&self.notes).looks;
        eventually("the witness has looked for connections", || {
            let looks = lock(&self.notes).looks - before;
            Ok(if looks >= 2 { Ok(()) } else { Err(looks) })
        })?;
        eventually("the witness hears the end of every connection", || {
            let notes = lock(&self.notes);
            let open = notes.taken - notes.ends.len();
            Ok(if open == 0 { Ok(()) } else { Err(open) })
        })?;
        let mut notes = lock(&self.notes);
        notes.taken = 0;
        let ends = std::mem::take(&mut notes.ends);
        ensure!(!ends.contains(&End::Silence), "a witness heard nothing");
        Ok(ends)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(notes: &Mutex<Notes>) -> std::sync::MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads (or writes) until it cannot.
pub fn watch(stream: Stream, talks: bool) -> End {
    let _ = stream.set_read_timeout(Some(WATCHDOG / 2));
    let _ = stream.set_write_timeout(Some(WATCHDOG / 2));
    let (mut stream, mut piece) = (stream, vec![0x5a; PIECE]);
    loop {
        let done = if talks { stream.write(&piece) } else { stream.read(&mut piece) };
        match done {
            Ok(0) => return End::Orderly,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock) => {
                return End::Silence;
            }
            Err(e) => return End::Broken(StreamError::reason_of(&e)),
        }
    }
}

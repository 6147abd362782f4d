//! The threads of an owner's program that answer readers.
//!
//! Owns them and the connections. It must never let one reader wait for another, and ends with the pool.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use raas::{MessageListener, MessageStream};

use crate::shelf::{Shelf, lock};
use crate::wire::{is_hello, read_request};

/// How soon the accepting thread sees the end.
const TICK: Duration = Duration::from_millis(200);
/// How long a stranger has to show the secret.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// Connections of readers: each holds 64 tensors.
pub(crate) const CONNECTIONS_MAX: usize = 1024;

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    streams: Mutex<Vec<(u64, MessageStream)>>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Server {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        for (_, stream) in lock(&self.shared.streams).drain(..) {
            // It may have ended.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // It may be this thread which drops the pool's last clone, only if that was moved there.
        if let Some(thread) = self.accepting.take().filter(|thread| thread.thread().id() != std::thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

/// Answers readers from here on.
pub(crate) fn serve(inner: &Arc<Shelf>, listener: MessageListener) -> io::Result<Server> {
    let shared = Arc::new(Shared::default());
    let (pool, ends) = (Arc::downgrade(inner), Arc::clone(&shared));
    let thread = std::thread::Builder::new().name("tensor-accept".into());
    let accepting = thread.spawn(move || accept(&pool, &listener, &ends))?;
    Ok(Server { shared, accepting: Some(accepting) })
}

fn accept(pool: &Weak<Shelf>, listener: &MessageListener, shared: &Arc<Shared>) {
    let mut number = 0;
    while !shared.is_over.load(Ordering::Acquire) {
        match listener.accept_timeout(TICK) {
            Ok((stream, peer)) => {
                number += 1;
                let reader = format!("{peer} (connection {number})");
                if lock(&shared.streams).len() < CONNECTIONS_MAX {
                    // A connection that gets no thread is dropped, and its reader told so by its end.
                    let _ = start(pool, shared, stream, number, reader);
                }
            }
            Err(raas::AcceptError::TimedOut(_)) => {}
            // No daemon for now: another one may come.
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

fn start(
    pool: &Weak<Shelf>,
    shared: &Arc<Shared>,
    stream: MessageStream,
    number: u64,
    reader: String,
) -> io::Result<()> {
    let (pool, ends) = (Weak::clone(pool), Arc::clone(shared));
    lock(&shared.streams).push((number, stream.try_clone()?));
    let thread = std::thread::Builder::new().name("tensor-reader".into());
    let begun = thread.spawn(move || {
        // The end of a connection is how a reader leaves.
        let _ = answer(&pool, &stream, &reader);
        lock(&ends.streams).retain(|(other, _)| *other != number);
    });
    begun.map(drop).inspect_err(|_| lock(&shared.streams).retain(|(other, _)| *other != number))
}

/// Until the connection or the pool ends.
fn answer(pool: &Weak<Shelf>, stream: &MessageStream, reader: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(HELLO_TIME))?;
    let Some(hello) = stream.receive_vec()? else { return Ok(()) };
    let Some(secret) = pool.upgrade().map(|pool| pool.head.secret) else { return Ok(()) };
    if !is_hello(&hello, &secret) {
        return Ok(());
    }
    stream.set_read_timeout(None)?;
    while let Some(message) = stream.receive_vec()? {
        let (Some(pool), Some(wanted)) = (pool.upgrade(), read_request(&message)) else { return Ok(()) };
        pool.lend(stream, &wanted, reader)?;
    }
    Ok(())
}

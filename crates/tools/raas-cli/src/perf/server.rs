//! `raas perf server`: answers many clients at once, a thread for each connection. A connection that asks for something
//! else, or sends nothing, is refused, and costs no other connection any time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::wire::{HELLO_BYTES, Hello, Kind, Refusal, Report, encode_answer};
use terminal::Failure;
use terminal::out;
use transport::load::{self, Content};
use transport::process;
use transport::{Accept, Connection, Duplex, Transport};

/// Connections served at once.
const CONNECTIONS_MAX: usize = 4096;
/// Stack of a connection's thread; its buffer lies on the heap.
const STACK_BYTES: usize = 256 << 10;
/// How long a client may take for its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may be silent in a test.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the accepting loop looks around.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an error of accepting.
const TROUBLE_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process is ended. Prints `listening on ADDRESS` when clients may come.
pub(crate) fn serve<T: Transport>(transport: &T, at: SocketAddr) -> Result<(), Failure> {
    process::raise_descriptor_limit();
    let listener = transport.listen(at)?;
    out::line(format_args!("listening on {}", listener.local_addr()))?;
    let active = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept_timeout(ACCEPT_TIMEOUT) {
            Ok(Some(stream)) => stream,
            Ok(None) => continue,
            // The listener goes on with the next daemon, and says each trouble once.
            Err(e) if e.get_ref().is_some_and(|e| e.is::<raas::AcceptError>()) => {
                out::say(format_args!("raas: {e}; going on when that is over"));
                std::thread::sleep(TROUBLE_PAUSE);
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        let place = Permit::take(&active);
        let transport = transport.clone();
        let peer = stream.peer_addr();
        if let Some(cause) = stream.fallback() {
            out::say(format_args!("raas: from {peer} over kernel TCP ({}): {cause}", raas::Reason::TcpFallback.key()));
        }
        let spawned = std::thread::Builder::new().stack_size(STACK_BYTES).name("perf".into()).spawn(move || {
            if let Err(e) = serve_one(&transport, &stream, place.is_some()) {
                tracing::warn!("perf client {peer}: {e}");
            }
            drop(place);
        });
        if let Err(e) = spawned {
            tracing::warn!("perf client {peer}: no thread for it: {e}");
        }
    }
}

/// One of the [`CONNECTIONS_MAX`] places, given back on drop.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(active: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(active));
        (active.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX).then_some(place)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve_one<T: Transport>(transport: &T, stream: &T::Stream, has_place: bool) -> io::Result<()> {
    stream.set_timeout(Some(HELLO_TIMEOUT))?;
    let mut hello = [0; HELLO_BYTES];
    stream.recv_exact(&mut hello)?;
    let hello = Hello::decode(&hello).and_then(|h| if has_place { Ok(h) } else { Err(Refusal::Busy) });
    let hello = match hello {
        Ok(hello) => hello,
        Err(refusal) => {
            if refusal != Refusal::NotPerf {
                stream.send_all(&encode_answer(Err(refusal)))?;
                let _ = stream.finish_sending();
            }
            return Err(io::Error::other(refusal));
        }
    };
    stream.send_all(&encode_answer(Ok(())))?;
    stream.set_timeout(Some(IDLE_TIMEOUT))?;
    let daemon_time = || transport.daemon_pid().and_then(process::cpu_time);
    let (cpu_start, daemon_start) = (process::own_cpu_time(), daemon_time());
    let bytes = hello.size_bytes as usize;
    let payload_bytes = match hello.kind {
        Kind::Latency => load::echo(stream, bytes, Content::Same)?,
        Kind::Bandwidth | Kind::Rate => load::take(stream, bytes, Content::Same)?,
    };
    let report =
        Report { payload_bytes, cpu_start, cpu_end: process::own_cpu_time(), daemon: daemon_start.zip(daemon_time()) };
    stream.send_all(&report.encode())?;
    stream.finish_sending()?;
    // The client closes first, so that the report is never lost to a reset.
    while stream.recv(&mut [0; 64])? > 0 {}
    Ok(())
}

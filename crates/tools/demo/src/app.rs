//! An application process of the demo: does what the parent process orders on stdin, reports what happened on stdout,
//! and ends when the parent has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::flow::Flow;
use super::links::{self, Links};
use super::ping;
use super::protocol::{Command, Event, Setup, Transferred, Via};
use super::rate;
use super::transfer::{self, Outgoing, Shared};
use terminal::Failure;
use transport::process;
use transport::{Accept, Duplex, Raas, Tcp, Transport};

/// How often a running transfer reports how far it is.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);
/// Bytes of a file hashed at once.
const HASH_BYTES: usize = 256 << 10;

/// Runs the application; `parent` is the process that must live for it to live.
pub fn run(parent: u32) -> Result<(), Failure> {
    die_with(parent)?;
    process::raise_descriptor_limit();
    let commands = read_commands();
    let Ok(Command::Setup(setup)) = commands.recv() else {
        return Err(Failure::Failed("the demo's parent process sent no set-up".into()));
    };
    let outcome = match &setup.via {
        Via::Tcp => App { setup: &setup, commands }.serve(&Tcp),
        Via::Raas { socket } => Raas::attach(Some(socket), &setup.name)
            .map_err(|e| e.to_string().into())
            .and_then(|raas| App { setup: &setup, commands }.serve(&raas)),
    };
    outcome.map_err(|broken| {
        tell(&Event::Error { message: broken.message, is_unverified: broken.is_unverified });
        // The parent process tells it.
        Failure::Logged(1)
    })
}

/// Asks the kernel to kill this process when its parent dies; the end of stdin says the same once more.
fn die_with(parent: u32) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| Failure::failed("parent-death signal", e))?;
    let is_parent = rustix::process::getppid().is_some_and(|p| u32::try_from(p.as_raw_nonzero().get()) == Ok(parent));
    // It may have died before the kernel was asked.
    if is_parent { Ok(()) } else { Err(Failure::Failed("the demo's parent process is gone".into())) }
}

/// Reads commands in a thread of its own, so that the parent's end is noticed in the middle of any work.
fn read_commands() -> mpsc::Receiver<Command> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(command) = line.map_err(drop).and_then(|l| serde_json::from_str(&l).map_err(drop)) else { break };
            let last = matches!(command, Command::Finish);
            if sender.send(command).is_err() || last {
                return;
            }
        }
        std::process::exit(1);
    });
    receiver
}

/// Writes an event. A parent that does not read any more has ended, and stdin shows that.
fn tell(event: &Event) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// Why the application cannot go on.
#[derive(Debug)]
struct Broken {
    message: String,
    /// Bytes arrived that are not those that were sent.
    is_unverified: bool,
}

impl From<String> for Broken {
    fn from(message: String) -> Self {
        Self { message, is_unverified: false }
    }
}

impl From<&str> for Broken {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl Broken {
    fn on(connection: u32, what: &str, e: &std::io::Error) -> Self {
        let is_unverified = e.kind() == std::io::ErrorKind::InvalidData;
        Self { message: format!("{what} on connection {connection}: {e}"), is_unverified }
    }
}

struct App<'a> {
    setup: &'a Setup,
    commands: mpsc::Receiver<Command>,
}

impl App<'_> {
    fn serve<T: Transport>(&self, transport: &T) -> Result<(), Broken> {
        let files = hash_files(self.setup)?;
        let listener = transport.listen(SocketAddr::new(self.setup.ip, 0)).map_err(|e| e.to_string())?;
        tell(&Event::Listening { at: listener.local_addr() });
        let mut open = Links::new();
        let mut lost = BTreeSet::new();
        loop {
            match self.commands.recv() {
                Ok(Command::Open { peers }) => {
                    open = links::open(transport, &listener, &self.setup.links, &peers, self.timeout())?;
                    tell(&Event::Opened);
                }
                Ok(Command::Ping { connection }) => self.ping(&open, connection)?,
                Ok(Command::Rate { connection }) => self.rate(&open, connection)?,
                Ok(Command::Flow) => lost.extend(self.flow(&open)?),
                Ok(Command::Transfer) => self.transfer(&open, &files)?,
                Ok(Command::Finish) => {
                    links::close(&open, &lost)?;
                    drop(open);
                    drop(listener);
                    tell(&Event::Bye);
                    return Ok(());
                }
                Ok(Command::Setup(_) | Command::Stop) => return Err("told what makes no sense now".into()),
                Err(_) => return Err("the demo's parent process is gone".into()),
            }
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.setup.timeout_seconds)
    }

    /// The connection, and whether this end began it.
    fn end<'s, S: Duplex>(&self, open: &'s Links<S>, connection: u32) -> Result<(&'s S, bool), Broken> {
        let stream = open.get(&connection).ok_or("measurement on a connection that is not open")?;
        Ok((stream.as_ref(), self.setup.links.iter().any(|l| l.connection == connection && l.connects)))
    }

    fn ping<S: Duplex>(&self, open: &Links<S>, connection: u32) -> Result<(), Broken> {
        let (stream, measures) = self.end(open, connection)?;
        let result = if measures { ping::measure(stream) } else { ping::answer(stream).map(|()| Vec::new()) };
        let half_round_trips_ns = result.map_err(|e| Broken::on(connection, "ping", &e))?;
        tell(&Event::Pinged { half_round_trips_ns });
        Ok(())
    }

    fn rate<S: Duplex>(&self, open: &Links<S>, connection: u32) -> Result<(), Broken> {
        let (stream, measures) = self.end(open, connection)?;
        let result = if measures { rate::measure(stream).map(Some) } else { rate::answer(stream).map(|()| None) };
        let rate = result.map_err(|e| Broken::on(connection, "messages", &e))?;
        let messages = rate.map(|r| (r.messages, u64::try_from(r.took.as_nanos()).unwrap_or(u64::MAX)));
        tell(&Event::Rated { messages });
        Ok(())
    }

    /// Has bytes flow until the parent says stop; gives the connections that failed.
    fn flow<S: Duplex>(&self, open: &Links<S>) -> Result<Vec<u32>, Broken> {
        let flow = Flow::default();
        std::thread::scope(|scope| {
            let flowing = scope.spawn(|| flow.run(open, &self.setup.links));
            let told = self.commands.recv();
            flow.stop.store(true, Ordering::Relaxed);
            flowing.join().map_err(|_| "a thread panicked")?;
            match told {
                Ok(Command::Stop) => Ok(()),
                _ => Err("told what makes no sense while bytes flow"),
            }
        })?;
        let flowed = flow.told();
        let lost = flowed.lost.iter().map(|lost| lost.connection).collect();
        tell(&Event::Flowed(Box::new(flowed)));
        Ok(lost)
    }

    fn transfer<S: Duplex>(&self, open: &Links<S>, files: &BTreeMap<u32, Outgoing>) -> Result<(), Broken> {
        let cpu = process::own_cpu_time();
        let shared = Shared::default();
        let (done, finished) = mpsc::channel::<()>();
        let result = std::thread::scope(|scope| {
            let shared = &shared;
            scope.spawn(move || {
                let received = || shared.received_bytes.load(Ordering::Relaxed);
                while finished.recv_timeout(PROGRESS_PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
                    tell(&Event::Progress { received_bytes: received() });
                }
                tell(&Event::Progress { received_bytes: received() });
            });
            let result = transfer::run(open, &self.setup.links, files, shared);
            drop(done);
            result
        });
        let (sent, received) = result?;
        tell(&Event::Complete);
        let cpu_seconds = process::own_cpu_time().saturating_sub(cpu).as_secs_f64();
        tell(&Event::Transferred(Box::new(Transferred { sent, received, cpu_seconds })));
        Ok(())
    }
}

/// Computes the digest of every file to be sent from the file itself, before anything is sent.
fn hash_files(setup: &Setup) -> Result<BTreeMap<u32, Outgoing>, String> {
    let mut buffer = vec![0; HASH_BYTES];
    let mut outgoing = BTreeMap::new();
    for (number, source) in &setup.files {
        let (bytes, digest) =
            hash_file(&source.path, &mut buffer).map_err(|e| format!("{}: {e}", source.path.display()))?;
        outgoing.insert(*number, Outgoing { file: *number, path: source.path.clone(), bytes, digest });
    }
    Ok(outgoing)
}

fn hash_file(path: &std::path::Path, buffer: &mut [u8]) -> std::io::Result<(u64, [u8; 32])> {
    use std::io::Read;
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut total = 0u64;
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok((total, hasher.finalize().into())),
            Ok(n) => {
                hasher.update(buffer.get(..n).unwrap_or_default());
                total += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

//! An application process of the demo: does what the parent process orders on stdin, answers on stdout, and ends when
//! the parent has ended.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use super::MESSAGE_BYTES;
use super::links::{self, Links};
use super::protocol::{Answer, AppLink, Command, Flowed, Small, Transferred, Via};
use super::traffic::Traffic;
use terminal::Failure;
use transport::load::{self, Content, Until};
use transport::{Accept, Duplex, Raas, Tcp, Transport, process};

/// How long round trips are measured, and messages one way.
const PING_TIME: Duration = Duration::from_millis(600);
const RATE_TIME: Duration = Duration::from_millis(300);

/// How often a running transfer says how far it is.
const PROGRESS_PERIOD: Duration = Duration::from_millis(250);

/// Runs the application; `parent` is the process that must live for it to live.
pub fn run_app(parent: u32) -> Result<(), Failure> {
    die_with(parent)?;
    process::raise_descriptor_limit();
    let commands = read_commands();
    let Ok(Command::Setup(setup)) = commands.recv() else {
        return Err(Failure::Failed("the demo's parent process sent no set-up".into()));
    };
    let app = App { links: &setup.links, commands };
    let at = SocketAddr::new(setup.ip, 0);
    let outcome = match &setup.via {
        Via::Tcp => app.serve(&Tcp, at),
        Via::Raas(socket) => Raas::attach(Some(socket), &setup.name).and_then(|raas| app.serve(&raas, at)),
    };
    outcome.map_err(|failure| {
        let is_unverified = matches!(failure, Failure::Unverified(_));
        answer(&Answer::Failed { message: failure.to_string(), is_unverified });
        // The parent process tells it.
        Failure::Logged(1)
    })
}

/// Asks the kernel to kill this process when its parent dies; the end of stdin says the same once more.
pub(super) fn die_with(parent: u32) -> Result<(), Failure> {
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

/// A parent that does not read any more has ended, and stdin shows that.
fn answer(answer: &Answer) {
    if let Ok(mut line) = serde_json::to_vec(answer) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// A failure of a connection; whether bytes came altered is in its kind.
pub(super) fn failure(what: &str, e: &std::io::Error) -> Failure {
    match e.kind() {
        std::io::ErrorKind::InvalidData => Failure::Unverified(format!("{what}: {e}")),
        _ => Failure::Failed(format!("{what}: {e}")),
    }
}

struct App<'a> {
    links: &'a [AppLink],
    commands: mpsc::Receiver<Command>,
}

impl App<'_> {
    fn serve<T: Transport>(&self, transport: &T, at: SocketAddr) -> Result<(), Failure> {
        let listener = transport.listen(at)?;
        answer(&Answer::Listening(listener.local_addr()));
        let mut open = Links::new();
        loop {
            let done = match self.commands.recv() {
                Ok(Command::Open(peers)) => {
                    links::open(transport, &listener, self.links, &peers, &mut open).map_err(Failure::Failed)?;
                    Answer::Opened
                }
                Ok(Command::Small(connection)) => Answer::Small(self.small(&open, connection)?),
                Ok(Command::Flow) => {
                    let flowed = self.flow(&open)?;
                    open.retain(|connection, _| flowed.lost.iter().all(|lost| lost.connection != *connection));
                    Answer::Flowed(flowed)
                }
                Ok(Command::Transfer) => Answer::Transferred(self.transfer(&open)?),
                Ok(Command::Finish) => {
                    links::close(&open).map_err(Failure::Failed)?;
                    drop((open, listener));
                    answer(&Answer::Bye);
                    return Ok(());
                }
                _ => return Err(Failure::Failed("told what makes no sense now".into())),
            };
            answer(&done);
        }
    }

    /// Small messages on one connection: the end that began it measures.
    fn small<S: Duplex>(&self, open: &Links<S>, connection: u32) -> Result<Option<Small>, Failure> {
        let stream = open.get(&connection).ok_or_else(|| Failure::Failed("no such connection".into()))?.as_ref();
        let measures = self.links.iter().any(|l| l.connection == connection && l.connects);
        let (bytes, content) = (MESSAGE_BYTES, Content::Numbered);
        let both = || -> std::io::Result<Option<Small>> {
            if !measures {
                load::echo(stream, bytes, content)?;
                return load::take(stream, bytes, content).map(|_| None);
            }
            let latencies = load::ping_pong(stream, bytes, content, PING_TIME)?;
            let pushed = load::push(stream, bytes, content, Until::Time(RATE_TIME))?;
            let us = |quantile| latencies.us(quantile).ok_or(std::io::ErrorKind::TimedOut);
            let (messages, msgs_per_s) = (pushed.messages, pushed.messages as f64 / pushed.took.as_secs_f64());
            Ok(Some(Small { p50_us: us(0.5)?, p99_us: us(0.99)?, messages, msgs_per_s }))
        };
        both().map_err(|e| failure(&format!("small messages on connection {connection}"), &e))
    }

    /// Has bytes flow until the parent says stop.
    fn flow<S: Duplex>(&self, open: &Links<S>) -> Result<Flowed, Failure> {
        let traffic = Traffic::default();
        let told = std::thread::scope(|scope| {
            scope.spawn(|| traffic.flow(open, self.links));
            let told = self.commands.recv();
            traffic.stop.store(true, Ordering::Relaxed);
            told
        });
        match told {
            Ok(Command::Stop) => Ok(traffic.told()),
            _ => Err(Failure::Failed("told what makes no sense while bytes flow".into())),
        }
    }

    fn transfer<S: Duplex>(&self, open: &Links<S>) -> Result<Transferred, Failure> {
        let cpu = process::own_cpu_time();
        let traffic = Traffic::default();
        let (done, is_done) = mpsc::channel::<()>();
        let arrived = std::thread::scope(|scope| {
            let traffic = &traffic;
            scope.spawn(move || {
                while is_done.recv_timeout(PROGRESS_PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
                    answer(&Answer::Received(traffic.received_bytes.load(Ordering::Relaxed)));
                }
            });
            let arrived = traffic.transfer(open, self.links);
            drop(done);
            arrived
        });
        if let Some(lost) = traffic.lost().first() {
            return Err(Failure::Failed(format!("files on connection {}: {}", lost.connection, lost.error)));
        }
        let cpu_seconds = process::own_cpu_time().saturating_sub(cpu).as_secs_f64();
        Ok(Transferred { arrived, cpu_seconds })
    }
}

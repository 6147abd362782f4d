//! Daemons that are killed and started again, while processes of several kinds exchange bytes through them.
//!
//! Owns the deaths, and the comparison of what each process sent and got: by length and SHA-256, each computed by the
//! process itself. It must never start a daemon before the one that it replaces is dead.

mod datagrams;
mod regions;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use raas::{ConnectOptions, ListenOptions, MessageListener, MessageStream, PathKind, Session, Stream};
use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use sha2::{Digest as _, Sha256};
use verbs::Wire;

use crate::host::{Host, Program, WATCHDOG, address, eventually};
use crate::verdict::Verdict;
use regions::{Uses, found, said};

/// Daemons and programs wait for longer than all deaths take, also where a machine is so busy that no life of a daemon
/// is long enough for a lane: what is judged is bytes.
const LIMITS: &str = "[limits]\npeer_return_ms = 3600000\nconnect_timeout_ms = 60000\n";
/// In a part of the runs.
const TCP_DIRECT: &str = "tcp_direct = \"auto\"\n";
/// As long as that.
const DAEMON_WAIT: Duration = Duration::from_secs(3600);
/// After the last death all goes on within that.
const LINE_WAIT: Duration = Duration::from_secs(300);
/// Longest time between two deaths.
const PAUSE_MS_MAX: u64 = 120;
/// Longest piece that a writer writes at once.
const PIECE_BYTES_MAX: usize = 100_000;
/// What a sender says when it has its connection.
const CONNECTED: &str = "connected";
/// Longest message.
const MESSAGE_BYTES_MAX: usize = 30_000;

/// What a pair of processes exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// A stream of bytes.
    Stream,
    /// Messages.
    Messages,
    /// A stream of bytes between sessions that have regions.
    Regions,
    /// Datagrams.
    Datagrams,
}

impl Flow {
    const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Messages => "messages",
            Self::Regions => "regions",
            Self::Datagrams => "datagrams",
        }
    }
}

impl std::str::FromStr for Flow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stream" => Ok(Self::Stream),
            "messages" => Ok(Self::Messages),
            "regions" => Ok(Self::Regions),
            "datagrams" => Ok(Self::Datagrams),
            other => Err(format!("`{other}` is none of `stream`, `messages`, `regions` and `datagrams`")),
        }
    }
}

/// Runs it: `count` deaths at times that the seed decides, of either daemon or of both at once.
pub fn run(raas: Program<'_>, seed: u64, count: u32, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let ips = [address(), address()];
    // Streams can have TCP connections of their own where the lane is on TCP.
    let is_direct = raas.wire.allows(Wire::Iwarp) && rng.random();
    let configuration = if is_direct { [TCP_DIRECT, LIMITS].concat() } else { LIMITS.into() };
    let start = |side: usize| Host::start(raas, dir.path(), ips[side], &configuration);
    let mut hosts = [start(0)?, start(1)?];
    let mut pairs = Vec::new();
    for (flow, from, to) in [
        (Flow::Stream, 0, 1),
        (Flow::Stream, 1, 0),
        (Flow::Messages, 0, 1),
        (Flow::Messages, 1, 0),
        (Flow::Stream, 0, 0),
        (Flow::Messages, 1, 1),
        (Flow::Regions, 0, 1),
        (Flow::Regions, 1, 0),
        (Flow::Regions, 0, 0),
        (Flow::Datagrams, 0, 1),
        (Flow::Datagrams, 1, 0),
        (Flow::Datagrams, 1, 1),
    ] {
        pairs.push(Pair::start(flow, &hosts[from], &hosts[to], rng.random())?);
    }
    verdict.case("the lane is on a wire that was asked for", hosts[0].wire(raas.wire).map(|wire| wire.to_string()));
    if is_direct {
        verdict.case("a stream between two hosts has a TCP connection of its own", has_own_tcp(&hosts));
    }
    let (mut deaths, mut told) = ([0_u32; 3], Told::default());
    let died = (0..count).try_for_each(|_| {
        std::thread::sleep(Duration::from_millis(rng.random_range(0..PAUSE_MS_MAX)));
        let which = rng.random_range(0..3_usize);
        deaths[which] += 1;
        for side in (0..2).filter(|side| which == 2 || which == *side) {
            hosts[side].kill()?;
            told.note(side, &hosts[side], "was killed");
        }
        for side in (0..2).filter(|side| which == 2 || which == *side) {
            hosts[side] = start(side)?;
        }
        Ok(())
    });
    let [first, second, both] = deaths;
    let detail = died.map(|()| format!("{first} of one daemon, {second} of the other, {both} of both at once"));
    verdict.case(&format!("daemons: {count} deaths at times that the seed decides"), detail);
    if is_direct {
        verdict.case("after the deaths it is shown with it", has_own_tcp(&hosts));
    }
    for pair in pairs {
        let name = pair.name.clone();
        verdict.case(&name, pair.finish());
    }
    verdict.case("afterwards nothing is left of the programs", all_gone(&hosts));
    if !verdict.is_clean() {
        hosts.iter().enumerate().for_each(|(side, host)| told.note(side, host, "lives"));
        told.lives.iter().for_each(|life| eprintln!("{life}"));
    }
    hosts.into_iter().try_for_each(Host::stop)
}

/// The last words of each daemon, for whoever looks for the cause of a failure.
#[derive(Default)]
struct Told {
    lives: Vec<String>,
}

impl Told {
    fn note(&mut self, side: usize, host: &Host, end: &str) {
        self.lives.push(format!("daemon {side}, process {}, {end}:\n{}", host.pid(), host.words()));
    }
}

/// Streams that are shown with a TCP connection of their own, at both ends.
fn has_own_tcp(hosts: &[Host; 2]) -> Result<String> {
    let streams = |host: &Host| -> Result<usize> {
        let rows = raas::inspect::connections(Some(&host.socket))?;
        Ok(rows.iter().filter(|row| row.path == PathKind::TcpDirect).count())
    };
    eventually("some are", || {
        let counts = (streams(&hosts[0])?, streams(&hosts[1])?);
        Ok(if counts.0.min(counts.1) > 0 { Ok(()) } else { Err(counts) })
    })?;
    Ok(format!("{} at one host, {} at the other", streams(&hosts[0])?, streams(&hosts[1])?))
}

fn all_gone(hosts: &[Host; 2]) -> Result<String> {
    for host in hosts {
        eventually("connections and programs are over", || {
            let (rows, apps) = (raas::inspect::connections(Some(&host.socket))?.len(), host.stat()?.apps.len());
            Ok(if (rows, apps) == (0, 0) { Ok(()) } else { Err((rows, apps)) })
        })?;
    }
    Ok("no connection, no program".into())
}

/// Two processes, of which one sends.
struct Pair {
    name: String,
    flow: Flow,
    receiver: Process,
    sender: Process,
}

impl Pair {
    fn start(flow: Flow, from: &Host, to: &Host, seed: u32) -> Result<Self> {
        let near = if from.ip == to.ip { "on one host" } else { "between two hosts" };
        let receiver = Process::start("flow-to", flow, &to.socket, &["--ip", &to.ip.to_string()])?;
        let at = receiver.line()?;
        let at = at.strip_prefix("at ").ok_or_else(|| anyhow!("the receiver said {at}"))?;
        let sender = Process::start("flow-from", flow, &from.socket, &["--to", at, "--seed", &seed.to_string()])?;
        // A connect that a death interrupts may fail, and that is not judged here.
        let said = sender.line()?;
        ensure!(said == CONNECTED, "the sender said {said}");
        let what = match flow {
            Flow::Stream | Flow::Messages => "whole, in order, once",
            Flow::Regions => "the stream whole, and the region with all that was added to it",
            Flow::Datagrams => "whole, at most once",
        };
        Ok(Self { name: format!("{} {near}: {what}", flow.name()), flow, receiver, sender })
    }

    /// The sender stops; both say what they saw.
    fn finish(mut self) -> Result<String> {
        drop(self.sender.stdin.take());
        let sent = self.sender.line().context("the sender")?;
        let got = self.receiver.line().context("the receiver")?;
        if self.flow == Flow::Datagrams {
            return datagrams::judge(&sent, &got);
        }
        if self.flow == Flow::Regions {
            return regions::judge(&sent, &got);
        }
        ensure!(sent == got && !sent.is_empty(), "sent {sent}, got {got}");
        Ok(sent)
    }
}

struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    fn start(role: &str, flow: Flow, socket: &Path, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([role, "--flow", flow.name()]).args(args).arg("--socket").arg(socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().with_context(|| format!("cannot start {role}"))?;
        let stdin = child.stdin.take();
        let out = BufReader::new(child.stdout.take().context("stdout was asked for")?);
        let (said, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
        Ok(Self { child, stdin, lines })
    }

    /// The next line that it says.
    fn line(&self) -> Result<String> {
        match self.lines.recv_timeout(LINE_WAIT) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Disconnected) => bail!("it ended without a word"),
            Err(RecvTimeoutError::Timeout) => bail!("it said nothing for {LINE_WAIT:?}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn session(socket: &Path, name: &str) -> Result<Session> {
    Ok(Session::builder().socket(socket).name(name).daemon_wait(DAEMON_WAIT).connect()?)
}

/// What one process saw.
fn told(bytes: u64, hash: Sha256) -> String {
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{bytes} bytes, SHA-256 {digest}")
}

/// The process that sends until its standard input ends.
pub fn send(flow: Flow, socket: &Path, to: SocketAddr, seed: u64) -> Result<()> {
    let session = session(socket, "flow-from")?;
    let stopped = stop();
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    let max = if flow == Flow::Messages { MESSAGE_BYTES_MAX } else { PIECE_BYTES_MAX };
    if flow == Flow::Datagrams {
        println!("{}", datagrams::send(&session, to, &mut rng, &stopped)?);
        return Ok(());
    }
    let mut next = |hash: &mut Sha256, bytes: &mut u64| {
        let mut piece = vec![0; rng.random_range(1..max)];
        rng.fill_bytes(&mut piece);
        hash.update(&piece);
        *bytes += piece.len() as u64;
        // Some pauses: a death also falls on connections that rest.
        if rng.random_ratio(1, 50) {
            std::thread::sleep(Duration::from_millis(rng.random_range(0..30)));
        }
        piece
    };
    let mut behind = String::new();
    let goes_on = || stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty);
    match flow {
        Flow::Stream | Flow::Regions | Flow::Datagrams => {
            let mut stream = Stream::connect_with(&session, to)?;
            let uses = (flow == Flow::Regions).then(|| Uses::theirs(session.clone(), to));
            println!("{CONNECTED}");
            stream.set_write_timeout(Some(DAEMON_WAIT))?;
            while goes_on() {
                stream.write_all(&next(&mut hash, &mut bytes))?;
            }
            // The owner's lives until the stream ends.
            behind = uses.map(Uses::stop).transpose()?.map(said).unwrap_or_default();
            stream.shutdown(std::net::Shutdown::Write)?;
            stream.set_read_timeout(Some(DAEMON_WAIT))?;
            ensure!(stream.read(&mut [0; 1])? == 0, "the receiver said something");
        }
        Flow::Messages => {
            let stream = MessageStream::connect_with(&session, to, ConnectOptions::new())?;
            println!("{CONNECTED}");
            while goes_on() {
                stream.send(&next(&mut hash, &mut bytes))?;
            }
            // An empty message is the end, whose answer shows that all was taken.
            stream.send(&[])?;
            ensure!(stream.receive_vec()?.is_some_and(|answer| answer == b"all"), "the receiver did not take all");
        }
    }
    println!("{}{behind}", told(bytes, hash));
    Ok(())
}

/// Says when the standard input ends.
fn stop() -> Receiver<()> {
    let (stop, stopped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = stop.send(());
    });
    stopped
}

/// The process that receives until the end.
pub fn receive(flow: Flow, socket: &Path, ip: std::net::IpAddr) -> Result<()> {
    let session = session(socket, "flow-to")?;
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    let mut behind = String::new();
    match flow {
        Flow::Datagrams => return datagrams::receive(&session, ip, &stop()),
        Flow::Stream | Flow::Regions => {
            let listener = raas::Listener::bind_with(&session, (ip, 0))?;
            let at = listener.local_addr()?;
            let uses = (flow == Flow::Regions).then(|| Uses::own(session.clone(), at));
            println!("at {at}");
            let (mut stream, _) = listener.accept_timeout(WATCHDOG)?;
            stream.set_read_timeout(Some(DAEMON_WAIT))?;
            let mut piece = vec![0; PIECE_BYTES_MAX];
            loop {
                let count = stream.read(&mut piece)?;
                if count == 0 {
                    break;
                }
                hash.update(&piece[..count]);
                bytes += count as u64;
            }
            behind = uses.map(Uses::stop).transpose()?.map(found).unwrap_or_default();
        }
        Flow::Messages => {
            let listener = MessageListener::bind_with(&session, (ip, 0), ListenOptions::new())?;
            println!("at {}", listener.local_addr()?);
            let (stream, _) = listener.accept_timeout(WATCHDOG)?;
            loop {
                let message = stream.receive_vec()?.context("the sender closed before its last message")?;
                if message.is_empty() {
                    break;
                }
                hash.update(&message);
                bytes += message.len() as u64;
            }
            stream.send(b"all")?;
            // Until the sender has gone: what it was told is delivered by then.
            let _ = stream.receive_vec();
        }
    }
    println!("{}{behind}", told(bytes, hash));
    Ok(())
}

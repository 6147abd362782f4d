//! Judge `descriptors`: a stranger sends descriptors of every kind through every door of the control socket, beside
//! polite programs whose daemon is asked all the time.
//!
//! Owns the list of kinds, and what must hold. Each attack is a process of a user of its own, so that the polite are
//! others. A file of a file system that never answers is among the kinds where the kernel lets this process mount one.

mod silent;
pub mod stranger;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::host::{Host, Program, WATCHDOG, address, eventually};
use crate::polite::{self, Transfer};
use crate::pulse::Pulse;
use crate::verdict::Verdict;
use silent::Silent;
use stranger::Door;

const CONFIGURATION: &str = "socket_mode = \"0666\"\n[limits]\nhandshake_ms = 1000\n";
const STREAMS: u64 = 2;
/// Users that nobody has.
const FIRST_UID: u32 = 61_000;
/// Receivers of one user that a daemon lets be lost.
const LOST_MAX: usize = 4;
/// A user that has lost so many.
const GREEDY_UID: u32 = 60_999;

type Make = fn() -> Result<OwnedFd>;

/// What a stranger can have, but for a silent file.
const KINDS: &[(&str, Make)] = &[
    ("a socket whose close waits", lingering),
    ("a pipe", || Ok(rustix::pipe::pipe()?.0)),
    ("a directory", || Ok(std::fs::File::open("/")?.into())),
    ("a device", || Ok(std::fs::File::open("/dev/zero")?.into())),
    ("a socket that listens", || Ok(std::net::TcpListener::bind("127.0.0.1:0")?.into())),
    ("a set of epoll in a set of epoll", || {
        use rustix::event::epoll;
        let [outer, inner] = [epoll::create(epoll::CreateFlags::CLOEXEC)?, epoll::create(epoll::CreateFlags::CLOEXEC)?];
        epoll::add(&outer, &inner, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        Ok(outer)
    }),
    ("a socket that has a socket in it whose close waits", || {
        let [outer, other] = pair()?;
        pass(&other, &lingering()?)?;
        Ok(outer)
    }),
    ("a counter", || Ok(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?)),
    ("a file in memory with a name", || Ok(tempfile::tempfile_in("/dev/shm")?.into())),
    ("memory that may not grow, and may shrink", || {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let memory = memfd_create("m", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, 1 << 20)?;
        fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SEAL)?;
        Ok(memory)
    }),
    ("memory of huge pages", || {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let memory = memfd_create("m", flags)?;
        ftruncate(&memory, 2 << 20)?;
        fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(memory)
    }),
    ("memory without seals", || Ok(rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC)?)),
    ("a process", || {
        let own = rustix::process::getpid();
        Ok(rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty())?)
    }),
];

fn pair() -> Result<[OwnedFd; 2]> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok([a, b])
}

/// Leaves a descriptor unread in the other end of a socket.
fn pass(socket: &OwnedFd, fd: &OwnedFd) -> Result<()> {
    Ok(control::send_frame(socket.as_fd(), &[0], &[fd.as_fd()])?)
}

/// A connection with more unsent bytes than the kernel takes; its peer is kept open, and reads nothing.
fn lingering() -> Result<OwnedFd> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut ours = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    ours.set_nonblocking(true)?;
    while std::io::Write::write(&mut ours, &[1; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(1000)))?;
    // Until this process ends.
    std::mem::forget(peer);
    Ok(ours.into())
}

/// Runs it. Nothing is drawn: every kind goes through every door.
pub fn run(raas: Program<'_>, _seed: u64, verdict: &mut Verdict) -> Result<()> {
    let silent = Silent::mount();
    let dir = tempfile::tempdir()?;
    // The strangers go through it.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let mut hosts = [
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
    ];
    let transfer = Transfer::start(&hosts[0], &hosts[1], STREAMS)?;
    let pulse = Pulse::default();
    let socket = hosts[0].socket.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| pulse.beat(&socket));
        let mut uids = FIRST_UID..;
        for (kind, make) in KINDS {
            verdict.case(&format!("{kind}, through every door"), every_door(&socket, &pulse, &mut uids, *make));
        }
        match &silent {
            Ok(silent) => {
                let found = every_door(&socket, &pulse, &mut uids, || silent.open());
                verdict.case("a file that never answers, through every door", found);
                verdict.case("a user that goes on so is refused, and says why", greedy(&socket, silent));
            }
            Err(why) => println!("SKIP descriptors: a file that never answers: {why:#}"),
        }
        pulse.end();
    });
    verdict.case("the daemon answered others all the time", pulse.said());
    verdict.case("the polite bytes are all there and right", transfer.finish().map(|bytes| format!("{bytes} bytes")));
    verdict.case("a new polite pair is served as before", polite::fresh(&hosts));
    verdict.case("after SIGKILL the next daemon starts at the same place", next_daemon(raas, dir.path(), &mut hosts));
    if let Ok(silent) = silent {
        drop(silent);
        let again = eventually("the greedy user is served", || Ok(knock(&socket, GREEDY_UID)));
        verdict.case("when the files answer, all is as before", again.map(|()| "served".into()));
    }
    Ok(())
}

/// Strangers, each with a descriptor made by `make` and another door.
fn every_door(
    socket: &Path,
    pulse: &Pulse,
    uids: &mut impl Iterator<Item = u32>,
    make: impl Fn() -> Result<OwnedFd>,
) -> Result<String> {
    let mut said = BTreeSet::new();
    for door in Door::ALL {
        let uid = uids.next().context("a user")?;
        let words = stranger(socket, uid, *door, make()?).with_context(|| format!("{door:?}"))?;
        pulse.goes_on().with_context(|| format!("after {door:?}, which said: {words}"))?;
        said.insert(words);
    }
    Ok(said.into_iter().collect::<Vec<_>>().join("; "))
}

/// Runs one to its end; what it saw.
fn stranger(socket: &Path, uid: u32, door: Door, fd: OwnedFd) -> Result<String> {
    let own = std::env::current_exe()?;
    let mut command = Command::new(own);
    command.args(["stranger", "--uid", &uid.to_string(), "--door", door.name()]).arg("--socket").arg(socket);
    let mut child = command.stdin(Stdio::from(fd)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // The command has a copy of the descriptor. Its close may be the last one, and wait: not here.
    std::thread::spawn(move || drop(command));
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > WATCHDOG {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output()?;
    let words = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(output.status.success(), "{}: {}{words}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(words)
}

/// One user loses receiver after receiver; then its programs are refused by words that say so.
fn greedy(socket: &Path, silent: &Silent) -> Result<String> {
    for _ in 0..LOST_MAX {
        stranger(socket, GREEDY_UID, Door::Meet, silent.open()?)?;
        // The next program finds out that the receiver of the one before waits.
        stranger(socket, GREEDY_UID, Door::PairSegment, silent.open()?)?;
    }
    match knock(socket, GREEDY_UID) {
        Ok(()) => Err(anyhow!("it is served")),
        Err(words) => {
            ensure!(words.contains("receivers of its user"), "{words}");
            Ok(words)
        }
    }
}

/// A program of a user that does nothing wrong.
fn knock(socket: &Path, uid: u32) -> std::result::Result<(), String> {
    let null = std::fs::File::open("/dev/null").map_err(|e| e.to_string())?;
    match stranger(socket, uid, Door::None, null.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?) {
        Ok(words) if words == "welcome" => Ok(()),
        Ok(words) => Err(words),
        Err(error) => Err(format!("{error:#}")),
    }
}

fn next_daemon(raas: Program<'_>, dir: &Path, hosts: &mut [Host; 2]) -> Result<String> {
    hosts[0].kill()?;
    let start = Instant::now();
    hosts[0] = Host::start(raas, dir, hosts[0].ip, CONFIGURATION)?;
    polite::fresh(hosts)?;
    Ok(format!("{} ms", start.elapsed().as_millis()))
}

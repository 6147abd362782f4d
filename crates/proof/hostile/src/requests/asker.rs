//! A process of one user whose programs and tools say what is drawn, one after the other, until it has said as much as
//! it was told to.
//!
//! Owns the roles, and what of a request ends a session: such a one is rare, because a session that ends at once says
//! little.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use control::{
    APP_VERSION, ChannelError, Reason, RegionKey, Reply, Request, Role, recv_message, send_frame, send_message,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use shm::{LAYOUT_VERSION, Segment, Sharing};

use super::drawn::{Known, draw};
use crate::raw::{PATIENCE, RawError, dial, receive};

const KEY: RegionKey = RegionKey::new([0x77; 16]);
/// Requests after which what was answered is read.
const BETWEEN_LOOKS: u64 = 8;
/// Requests of one session at most.
const OF_SESSION_MAX: u64 = 5_000;
/// One in so many requests is sent although it ends the session, and as many are no message any more.
const LAST_OF: u32 = 400;

/// Becomes the user, and says so many requests; returns what came of them.
pub fn run(socket: &Path, uid: u32, host: IpAddr, far: SocketAddr, seed: u64, count: u64) -> Result<String> {
    nix::unistd::setgid(uid.into())?;
    nix::unistd::setuid(uid.into())?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let names = ["of-all", "x", "compare"].map(|name| format!("{name}-{}", uid % 2));
    let known = Known::new(vec![host, far.ip()], vec![far.port(), 7_001], names.into(), KEY);
    let mut user = User { known, said: 0, sessions: 0, put_out: 0, refused: 0, answers: 0 };
    let start = Instant::now();
    let mut last = (0, start);
    while user.said < count {
        user.session(socket, count, &mut rng)?;
        if user.said > last.0 {
            last = (user.said, Instant::now());
        }
        ensure!(last.1.elapsed() < PATIENCE, "the daemon hears nothing any more after {} requests", user.said);
    }
    let User { said, sessions, put_out, refused, answers, .. } = user;
    Ok(format!("{said} requests, {answers} answers, {sessions} sessions, {put_out} put out, {refused} refused"))
}

struct User {
    known: Known,
    said: u64,
    sessions: u64,
    put_out: u64,
    refused: u64,
    answers: u64,
}

/// A program or tool at the control socket.
struct Asker {
    socket: OwnedFd,
    buffer: Vec<u8>,
    role: Role,
    /// A question is not answered yet.
    asks: bool,
    /// Kept as a program does: the daemon looks whether its wake sockets are open.
    _fds: Vec<OwnedFd>,
}

impl User {
    /// One session, from its Hello to its end.
    fn session(&mut self, socket: &Path, count: u64, rng: &mut SmallRng) -> Result<()> {
        let role = match rng.random_range(0..8) {
            0 => Role::Inspector,
            1 => Role::Returning,
            _ => Role::Application,
        };
        let mut asker = match Asker::enter(socket, role) {
            Ok(asker) => asker,
            Err(RawError::Refused(Reason::UserPrograms | Reason::LocalLimit) | RawError::Closed) => {
                self.refused += 1;
                std::thread::sleep(Duration::from_millis(1));
                return Ok(());
            }
            Err(other) => return Err(other.into()),
        };
        self.sessions += 1;
        let until = (self.said + rng.random_range(1..OF_SESSION_MAX)).min(count);
        // One of some reads nothing at all.
        let reads = rng.random_range(0..16) != 0;
        while self.said < until {
            if !self.say(&mut asker, reads, rng)? {
                self.put_out += 1;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Says one thing. False: the session is over.
    fn say(&mut self, asker: &mut Asker, reads: bool, rng: &mut SmallRng) -> Result<bool> {
        let Ok(mut request) = draw::<Request>(&self.known, rng) else { return Ok(true) };
        if let Request::TcpOpened { number, .. } = &mut request {
            // No two may have one number.
            *number = self.said;
        }
        if ends_session(&request, asker) && rng.random_range(0..LAST_OF) != 0 {
            return Ok(true);
        }
        // A message that would not fit is another one.
        let Ok(mut frame) = control::encode(&request) else { return Ok(true) };
        if rng.random_range(0..LAST_OF) == 0 {
            damage(&mut frame, rng);
        }
        let memory = if brings_memory(&request) && rng.random() { Some(memory(&request)?) } else { None };
        let fds: Vec<_> = memory.iter().map(AsFd::as_fd).collect();
        let start = Instant::now();
        loop {
            match send_frame(asker.socket.as_fd(), &frame, &fds) {
                Ok(()) => break,
                Err(ChannelError::WouldBlock) if start.elapsed() < PATIENCE => {
                    // Who does not read is not heard for ever.
                    if !self.hear(asker, rng)? {
                        return Ok(false);
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
                // Descriptors are refused by the kernel from those who may send none.
                Err(ChannelError::Io(error)) if error.raw_os_error() == Some(nix::libc::EPERM) => return Ok(true),
                Err(ChannelError::Closed | ChannelError::Io(_)) => return Ok(false),
                Err(other) => return Err(other.into()),
            }
        }
        asker.asks |= is_question(&request);
        self.said += 1;
        if reads && self.said.is_multiple_of(BETWEEN_LOOKS) { self.hear(asker, rng) } else { Ok(true) }
    }

    /// Takes what was answered. False: the session is over.
    fn hear(&mut self, asker: &mut Asker, rng: &mut SmallRng) -> Result<bool> {
        loop {
            let reply = match recv_message::<Reply>(asker.socket.as_fd(), &mut asker.buffer) {
                Ok((reply, _)) => reply,
                Err(ChannelError::WouldBlock) => return Ok(true),
                Err(ChannelError::Closed | ChannelError::Io(_)) => return Ok(false),
                Err(other) => return Err(other.into()),
            };
            self.answers += 1;
            match reply {
                Reply::Detached { .. } | Reply::Refused { .. } => return Ok(false),
                Reply::Inspected { .. } => asker.asks = false,
                Reply::RegionOpened { result: Ok(opened), .. } => self.known.hear(opened.open, rng),
                Reply::Connected { result: Ok(connection), .. } | Reply::Incoming { connection, .. } => {
                    self.known.hear(connection.id, rng);
                }
                Reply::Listening { result: Ok(at), .. } => {
                    self.known.ports.truncate(16);
                    self.known.ports.push(at.port());
                }
                Reply::Chunk { chunk, .. } => self.known.hear(chunk.into(), rng),
                Reply::PairSegmentWanted { pair, .. } => self.known.hear(pair, rng),
                _ => {}
            }
        }
    }
}

impl Asker {
    fn enter(path: &Path, role: Role) -> Result<Self, RawError> {
        let socket = dial(path)?;
        let (version, layout, name) = (APP_VERSION, LAYOUT_VERSION, "asks".into());
        send_message(socket.as_fd(), &Request::Hello { version, layout, role, name }, &[])?;
        let (mut buffer, mut fds) = (Vec::new(), Vec::new());
        // One that comes back is welcomed when it has said all.
        if role != Role::Returning {
            match receive(&socket, &mut buffer, Instant::now() + PATIENCE)? {
                (Reply::Welcome { .. }, came) => fds = came,
                (Reply::Refused { reason, .. }, _) => return Err(RawError::Refused(reason)),
                (other, _) => return Err(RawError::Unexpected(format!("{other:?}"))),
            }
        }
        Ok(Self { socket, buffer, role, asks: false, _fds: fds })
    }
}

fn is_question(request: &Request) -> bool {
    matches!(request, Request::Inspect { .. } | Request::Lookup { .. })
}

fn brings_memory(request: &Request) -> bool {
    matches!(request, Request::PairSegment { .. } | Request::Return { .. } | Request::ReturnChunk { .. })
}

/// Of the size that the request says, if that can be.
fn memory(request: &Request) -> Result<OwnedFd> {
    const BYTES_MAX: u64 = 1 << 30;
    let bytes = match request {
        Request::Return { session_bytes: bytes, .. } | Request::ReturnChunk { bytes, .. } => *bytes,
        _ => 0,
    };
    Ok(Segment::create("asks", bytes.clamp(4096, BYTES_MAX), Sharing::ReadWrite)?.into_parts().1)
}

/// Whether a program of this kind may not say it, or not now.
fn ends_session(request: &Request, asker: &Asker) -> bool {
    let is_of_return = matches!(
        request,
        Request::Return { .. }
            | Request::ReturnChunk { .. }
            | Request::ReturnConnections { .. }
            | Request::ReturnPairs { .. }
            | Request::ReturnEnd
    );
    let is_never = matches!(request, Request::Hello { .. } | Request::ResetLane { .. } | Request::PairSegment { .. });
    is_never
        || is_question(request) && asker.asks
        || match asker.role {
            Role::Application => is_of_return,
            Role::Returning => !is_of_return && !is_question(request),
            Role::Inspector => !is_question(request) && !matches!(request, Request::HandOver { .. }),
        }
}

/// One bit, one byte less, or some more.
fn damage(frame: &mut Vec<u8>, rng: &mut SmallRng) {
    match rng.random_range(0..3) {
        0 if !frame.is_empty() => {
            let at = rng.random_range(0..frame.len());
            frame[at] ^= 1 << rng.random_range(0..8);
        }
        1 => _ = frame.pop(),
        _ => frame.extend((0..rng.random_range(1..16)).map(|_| rng.random::<u8>())),
    }
}

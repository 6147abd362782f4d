//! A stranger with one descriptor, which is its standard input, and one door.
//!
//! Owns the doors: every place of the control protocol where a message can come.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use control::{
    APP_VERSION, ChannelError, ChunkKind, Cursor, InspectQuery, Reply, Request, Role, TcpEnd, encode, recv_message,
    send_frame, send_message,
};

use crate::raw::{PATIENCE, dial};

/// Where it sends the descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Door {
    /// Nowhere: it attaches, and goes.
    None,
    /// With the first message.
    Hello,
    /// With a question of a tool.
    Question,
    /// With a request that brings nothing along.
    Listen,
    /// As memory that nobody asked for.
    PairSegment,
    /// As a connection.
    Meet,
    /// More than any message has.
    Many,
    /// As a session of a daemon before.
    Return,
    /// As rings of such a session.
    ReturnChunk,
    /// With bytes that are no message.
    Garbage,
    /// Behind bytes that end the session, so that nobody reads it.
    Unread,
    /// With the first message of a program that goes before anybody reads it.
    Gone,
}

impl Door {
    /// All that are one.
    pub const ALL: &[Self] = &[
        Self::Hello,
        Self::Question,
        Self::Listen,
        Self::PairSegment,
        Self::Meet,
        Self::Many,
        Self::Return,
        Self::ReturnChunk,
        Self::Garbage,
        Self::Unread,
        Self::Gone,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hello => "hello",
            Self::Question => "question",
            Self::Listen => "listen",
            Self::PairSegment => "pair-segment",
            Self::Meet => "meet",
            Self::Many => "many",
            Self::Return => "return",
            Self::ReturnChunk => "return-chunk",
            Self::Garbage => "garbage",
            Self::Unread => "unread",
            Self::Gone => "gone",
        }
    }
}

/// Becomes the user, sends the descriptor through the door and closes its own; says what it was told.
pub fn run(socket: &Path, uid: u32, door: Door) -> Result<String> {
    nix::unistd::setgid(uid.into())?;
    nix::unistd::setuid(uid.into())?;
    let fd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let socket = dial(socket)?;
    let sent = send(&socket, fd.as_fd(), door);
    let words = match sent {
        Ok(()) if door == Door::Gone => "gone".to_owned(),
        Ok(()) => last_words(&socket, door == Door::None)?,
        Err(error) => match error.downcast_ref::<ChannelError>() {
            Some(ChannelError::Io(refusal)) if refusal.raw_os_error() == Some(nix::libc::EPERM) => {
                "the kernel refuses it".to_owned()
            }
            // The daemon has had enough before all was sent.
            Some(ChannelError::Closed) => last_words(&socket, false)?,
            _ => return Err(error),
        },
    };
    Ok(words)
}

fn hello(role: Role) -> Request {
    Request::Hello { version: APP_VERSION, layout: shm::LAYOUT_VERSION, role, name: "stranger".into() }
}

fn send(socket: &OwnedFd, fd: BorrowedFd<'_>, door: Door) -> Result<()> {
    let enter = |role| {
        send_message(socket.as_fd(), &hello(role), &[])?;
        // One that brings a session along is welcomed when it has said all of it.
        if role == Role::Returning { Ok(()) } else { welcomed(socket) }
    };
    let say = |request: &Request, fds: &[BorrowedFd<'_>]| -> Result<()> {
        // The kernel has refused it to a program that is not known yet; a moment later it is.
        let start = Instant::now();
        loop {
            match send_message(socket.as_fd(), request, fds) {
                Err(ChannelError::Io(e)) if returns(door) && e.raw_os_error() == Some(nix::libc::EPERM) => {
                    if start.elapsed() > PATIENCE {
                        bail!("it may send no descriptor");
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => return Ok(other?),
            }
        }
    };
    match door {
        Door::None => Ok(send_message(socket.as_fd(), &hello(Role::Application), &[])?),
        Door::Hello | Door::Gone => Ok(send_message(socket.as_fd(), &hello(Role::Application), &[fd])?),
        Door::Question => {
            enter(Role::Inspector)?;
            say(&Request::Inspect { request: 1, query: InspectQuery::Stat, from: Cursor::default() }, &[fd])
        }
        Door::Listen => {
            enter(Role::Application)?;
            let kind = control::Kind::Stream;
            say(&Request::Listen { request: 1, port: 0, backlog: 1, ring_bytes: 0, kind }, &[fd])
        }
        Door::PairSegment => {
            enter(Role::Application)?;
            say(&Request::PairSegment { pair: 7, index: 0, slots: 64, ring_bytes: 4096 }, &[fd])
        }
        Door::Meet | Door::Many => {
            enter(Role::Application)?;
            let fds = if door == Door::Many { vec![fd; control::FDS_MAX] } else { vec![fd] };
            say(&Request::Meet { request: 1, end: TcpEnd::Connected }, &fds)?;
            // A meeting without an answer is waited for by what follows.
            say(&Request::Hello { version: 0, layout: 0, role: Role::Application, name: String::new() }, &[])
        }
        Door::Return => {
            enter(Role::Returning)?;
            let (slots, engines) = (4, 1);
            say(&Request::Return { slots, engines, session_bytes: 4096, next_chunk: 0, used: Vec::new() }, &[fd])
        }
        Door::ReturnChunk => {
            enter(Role::Returning)?;
            say(&Request::ReturnChunk { chunk: 0, kind: ChunkKind::Tx, bytes: 4096 }, &[fd])
        }
        Door::Garbage => {
            enter(Role::Application)?;
            Ok(send_frame(socket.as_fd(), &[0xff; 100], &[fd])?)
        }
        Door::Unread => {
            enter(Role::Application)?;
            send_frame(socket.as_fd(), &[0xff; 100], &[])?;
            Ok(send_frame(socket.as_fd(), &encode(&Request::Unlisten { port: 1 })?, &[fd])?)
        }
    }
}

fn returns(door: Door) -> bool {
    matches!(door, Door::Return | Door::ReturnChunk)
}

fn welcomed(socket: &OwnedFd) -> Result<()> {
    match next(socket)? {
        Reply::Welcome { .. } => Ok(()),
        Reply::Refused { detail, .. } => bail!("{detail}"),
        other => bail!("{other:?}"),
    }
}

/// What it is told when it is put out; with `welcome` already that it is let in.
fn last_words(socket: &OwnedFd, welcome: bool) -> Result<String> {
    loop {
        match next(socket) {
            Ok(Reply::Refused { detail, .. } | Reply::Detached { detail, .. }) => return Ok(detail),
            Ok(Reply::Welcome { .. }) if welcome => return Ok("welcome".into()),
            Ok(_) => {}
            Err(error) if matches!(error.downcast_ref(), Some(ChannelError::Closed)) => return Ok("closed".into()),
            Err(error) => return Err(error).context("it is not put out"),
        }
    }
}

fn next(socket: &OwnedFd) -> Result<Reply> {
    let (start, mut buffer) = (Instant::now(), Vec::new());
    loop {
        match recv_message::<Reply>(socket.as_fd(), &mut buffer) {
            Ok((reply, _)) => return Ok(reply),
            Err(ChannelError::WouldBlock) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

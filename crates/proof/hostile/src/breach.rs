//! Breaches that must end the session of the program that commits them: one function each, by name.
//!
//! Owns the list. Whether the daemon ended the session and said so in its log is judged by the siege.

mod datagrams;
mod operations;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use control::{Cursor, InspectQuery, Reply, Request, encode, send_frame, send_message};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use shm::{Pair, slot_state};

use crate::raw::{RawApp, RawConnection, RawError, dial, hello};
use datagrams::{
    a_datagram_head_beyond_what_arrived, a_datagram_longer_than_the_ring, a_datagram_longer_than_what_is_published,
    datagrams_beyond_the_ring, half_of_a_datagram_header, reserved_bytes_of_a_datagram,
};
use operations::{
    a_completion_head_beyond_what_arrived, a_submission_longer_than_any, a_submission_longer_than_what_is_published,
    an_operation_that_does_not_exist, half_of_a_submission, reserved_bytes_of_a_submission, segments_of_an_atomic,
    submissions_beyond_the_ring,
};

/// Where a breach is committed.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Control socket of the daemon that is attacked.
    pub socket: &'a Path,
    /// A listener at another host.
    pub far: SocketAddr,
    /// A listener at this host, of another process.
    pub near: SocketAddr,
}

/// One breach: a name, and the action, which returns what the daemon said at the end.
#[derive(Debug, Clone, Copy)]
pub struct Breach {
    /// Name, also that of the application that commits it.
    pub name: &'static str,
    /// Does it.
    pub commit: fn(&str, Target<'_>) -> Result<String, RawError>,
}

macro_rules! breaches {
    ($($name:ident,)*) => { &[$(Breach { name: stringify!($name), commit: $name },)*] };
}

/// All of them.
pub const ALL: &[Breach] = breaches![
    tail_goes_back,
    tail_beyond_the_ring,
    tail_at_the_far_end_of_the_numbers,
    head_goes_back,
    head_beyond_what_arrived,
    garbage_as_a_message,
    a_message_cut_short,
    bytes_behind_a_message,
    a_message_longer_than_a_frame,
    more_descriptors_than_a_message_has,
    hello_twice,
    too_many_questions,
    never_reads_the_control_socket,
    a_pair_segment_nobody_asked_for,
    a_pair_segment_without_its_descriptor,
    a_pair_segment_with_two_descriptors,
    a_pair_segment_of_another_shape,
    a_pair_segment_without_seals,
    a_pair_segment_that_is_too_short,
    a_pair_segment_that_is_a_pipe,
    a_pair_segment_that_is_a_file,
    a_pair_segment_with_a_false_header,
    datagrams_beyond_the_ring,
    half_of_a_datagram_header,
    a_datagram_longer_than_what_is_published,
    a_datagram_longer_than_the_ring,
    reserved_bytes_of_a_datagram,
    a_datagram_head_beyond_what_arrived,
    submissions_beyond_the_ring,
    half_of_a_submission,
    a_submission_longer_than_what_is_published,
    a_submission_longer_than_any,
    an_operation_that_does_not_exist,
    segments_of_an_atomic,
    reserved_bytes_of_a_submission,
    a_completion_head_beyond_what_arrived,
];

fn connected(name: &str, target: Target<'_>) -> Result<(RawApp, RawConnection), RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    let connection = app.connect(target.far, 65_536)?;
    Ok((app, connection))
}

/// Publishes a tail and rings; waits for the verdict.
fn publish_tail(name: &str, target: Target<'_>, tails: &[u64]) -> Result<String, RawError> {
    let (mut app, connection) = connected(name, target)?;
    for &tail in tails {
        connection.words.tx_tail.store(tail, Ordering::Release);
        app.ring(connection.slot);
        // Only a tail that the engine has seen can be gone back from: its consumption shows that.
        if tail != tails[tails.len() - 1] {
            let is_over = || connection.words.state.load(Ordering::Acquire) != slot_state::ESTABLISHED;
            wait_until(|| connection.words.tx_head.load(Ordering::Acquire) == tail || is_over())?;
        }
    }
    app.wait_for_end()
}

fn wait_until(mut holds: impl FnMut() -> bool) -> Result<(), RawError> {
    let start = std::time::Instant::now();
    while !holds() {
        if start.elapsed() > crate::raw::PATIENCE {
            return Err(RawError::Silent);
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    Ok(())
}

fn tail_goes_back(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish_tail(name, target, &[1000, 999])
}

fn tail_beyond_the_ring(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish_tail(name, target, &[65_537])
}

fn tail_at_the_far_end_of_the_numbers(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish_tail(name, target, &[u64::MAX])
}

fn publish_head(name: &str, target: Target<'_>, head: u64) -> Result<String, RawError> {
    let (mut app, connection) = connected(name, target)?;
    connection.words.rx_head.store(head, Ordering::Release);
    app.ring(connection.slot);
    app.wait_for_end()
}

fn head_goes_back(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish_head(name, target, 0u64.wrapping_sub(1))
}

fn head_beyond_what_arrived(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish_head(name, target, 1)
}

fn say(name: &str, target: Target<'_>, frame: &[u8]) -> Result<String, RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    send_frame(app.socket(), frame, &[])?;
    app.wait_for_end()
}

fn garbage_as_a_message(name: &str, target: Target<'_>) -> Result<String, RawError> {
    say(name, target, &[0xff; 200])
}

/// A message that every daemon takes.
fn listen() -> Vec<u8> {
    encode(&Request::Listen { request: 1 << 40, port: 0, backlog: 1, ring_bytes: 0, kind: control::Kind::Stream })
        .unwrap_or_default()
}

fn a_message_cut_short(name: &str, target: Target<'_>) -> Result<String, RawError> {
    say(name, target, &listen()[..3])
}

fn bytes_behind_a_message(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let mut frame = listen();
    frame.push(0);
    say(name, target, &frame)
}

fn a_message_longer_than_a_frame(name: &str, target: Target<'_>) -> Result<String, RawError> {
    say(name, target, &vec![0; control::FRAME_BYTES_MAX + 1])
}

fn more_descriptors_than_a_message_has(name: &str, target: Target<'_>) -> Result<String, RawError> {
    const MANY: usize = 250;
    let mut app = RawApp::attach(target.socket, name)?;
    let null = std::fs::File::open("/dev/null")?;
    let fds = vec![null.as_fd(); MANY];
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(RawError::Unexpected("no room for the descriptors".into()));
    }
    let frame = listen();
    rustix::net::sendmsg(app.socket(), &[std::io::IoSlice::new(&frame)], &mut ancillary, SendFlags::NOSIGNAL)?;
    app.wait_for_end()
}

fn hello_twice(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    app.send(&hello(name), &[])?;
    app.wait_for_end()
}

fn too_many_questions(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    for request in 0..1000 {
        match app.send(&Request::Inspect { request, query: InspectQuery::Stat, from: Cursor::default() }, &[]) {
            Ok(()) => {}
            Err(e) if e.is_end() => break,
            Err(RawError::Channel(control::ChannelError::WouldBlock)) => break,
            Err(e) => return Err(e),
        }
    }
    app.wait_for_end()
}

/// Asks and asks, and reads nothing until the daemon has given up.
fn never_reads_the_control_socket(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    let start = std::time::Instant::now();
    let mut request = 1u64 << 32;
    while start.elapsed() < crate::raw::PATIENCE {
        request += 1;
        // Port 1 is taken by the first of these or by none: each is answered.
        match app
            .send(&Request::Listen { request, port: 1, backlog: 1, ring_bytes: 0, kind: control::Kind::Stream }, &[])
        {
            Ok(()) => {}
            // A program whose queue is full cannot get any more messages.
            Err(e) if e.is_end() => return app.wait_for_end().map(|words| words + "closed"),
            Err(RawError::Channel(control::ChannelError::WouldBlock)) => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(e) => return Err(e),
        }
    }
    Err(RawError::Silent)
}

fn a_pair_segment_nobody_asked_for(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    let memfd = memfd(1 << 20, SealFlags::empty())?;
    app.send(&Request::PairSegment { pair: u64::MAX, index: 0, slots: 64, ring_bytes: 4096 }, &[memfd.as_fd()])?;
    app.wait_for_end()
}

/// Connects to a process of the same host, and answers the demand for a segment by what `answer` makes of it.
fn answer_pair(
    name: &str,
    target: Target<'_>,
    answer: impl FnOnce(&RawApp, u64, u32, u32, u32) -> Result<(), RawError>,
) -> Result<String, RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    app.ask(target.near, 4096)?;
    let wanted = app.wait_for(|reply| match reply {
        Reply::PairSegmentWanted { pair, index, slots, ring_bytes } => Some(Ok((*pair, *index, *slots, *ring_bytes))),
        Reply::Connected { result: Err(reason), .. } => Some(Err(RawError::No(*reason))),
        _ => None,
    })?;
    let (pair, index, slots, ring_bytes) = wanted?;
    answer(&app, pair, index, slots, ring_bytes)?;
    app.wait_for_end()
}

fn a_pair_segment_without_its_descriptor(name: &str, target: Target<'_>) -> Result<String, RawError> {
    answer_pair(name, target, |app, pair, index, slots, ring_bytes| {
        app.send(&Request::PairSegment { pair, index, slots, ring_bytes }, &[])
    })
}

fn a_pair_segment_with_two_descriptors(name: &str, target: Target<'_>) -> Result<String, RawError> {
    answer_pair(name, target, |app, pair, index, slots, ring_bytes| {
        let fd = sealed(Pair::bytes(slots, ring_bytes))?;
        app.send(&Request::PairSegment { pair, index, slots, ring_bytes }, &[fd.as_fd(), fd.as_fd()])
    })
}

fn a_pair_segment_of_another_shape(name: &str, target: Target<'_>) -> Result<String, RawError> {
    answer_pair(name, target, |app, pair, index, slots, ring_bytes| {
        let fd = sealed(Pair::bytes(slots * 2, ring_bytes))?;
        app.send(&Request::PairSegment { pair, index, slots: slots * 2, ring_bytes }, &[fd.as_fd()])
    })
}

fn send_segment(
    name: &str,
    target: Target<'_>,
    make: fn(u64) -> Result<OwnedFd, RawError>,
) -> Result<String, RawError> {
    answer_pair(name, target, |app, pair, index, slots, ring_bytes| {
        let fd = make(Pair::bytes(slots, ring_bytes))?;
        app.send(&Request::PairSegment { pair, index, slots, ring_bytes }, &[fd.as_fd()])
    })
}

fn a_pair_segment_without_seals(name: &str, target: Target<'_>) -> Result<String, RawError> {
    send_segment(name, target, |bytes| memfd(bytes, SealFlags::empty()))
}

fn a_pair_segment_that_is_too_short(name: &str, target: Target<'_>) -> Result<String, RawError> {
    send_segment(name, target, |bytes| sealed(bytes / 2))
}

fn a_pair_segment_that_is_a_pipe(name: &str, target: Target<'_>) -> Result<String, RawError> {
    send_segment(name, target, |_| Ok(rustix::pipe::pipe()?.0))
}

fn a_pair_segment_that_is_a_file(name: &str, target: Target<'_>) -> Result<String, RawError> {
    send_segment(name, target, |bytes| {
        let file = tempfile::tempfile()?;
        file.set_len(bytes)?;
        Ok(file.into())
    })
}

/// All is right except the bytes: a segment of zeroes.
fn a_pair_segment_with_a_false_header(name: &str, target: Target<'_>) -> Result<String, RawError> {
    send_segment(name, target, sealed)
}

/// A memfd of some size with some seals.
pub fn memfd(bytes: u64, seals: SealFlags) -> Result<OwnedFd, RawError> {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes.next_multiple_of(4096))?;
    if !seals.is_empty() {
        rustix::fs::fcntl_add_seals(&fd, seals)?;
    }
    Ok(fd)
}

/// A memfd with every seal that a pair segment needs.
fn sealed(bytes: u64) -> Result<OwnedFd, RawError> {
    memfd(bytes, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE)
}

/// First messages that are no Hello: such a program is refused, not detached. Says what the daemon answered.
pub fn refused_at_the_door(target: Target<'_>) -> Result<Vec<(String, String)>, RawError> {
    let frames: Vec<(&str, Vec<u8>)> = vec![
        ("a request before Hello", listen()),
        ("garbage", vec![0xee; 64]),
        ("a frame of 64 KiB", vec![0; control::FRAME_BYTES_MAX]),
        ("a longer frame", vec![0; control::FRAME_BYTES_MAX + 1]),
    ];
    let mut answers = Vec::new();
    for (what, frame) in frames {
        let socket = dial(target.socket)?;
        send_frame(socket.as_fd(), &frame, &[])?;
        answers.push((what.to_owned(), door(socket)));
    }
    let socket = dial(target.socket)?;
    let mut old = hello("from the past");
    if let Request::Hello { version, .. } = &mut old {
        *version = 0;
    }
    send_message(socket.as_fd(), &old, &[])?;
    answers.push(("another version".into(), door(socket)));
    Ok(answers)
}

fn door(socket: OwnedFd) -> String {
    match RawApp::welcomed(socket) {
        Ok(_) => "welcome".into(),
        Err(RawError::Refused(reason)) => reason.key().into(),
        Err(other) => other.to_string(),
    }
}

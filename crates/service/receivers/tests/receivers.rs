//! Receivers and what strangers send them: real processes.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use receivers::{Kind, Receiver, Spawner, Taken, Verdict};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing happens, where nothing is to happen.
const QUIET: Duration = Duration::from_millis(200);

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// What the receiver says within a time.
fn heard(receiver: &Receiver, within: Duration) -> Option<io::Result<Taken>> {
    let start = Instant::now();
    loop {
        match receiver.taken() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = within.checked_sub(start.elapsed())?;
                let mut fds = [PollFd::new(receiver, PollFlags::IN)];
                poll(&mut fds, Some(&left.try_into().unwrap())).unwrap();
            }
            other => return Some(other),
        }
    }
}

/// A program and its receiver.
struct World {
    spawner: Spawner,
    receiver: Receiver,
    program: OwnedFd,
    daemon: Option<OwnedFd>,
}

impl World {
    fn new() -> Self {
        let spawner = Spawner::start().unwrap();
        let receiver = spawner.receiver(7).unwrap();
        let (program, daemon) = sockets();
        receiver.hold(3, daemon.as_fd()).unwrap();
        Self { spawner, receiver, program, daemon: Some(daemon) }
    }

    fn sends(&self, message: &str, fds: &[impl AsFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        control::send_frame(self.program.as_fd(), message.as_bytes(), &fds).unwrap();
    }

    fn take(&self, kind: Kind) -> Taken {
        self.receiver.take(3, kind).unwrap();
        let taken = heard(&self.receiver, PATIENCE).expect("an answer").unwrap();
        assert_eq!(taken.place, 3);
        taken
    }
}

fn memory() -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

/// A connection with more unsent bytes than the kernel takes, whose close waits for as long as its peer does not read.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[1; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(1000))).unwrap();
    (ours.into(), peer)
}

#[test]
fn memory_passes_and_everything_else_is_named() {
    let world = World::new();
    world.sends("memory", &[memory()]);
    let verdict = world.take(Kind::Memory).verdict;
    let Verdict::Memory(fd) = verdict else { panic!("{verdict:?}") };
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 4096);

    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    for (what, fd) in [("file", file.as_file().as_fd()), ("pipe", pipe.as_fd()), ("socket", socket.as_fd())] {
        world.sends(what, &[fd]);
        let verdict = world.take(Kind::Memory).verdict;
        assert!(matches!(verdict, Verdict::Other), "{what}: {verdict:?}");
        world.sends(what, &[fd]);
        assert!(matches!(world.take(Kind::Socket).verdict, Verdict::Other), "{what} is no connection");
    }
    for count in [2, 3, 18] {
        let fd = memory();
        world.sends("many", &vec![fd.as_fd(); count]);
        let verdict = world.take(Kind::Memory).verdict;
        assert!(matches!(verdict, Verdict::TooMany), "{count}: {verdict:?}");
    }
    assert!(matches!(world.take(Kind::Memory).verdict, Verdict::Nothing), "there is no message");
}

#[test]
fn a_connection_has_its_two_ends() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    world.sends("meet", &[&ours]);
    let Verdict::Socket(ends) = world.take(Kind::Socket).verdict else { panic!("a connected socket") };
    assert_eq!((ends.local, ends.peer), (ours.local_addr().unwrap(), ours.peer_addr().unwrap()));
    assert_eq!(ends.namespace, receivers::network_namespace(&ours).ok());
}

/// The door of each test below is another one: the descriptor is received, is cut off by the kernel, or lies unread.
#[test]
fn a_descriptor_whose_close_waits_costs_the_receiver_alone() {
    for many in [false, true] {
        let world = World::new();
        let (socket, peer) = lingering();
        let fds = if many { vec![socket.as_fd(); 4] } else { vec![socket.as_fd()] };
        world.sends("waits", &fds);
        drop(socket);
        // The answer comes before the close, unless the kernel closes what it cut off.
        world.receiver.take(3, Kind::Memory).unwrap();
        if !many {
            let taken = heard(&world.receiver, PATIENCE).expect("an answer").unwrap();
            assert!(matches!(taken.verdict, Verdict::Other), "{taken:?}");
        }
        world.receiver.take(3, Kind::Memory).unwrap();
        let first = heard(&world.receiver, QUIET);
        assert!(first.is_none() || many, "it waits: {first:?}");
        world.spawner.kill(7).unwrap();
        while heard(&world.receiver, PATIENCE).expect("it ends").is_ok() {}
        let again = world.spawner.receiver(7).unwrap();
        again.hold(0, world.program.as_fd()).unwrap();
        drop(peer);
    }
}

#[test]
fn what_lies_unread_is_closed_by_the_receiver() {
    let mut world = World::new();
    let (socket, peer) = lingering();
    world.sends("unread", &[&socket]);
    drop(socket);
    // The receiver has said that it holds the socket when it has answered anything.
    let (other, other_daemon) = sockets();
    world.receiver.hold(4, other_daemon.as_fd()).unwrap();
    world.receiver.take(4, Kind::Memory).unwrap();
    heard(&world.receiver, PATIENCE).unwrap().unwrap();
    // Would wait for the peer here if it were the last one.
    drop(world.daemon.take());
    world.receiver.release(3).unwrap();
    assert!(heard(&world.receiver, QUIET).is_none());
    // With it all ends: its program sees that.
    drop((other, other_daemon, peer, world));
}

#[test]
fn receivers_end_with_their_daemon() {
    let World { spawner, receiver, program, daemon } = World::new();
    drop(daemon);
    drop((spawner, receiver));
    let mut fds = [PollFd::new(&program, PollFlags::HUP)];
    let limit = PATIENCE.try_into().unwrap();
    assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "the receiver's end of the program's socket is closed");
}

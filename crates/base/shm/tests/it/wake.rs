//! Wake sockets: wakes, slot numbers, hang-up, and hostile datagrams.
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use shm::{Drained, MAX_DRAIN, WakeSocket};

fn drain(socket: &WakeSocket) -> (Drained, Vec<u32>) {
    let mut slots = Vec::new();
    let drained = socket.drain(&mut slots).unwrap();
    (drained, slots)
}

fn send(socket: &WakeSocket, datagram: &[u8]) {
    rustix::net::send(socket.fd(), datagram, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).unwrap();
}

#[test]
fn wakes_and_slots_arrive() {
    let (a, b) = WakeSocket::pair().unwrap();
    assert_eq!(drain(&b), (Drained::Empty, vec![]));
    a.wake().unwrap();
    assert_eq!(drain(&b), (Drained::Woken, vec![]));
    for slot in [0, 7, u32::MAX] {
        assert!(a.wake_slot(slot).unwrap());
    }
    a.wake().unwrap();
    assert_eq!(drain(&b), (Drained::Woken, vec![0, 7, u32::MAX]));
    assert_eq!(drain(&b), (Drained::Empty, vec![]));
    b.wake_slot(3).unwrap();
    assert_eq!(drain(&a), (Drained::Woken, vec![3]));
    assert_eq!(drain(&b), (Drained::Empty, vec![]));
}

#[test]
fn a_full_socket_never_blocks() {
    let (a, b) = WakeSocket::pair().unwrap();
    let mut sent = 0u32;
    while a.wake_slot(sent).unwrap() {
        sent += 1;
        assert!(sent < 10_000_000, "a socket buffer has an end");
    }
    println!("{sent} slot numbers fit");
    assert!(sent >= 64, "only {sent} slot numbers fit");
    a.wake().unwrap();
    assert!(!a.wake_slot(0).unwrap());
    let mut slots = Vec::new();
    while b.drain(&mut slots).unwrap() == Drained::Woken {}
    assert_eq!(slots, (0..sent).collect::<Vec<_>>());
    assert!(a.wake_slot(1).unwrap());
}

#[test]
fn one_drain_is_bounded() {
    let (a, b) = WakeSocket::pair().unwrap();
    let total = MAX_DRAIN as u32 + 10;
    let sent = (0..total).take_while(|&slot| a.wake_slot(slot).unwrap()).count();
    let (drained, slots) = drain(&b);
    assert_eq!((drained, slots.len()), (Drained::Woken, sent.min(MAX_DRAIN)));
}

#[test]
fn a_closed_end_is_a_hangup_after_what_it_sent() {
    let (a, b) = WakeSocket::pair().unwrap();
    a.wake_slot(5).unwrap();
    drop(a);
    assert_eq!(drain(&b), (Drained::Hangup, vec![5]));
    assert_eq!(drain(&b), (Drained::Hangup, vec![]));
    assert!(b.wake().is_err());
    assert!(b.wake_slot(1).is_err());
    // Also when the closed end had not read everything.
    let (a, b) = WakeSocket::pair().unwrap();
    b.wake().unwrap();
    drop(a);
    assert_eq!(drain(&b).0, Drained::Hangup);
    // And when it only says that it will send nothing more.
    let (a, b) = WakeSocket::pair().unwrap();
    rustix::net::shutdown(a.fd(), Shutdown::Write).unwrap();
    assert_eq!(drain(&b).0, Drained::Hangup);
}

#[test]
fn malformed_datagrams_are_ignored() {
    let (a, b) = WakeSocket::pair().unwrap();
    for datagram in [&[][..], &[1; 2], &[1; 3], &[1; 5], &[1; 4000]] {
        send(&a, datagram);
    }
    assert_eq!(drain(&b), (Drained::Empty, vec![]), "no wake, and an empty datagram is no hangup");
    send(&a, &[]);
    send(&a, &9u32.to_le_bytes());
    send(&a, &[0; 64]);
    assert_eq!(drain(&b), (Drained::Woken, vec![9]));
}

#[test]
fn descriptors_in_a_datagram_are_dropped() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
    let (a, b) = WakeSocket::pair().unwrap();
    let (passed, witness) = UnixStream::pair().unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [std::os::fd::AsFd::as_fd(&passed)];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let wake = [std::io::IoSlice::new(&[0])];
    rustix::net::sendmsg(a.fd(), &wake, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    drop(passed);
    assert_eq!(drain(&b), (Drained::Woken, vec![]));
    let mut byte = [0];
    assert_eq!(std::io::Read::read(&mut &witness, &mut byte).unwrap(), 0, "no copy of the descriptor stays open");
}

#[test]
fn from_fd_takes_only_connected_unix_seqpacket_sockets() {
    let (a, b) = WakeSocket::pair().unwrap();
    let fd = b.into_fd();
    rustix::io::fcntl_setfd(&fd, FdFlags::empty()).unwrap();
    let b = WakeSocket::from_fd(fd).unwrap();
    assert!(rustix::io::fcntl_getfd(b.fd()).unwrap().contains(FdFlags::CLOEXEC));
    a.wake().unwrap();
    assert_eq!(drain(&b).0, Drained::Woken);

    let refused: [(OwnedFd, &str); 6] = [
        (UnixStream::pair().unwrap().0.into(), "SEQPACKET"),
        (UnixDatagram::pair().unwrap().0.into(), "SEQPACKET"),
        (std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into(), "AF_UNIX"),
        (std::fs::File::open("/dev/null").unwrap().into(), "not a socket"),
        (rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap(), "not connected"),
        (listener(), "listens"),
    ];
    for (fd, why) in refused {
        let error = WakeSocket::from_fd(fd).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(why), "{error}");
    }
    // One whose other end is gone already is a wake socket that says so.
    let (a, b) = WakeSocket::pair().unwrap();
    drop(a);
    assert_eq!(drain(&WakeSocket::from_fd(b.into_fd()).unwrap()).0, Drained::Hangup);
}

fn listener() -> OwnedFd {
    use rustix::net::SocketAddrUnix;
    let name = format!("shm-wake-test-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&fd, &address).unwrap();
    rustix::net::listen(&fd, 1).unwrap();
    fd
}

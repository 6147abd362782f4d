//! Two processes: an engine (the test) and an application (the same program, started again) over one session.
//!
//! The application sends a stream and the engine echoes it, both going to sleep whenever they find nothing. A wake that
//! is lost shows as a wait that runs into its bound. Then the application dies, and the engine sees the hang-up.
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec};
use shm::{
    Backoff, Drained, EnginePage, Pair, PairWaiter, RingMemory, RingReader, RingWriter, Segment, Session, Sharing,
    WakeSocket, app_flag, end_sleep, pair_must_wake, prepare_sleep, slot_state, waiting,
};

const CHILD: &str = "SHM_TEST_CHILD";
const SLOTS: u32 = 64;
const SLOT: u32 = 37;
const RING_BYTES: u64 = 4096;
const STREAM_BYTES: u64 = 3 << 20;
/// Far longer than any wait takes, even on a loaded machine.
const WAIT_BOUND_S: i64 = 60;

fn pattern(at: u64) -> u8 {
    (at ^ (at >> 7) ^ (at >> 15)) as u8
}

fn pieces(at: u64) -> usize {
    (1 + at.wrapping_mul(2_654_435_761) % 3000) as usize
}

/// Blocks until the socket has something to say.
fn block(fd: BorrowedFd<'_>, who: &str) {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let bound = Timespec { tv_sec: WAIT_BOUND_S, tv_nsec: 0 };
    let ready = rustix::event::poll(&mut polled, Some(&bound)).unwrap();
    assert!(ready > 0, "{who} was not woken for {WAIT_BOUND_S} s");
}

/// What both processes map.
struct Shared {
    session: Session,
    page: EnginePage,
    tx: RingMemory,
    rx: RingMemory,
    socket: WakeSocket,
}

fn ring(segment: Segment) -> RingMemory {
    RingMemory { region: segment.into_region(), offset: 0, bytes: RING_BYTES }
}

/// Starts this test again as another process that inherits `fds`; its variable names them.
fn spawn_child(test: &str, fds: &[BorrowedFd<'_>]) -> Child {
    // A duplicate made by dup() is not close-on-exec, so the child inherits it under the same number.
    let inherited: Vec<OwnedFd> = fds.iter().map(|fd| rustix::io::dup(fd).unwrap()).collect();
    let numbers: Vec<String> = inherited.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("cross_process::{test}"), "--exact", "--nocapture"]).env(CHILD, numbers.join(","));
    command.spawn().unwrap()
}

/// The descriptors, in the child.
fn inherited_fds() -> Option<Vec<OwnedFd>> {
    let numbers = std::env::var(CHILD).ok()?;
    // SAFETY: the parent left exactly these descriptors open for this process, and nobody else in it knows them.
    Some(numbers.split(',').map(|n| unsafe { OwnedFd::from_raw_fd(n.parse().unwrap()) }).collect())
}

fn application(fds: Vec<OwnedFd>) {
    let [session, page, tx, rx, socket]: [OwnedFd; 5] = fds.try_into().unwrap();
    let session = Segment::accept(session, Session::bytes(SLOTS), Sharing::ReadWrite).unwrap();
    let page = Segment::accept(page, EnginePage::BYTES, Sharing::PeerReadOnly).unwrap();
    let shared = Shared {
        session: Session::open(session.into_region(), SLOTS).unwrap(),
        page: EnginePage::open(page.into_region()).unwrap(),
        tx: ring(Segment::accept(tx, RING_BYTES, Sharing::ReadWrite).unwrap()),
        rx: ring(Segment::accept(rx, RING_BYTES, Sharing::ReadWrite).unwrap()),
        socket: WakeSocket::from_fd(socket).unwrap(),
    };
    assert_eq!(shared.page.epoch(), 4711);
    let slot = shared.session.slot(SLOT);
    assert_eq!(slot.state.load(Ordering::Acquire), slot_state::ESTABLISHED);
    slot.app_owner_pid.store(std::process::id(), Ordering::Relaxed);
    let mut writer = RingWriter::new(shared.tx, slot.tx_tail, slot.tx_head, 0).unwrap();
    let mut reader = RingReader::new(shared.rx, slot.rx_tail, slot.rx_head, 0).unwrap();
    let (a2e, mut e2a) = (shared.session.a2e(0), shared.session.e2a());
    let (asleep, engine_asleep) = (shared.session.app_sleep(), shared.page.engine_sleep(0));
    let mut backoff = Backoff::new(3);
    let (mut sent, mut received) = (0, 0);
    let (mut buffer, mut slots) = ([0; 1000], Vec::new());
    while received < STREAM_BYTES {
        let mut moved = 0;
        if sent < STREAM_BYTES {
            let len = (pieces(sent) as u64).min(STREAM_BYTES - sent);
            let bytes: Vec<u8> = (sent..sent + len).map(pattern).collect();
            moved += writer.write(&bytes).unwrap();
            sent += moved as u64;
            if sent == STREAM_BYTES {
                slot.app_flags.fetch_or(app_flag::FIN, Ordering::Release);
            }
        }
        let count = reader.read(&mut buffer).unwrap();
        for &byte in &buffer[..count] {
            assert_eq!(byte, pattern(received), "echoed byte {received}");
            received += 1;
        }
        if moved + count > 0 {
            a2e.ring(SLOT);
            if a2e.must_wake(&engine_asleep) {
                shared.socket.wake().unwrap();
            }
            backoff.reset();
        } else if e2a.take(&mut slots, 8) == 0 && !backoff.snooze() {
            prepare_sleep(&asleep);
            if !e2a.is_dirty() {
                block(shared.socket.fd(), "the application");
                assert_eq!(shared.socket.drain(&mut slots).unwrap(), Drained::Woken);
            }
            end_sleep(&asleep);
        }
    }
    // Dies here without a word: the engine sees the socket close.
    std::process::exit(0);
}

/// Echoes until the application is gone; how many bytes.
fn engine(shared: &Shared) -> u64 {
    let slot = shared.session.slot(SLOT);
    let mut reader = RingReader::new(shared.tx.clone(), slot.tx_tail, slot.tx_head, 0).unwrap();
    let mut writer = RingWriter::new(shared.rx.clone(), slot.rx_tail, slot.rx_head, 0).unwrap();
    let (mut a2e, e2a) = (shared.session.a2e(0), shared.session.e2a());
    let (asleep, app_asleep) = (shared.page.engine_sleep(0), shared.session.app_sleep());
    let mut backoff = Backoff::new(3);
    let (mut buffer, mut slots, mut total) = ([0; 700], Vec::new(), 0);
    loop {
        slots.clear();
        if a2e.take(&mut slots, 8) > 0 {
            assert_eq!(slots, [SLOT], "only one slot was ever marked");
            let mut echoed = 0;
            loop {
                let room = writer.free().unwrap().min(buffer.len() as u64) as usize;
                let count = reader.read(&mut buffer[..room]).unwrap();
                if count == 0 {
                    break;
                }
                assert_eq!(writer.write(&buffer[..count]).unwrap(), count);
                echoed += count;
            }
            total += echoed as u64;
            if echoed > 0 {
                e2a.ring(SLOT);
                if e2a.must_wake(&app_asleep) && shared.socket.wake().is_err() {
                    return total;
                }
            }
            backoff.reset();
        } else if !backoff.snooze() {
            prepare_sleep(&asleep);
            if !a2e.is_dirty() {
                block(shared.socket.fd(), "the engine");
                if shared.socket.drain(&mut slots).unwrap() == Drained::Hangup {
                    return total;
                }
            }
            end_sleep(&asleep);
        }
    }
}

#[test]
fn a_session_carries_a_stream_between_processes() {
    if let Some(fds) = inherited_fds() {
        return application(fds);
    }
    let session = Segment::create("shm-session", Session::bytes(SLOTS), Sharing::ReadWrite).unwrap();
    let page = Segment::create("shm-engine", EnginePage::BYTES, Sharing::PeerReadOnly).unwrap();
    let tx = Segment::create("shm-tx", RING_BYTES, Sharing::ReadWrite).unwrap();
    let rx = Segment::create("shm-rx", RING_BYTES, Sharing::ReadWrite).unwrap();
    let (socket, theirs) = WakeSocket::pair().unwrap();
    let formatted = Session::format(session.region().clone(), SLOTS, 1).unwrap();
    formatted.slot(SLOT).state.store(slot_state::ESTABLISHED, Ordering::Release);
    let page_view = EnginePage::format(page.region().clone(), 4711).unwrap();
    let fds = [session.fd(), page.fd(), tx.fd(), rx.fd(), theirs.fd()];
    let mut child = spawn_child("a_session_carries_a_stream_between_processes", &fds);
    drop(theirs); // else the engine would hold the application's end open and never see its death
    let child_pid = child.id();
    let shared = Shared { session: formatted, page: page_view, tx: ring(tx), rx: ring(rx), socket };
    let total = engine(&shared);
    assert!(child.wait().unwrap().success());
    assert_eq!(total, STREAM_BYTES);
    let slot = shared.session.slot(SLOT);
    assert_eq!(slot.app_flags.load(Ordering::Acquire), app_flag::FIN);
    assert_eq!(slot.app_owner_pid.load(Ordering::Relaxed), child_pid);
}

/// One end of a pair: its own segment and the peer's.
struct PairEnd {
    own: Pair,
    peer: Pair,
    socket: WakeSocket,
}

const PAIR_SLOTS: u32 = 4;
const PAIR_SLOT: u32 = 2;
const PAIR_RING_BYTES: u32 = 4096;

impl PairEnd {
    /// Sleeps until the peer names the slot, unless `ready`.
    fn wait(&self, interest: u32, who: &str, ready: impl FnOnce() -> bool) {
        let waiter = PairWaiter::new(self.own.slot(PAIR_SLOT).waiting).unwrap();
        if waiter.arm(interest, ready) {
            block(self.socket.fd(), who);
            let mut slots = Vec::new();
            assert_ne!(self.socket.drain(&mut slots).unwrap(), Drained::Hangup, "{who}");
            assert!(slots.iter().all(|&slot| slot == PAIR_SLOT));
            waiter.disarm(interest);
        }
    }

    fn tell(&self, event: u32) {
        if pair_must_wake(&self.peer.slot(PAIR_SLOT).waiting, event) {
            // A full socket is full of this one slot.
            self.socket.wake_slot(PAIR_SLOT).unwrap();
        }
    }

    fn send(&self, total: u64) {
        let (own, peer) = (self.own.slot(PAIR_SLOT), self.peer.slot(PAIR_SLOT));
        let mut writer = RingWriter::new(self.own.ring(PAIR_SLOT), own.tail, peer.head, 0).unwrap();
        let mut sent = 0;
        while sent < total {
            let len = (pieces(sent) as u64).min(total - sent);
            let bytes: Vec<u8> = (sent..sent + len).map(pattern).collect();
            let count = writer.write(&bytes).unwrap();
            sent += count as u64;
            if count > 0 {
                self.tell(waiting::READABLE);
            } else {
                self.wait(waiting::WRITABLE, "the pair's writer", || writer.free().unwrap() > 0);
            }
        }
        own.flags.fetch_or(app_flag::FIN, Ordering::Release);
        self.tell(waiting::ANY);
    }

    fn receive(&self) -> u64 {
        let (own, peer) = (self.own.slot(PAIR_SLOT), self.peer.slot(PAIR_SLOT));
        let mut reader = RingReader::new(self.peer.ring(PAIR_SLOT), peer.tail, own.head, 0).unwrap();
        let (mut buffer, mut received) = ([0; 1500], 0);
        loop {
            // FIN first: it is stored after the final tail, so a tail read later is final.
            let fin = peer.flags.load(Ordering::Acquire) & app_flag::FIN != 0;
            let count = reader.read(&mut buffer).unwrap();
            for &byte in &buffer[..count] {
                assert_eq!(byte, pattern(received), "byte {received} of the pair");
                received += 1;
            }
            if count > 0 {
                self.tell(waiting::WRITABLE);
            } else if fin {
                return received;
            } else {
                let finished = || peer.flags.load(Ordering::Acquire) & app_flag::FIN != 0;
                self.wait(waiting::READABLE, "the pair's reader", || reader.available().unwrap() > 0 || finished());
            }
        }
    }
}

#[test]
fn a_pair_carries_a_stream_between_processes() {
    let bytes = Pair::bytes(PAIR_SLOTS, PAIR_RING_BYTES);
    let make = || Segment::create("shm-pair", bytes, Sharing::PeerReadOnly).unwrap();
    let accept = |fd: OwnedFd| Segment::accept(fd, bytes, Sharing::PeerReadOnly).unwrap();
    let open = |segment: Segment| Pair::open(segment.into_region(), PAIR_SLOTS, PAIR_RING_BYTES).unwrap();
    let own = make();
    let formatted = Pair::format(own.region().clone(), PAIR_SLOTS, PAIR_RING_BYTES).unwrap();
    if let Some(fds) = inherited_fds() {
        let [socket, theirs, control]: [OwnedFd; 3] = fds.try_into().unwrap();
        pass_fd(control.as_fd(), own.fd());
        let end = PairEnd { own: formatted, peer: open(accept(theirs)), socket: WakeSocket::from_fd(socket).unwrap() };
        assert_eq!(end.receive(), STREAM_BYTES);
        end.send(STREAM_BYTES / 2);
        // Stays until the parent has read it all and closes its control socket: an end that dies is a reset, not an
        // orderly end.
        block(control.as_fd(), "the child");
        return;
    }
    let (socket, theirs) = WakeSocket::pair().unwrap();
    let (control, their_control) = std::os::unix::net::UnixStream::pair().unwrap();
    let fds = [theirs.fd(), own.fd(), their_control.as_fd()];
    let mut child = spawn_child("a_pair_carries_a_stream_between_processes", &fds);
    drop((theirs, their_control));
    let end = PairEnd { own: formatted, peer: open(accept(take_fd(control.as_fd()))), socket };
    end.send(STREAM_BYTES);
    assert_eq!(end.receive(), STREAM_BYTES / 2);
    drop(control);
    assert!(child.wait().unwrap().success());
}

fn pass_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

fn take_fd(socket: BorrowedFd<'_>) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    block(socket, "the parent");
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let message = ancillary.drain().next().expect("the child passes a descriptor");
    let RecvAncillaryMessage::ScmRights(mut fds) = message else { panic!("not a descriptor") };
    fds.next().expect("one descriptor")
}

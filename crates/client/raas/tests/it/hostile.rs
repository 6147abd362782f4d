//! A peer process that breaks every rule of the shared memory: it loses its own connections, nobody else anything.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{ChannelError, Path, Reason, Reply, Request, Role};
use raas::{Listener, Session, Stream, StreamError};
use shm::{Pair, PairWords, Segment, Sharing, WakeSocket, app_flag};

use crate::Watchdog;
use crate::fake_daemon::FakeDaemon;

/// An application that speaks the protocol by hand.
struct Rogue {
    control: OwnedFd,
    _fds: Vec<OwnedFd>,
    segment: Option<Segment>,
    pair: Option<(Pair, WakeSocket)>,
}

impl Rogue {
    fn attach(daemon: &FakeDaemon) -> Self {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let control = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&control, &SocketAddrUnix::new(daemon.path()).unwrap()).unwrap();
        let mut rogue = Self { control, _fds: Vec::new(), segment: None, pair: None };
        rogue.say(&Request::Hello {
            version: control::APP_VERSION,
            layout: shm::LAYOUT_VERSION,
            role: Role::Application,
            name: "rogue".into(),
        });
        let (welcome, fds) = rogue.hear();
        assert!(matches!(welcome, Reply::Welcome { .. }));
        rogue._fds = fds;
        rogue
    }

    fn say(&self, request: &Request) {
        control::send_message(self.control.as_fd(), request, &[]).unwrap();
    }

    fn hear(&self) -> (Reply, Vec<OwnedFd>) {
        let mut buffer = Vec::new();
        loop {
            match control::recv_message(self.control.as_fd(), &mut buffer) {
                Ok(message) => return message,
                Err(ChannelError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Connects over shared memory; its own words of the slot, not yet opened, and the generation.
    fn connect(&mut self, to: SocketAddr) -> (PairWords, u32, u32) {
        self.say(&Request::Connect { request: 1, to, ring_bytes: 4096, kind: control::Kind::Stream });
        loop {
            match self.hear() {
                (Reply::PairOpened { .. }, mut fds) => {
                    let socket = WakeSocket::from_fd(fds.remove(0)).unwrap();
                    // Until the segment is made this is a placeholder of the same kind.
                    let region = shm::Region::anonymous(Pair::bytes(1, 4096) as usize).unwrap();
                    self.pair = Some((Pair::format(region, 1, 4096).unwrap(), socket));
                }
                (Reply::PairSegmentWanted { pair, index, slots, ring_bytes }, _) => {
                    let bytes = Pair::bytes(slots, ring_bytes);
                    let segment = Segment::create("rogue", bytes, Sharing::PeerReadOnly).unwrap();
                    let memory = Pair::format(segment.region().clone(), slots, ring_bytes).unwrap();
                    let request = Request::PairSegment { pair, index, slots, ring_bytes };
                    control::send_message(self.control.as_fd(), &request, &[segment.fd()]).unwrap();
                    self.segment = Some(segment);
                    self.pair.as_mut().unwrap().0 = memory;
                }
                (Reply::PairSegment { .. }, _) => {}
                (Reply::Connected { result, .. }, _) => {
                    let Path::Shm { slot, generation, .. } = result.unwrap().path else { panic!("not on this host") };
                    return (self.pair.as_ref().unwrap().0.slot(slot), slot, generation);
                }
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    fn socket(&self) -> &WakeSocket {
        &self.pair.as_ref().unwrap().1
    }
}

/// A victim that accepted a rogue's connection, the rogue, and its words.
struct Crime {
    _daemon: FakeDaemon,
    session: Session,
    listener: Listener,
    victim: Stream,
    rogue: Rogue,
    words: PairWords,
    slot: u32,
    generation: u32,
}

fn crime() -> Crime {
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let listener = Listener::bind_with(&session, "127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let connecting = {
        let mut rogue = Rogue::attach(&daemon);
        std::thread::spawn(move || {
            let connected = rogue.connect(to);
            (rogue, connected)
        })
    };
    let (victim, _) = listener.accept().unwrap();
    let (rogue, (words, slot, generation)) = connecting.join().unwrap();
    Crime { _daemon: daemon, session, listener, victim, rogue, words, slot, generation }
}

/// The victim's session still works: another connection, to itself.
fn is_well(c: &Crime) {
    let mut client = Stream::connect_with(&c.session, c.listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = c.listener.accept().unwrap();
    client.write_all(b"fine").unwrap();
    let mut got = [0; 4];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"fine");
}

fn assert_fault(error: &std::io::Error) {
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(StreamError::reason_of(error), Some(Reason::AppFault));
}

#[test]
fn a_tail_beyond_the_ring_resets() {
    let _watchdog = Watchdog::start("a_tail_beyond_the_ring_resets");
    for tail in [4097, u64::MAX, 1 << 63] {
        let mut c = crime();
        c.words.generation.store(c.generation, Ordering::Release);
        c.words.tail.store(tail, Ordering::Release);
        c.rogue.socket().wake_slot(c.slot).unwrap();
        assert_fault(&c.victim.read(&mut [0; 10]).unwrap_err());
        // It stays so, also when the rogue repents, and for writing.
        c.words.tail.store(10, Ordering::Release);
        assert_fault(&c.victim.read(&mut [0; 10]).unwrap_err());
        assert_fault(&c.victim.write(&[0; 10]).unwrap_err());
        is_well(&c);
    }
}

#[test]
fn a_tail_that_goes_back_resets() {
    let _watchdog = Watchdog::start("a_tail_that_goes_back_resets");
    let mut c = crime();
    c.words.generation.store(c.generation, Ordering::Release);
    c.words.tail.store(100, Ordering::Release);
    assert_eq!(c.victim.read(&mut [0; 1000]).unwrap(), 100);
    c.words.tail.store(50, Ordering::Release);
    assert_fault(&c.victim.read(&mut [0; 10]).unwrap_err());
    is_well(&c);
}

#[test]
fn a_head_beyond_what_was_written_resets() {
    let _watchdog = Watchdog::start("a_head_beyond_what_was_written_resets");
    let mut c = crime();
    c.words.generation.store(c.generation, Ordering::Release);
    c.victim.write_all(&[1; 4096]).unwrap();
    c.words.head.store(5000, Ordering::Release);
    assert_fault(&c.victim.write(&[1; 10]).unwrap_err());
    is_well(&c);
}

#[test]
fn a_reader_in_its_sleep_survives_noise_and_finds_the_fault() {
    let _watchdog = Watchdog::start("a_reader_in_its_sleep_survives_noise_and_finds_the_fault");
    let c = crime();
    c.words.generation.store(c.generation, Ordering::Release);
    std::thread::scope(|s| {
        let victim = &c.victim;
        let reading = s.spawn(move || {
            let mut reader = victim;
            reader.read(&mut [0; 10]).unwrap_err()
        });
        // Slots that do not exist, more wakes than the socket holds, flags that mean nothing, words of no use.
        for i in 0..3000u32 {
            let _ = c.rogue.socket().wake_slot(i.wrapping_mul(0x9e37_79b9)).unwrap();
        }
        c.words.flags.store(0xffff_fff0, Ordering::Release);
        c.words.waiting.store(u32::MAX, Ordering::Release);
        c.words.owner_pid.store(1, Ordering::Release);
        std::thread::sleep(Duration::from_millis(30));
        c.words.tail.store(1 << 40, Ordering::Release);
        assert_fault(&reading.join().unwrap());
    });
    is_well(&c);
}

#[test]
fn odd_flags_end_in_an_error_or_an_end() {
    let _watchdog = Watchdog::start("odd_flags_end_in_an_error_or_an_end");
    for (flags, reason) in [(app_flag::ABORT, Reason::SameHost.code()), (app_flag::ABORT | app_flag::STOP, 77_777)] {
        let mut c = crime();
        c.words.reason.store(reason, Ordering::Relaxed);
        c.words.flags.store(flags, Ordering::Relaxed);
        c.words.generation.store(c.generation, Ordering::Release);
        let error = c.victim.read(&mut [0; 10]).unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::ResetByPeer), "a reset has a reason that is one");
        is_well(&c);
    }
    // Its end in order stays one, whatever else it says.
    let mut c = crime();
    c.words.flags.store(app_flag::ABORT | app_flag::FIN, Ordering::Relaxed);
    c.words.generation.store(c.generation, Ordering::Release);
    assert_eq!(c.victim.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(c.victim.write(&[0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(c.victim.failure(), Some(Reason::ResetByPeer));
    let mut c = crime();
    c.words.flags.store(app_flag::CLOSED, Ordering::Relaxed);
    c.words.generation.store(c.generation, Ordering::Release);
    assert_eq!(c.victim.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(c.victim.write(&[0; 10]).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn words_of_another_generation_do_not_count() {
    let _watchdog = Watchdog::start("words_of_another_generation_do_not_count");
    let mut c = crime();
    c.words.flags.store(app_flag::ABORT | app_flag::CLOSED, Ordering::Relaxed);
    c.words.generation.store(c.generation + 1, Ordering::Release);
    c.victim.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(c.victim.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::TimedOut);
    c.victim.write_all(b"still open").unwrap();
}

#[test]
fn a_silent_hangup_is_a_death() {
    let _watchdog = Watchdog::start("a_silent_hangup_is_a_death");
    let mut c = crime();
    c.words.generation.store(c.generation, Ordering::Release);
    c.words.tail.store(3, Ordering::Release);
    c.rogue.pair = None;
    let mut got = [9; 3];
    c.victim.read_exact(&mut got).unwrap();
    assert_eq!(got, [0; 3]);
    let error = c.victim.read(&mut got).unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerAppDied));
    is_well(&c);
}

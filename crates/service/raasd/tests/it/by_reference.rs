//! Messages by reference through real daemons: slices are lent and come back, whatever the two programs do.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use raas::{
    ConnectOptions, LOANS_MAX, ListenOptions, MessageError, MessageListener, MessageStream, PathKind, Region,
    RegionAccess, RegionError, RegionKey, RegionOptions, Session, View,
};

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

const KEY: RegionKey = RegionKey::new([7; 16]);
const BYTES: usize = 1 << 20;
/// Says to a child where to connect.
const PEER: &str = "RAAS_TEST_LENDS_TO";

/// Both ends of a connection of messages between programs of two hosts, or of one.
fn connected(near: &Session, far: &Session, host: &Host) -> (MessageStream, MessageStream) {
    let listener = MessageListener::bind_with(far, (host.address(), 0), ListenOptions::new()).unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept_timeout(PATIENCE).unwrap().0);
        let client = MessageStream::connect_with(near, to, ConnectOptions::new()).unwrap();
        let server = server.join().unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        (client, server)
    })
}

fn create(session: &Session, name: &str) -> Region {
    let region = RegionOptions::new().key(KEY).create(session, name, BYTES as u64).unwrap();
    region.write(0, &pattern(BYTES, 3)).unwrap();
    region
}

fn view(stream: &MessageStream) -> View {
    stream.receive_view().unwrap().unwrap()
}

fn error_of<T: std::fmt::Debug>(result: std::io::Result<T>) -> MessageError {
    let error = result.unwrap_err();
    *error.get_ref().unwrap().downcast_ref().unwrap_or_else(|| panic!("{error}"))
}

/// Two hosts, with sessions for a lender at the first and a receiver, on another host or on the same one.
fn on_both_paths(test: impl Fn(&Host, &Session, &Session, &Host, PathKind)) {
    let (a, b) = (Host::started(), Host::started());
    test(&a, &a.session(), &a.session(), &a, PathKind::Shm);
    test(&a, &a.session(), &b.session(), &b, PathKind::Lane);
}

#[test]
fn slices_are_lent_and_come_back_on_both_paths() {
    bounded(|| {
        on_both_paths(|_, near, far, host, path| {
            let (lender, receiver) = connected(near, far, host);
            assert_eq!(lender.path(), path);
            let region = create(near, "slices");
            let all = pattern(BYTES, 3);
            // Bytes and slices arrive in order; whoever asks for bytes gets bytes.
            lender.send(b"first").unwrap();
            let lent = lender.lend(&region, 4096, 100_000).unwrap();
            lender.send(b"last").unwrap();
            let first = view(&receiver);
            assert!(!first.is_lent() && first.to_vec().unwrap() == b"first");
            let slice = view(&receiver);
            assert!(slice.is_lent());
            assert_eq!(slice.len(), 100_000);
            assert!(slice.to_vec().unwrap() == all[4096..104_096]);
            let mut part = [0; 1000];
            slice.read(99_000, &mut part).unwrap();
            assert!(part == all[103_096..104_096]);
            let beyond = slice.read(99_001, &mut part).unwrap_err();
            assert!(matches!(beyond, RegionError::OutOfBounds { bytes: 100_000, .. }), "{beyond}");
            let own = create(far, "landed");
            own.write(0, &vec![0; BYTES]).unwrap();
            slice.copy_into(50, 70_000, &own, 8).unwrap();
            let mut landed = vec![0; 70_000];
            own.read(8, &mut landed).unwrap();
            assert!(landed == all[4146..74_146]);
            assert!(slice.copy_into(0, 8, &own, BYTES as u64).is_err());
            assert!(!lent.is_back().unwrap() && !lent.wait_timeout(Duration::from_millis(50)).unwrap());
            drop(slice);
            lent.wait().unwrap();
            assert_eq!(receiver.receive_vec().unwrap().unwrap(), b"last");
            // Numbers are used again and again.
            for round in 0..200u64 {
                let lent = lender.lend(&region, round * 8, 64).unwrap();
                let mut got = [0; 64];
                assert_eq!(receiver.receive(&mut got).unwrap(), Some(64));
                assert!(got == all[round as usize * 8..][..64], "round {round}");
                lent.wait().unwrap();
            }
            drop((own, region));
        });
    });
}

#[test]
fn a_receiver_that_keeps_everything_stops_the_lender_alone() {
    bounded(|| {
        on_both_paths(|_, near, far, host, _| {
            let (lender, receiver) = connected(near, far, host);
            let region = create(near, "kept");
            let lent: Vec<_> = (0..LOANS_MAX).map(|n| lender.lend(&region, u64::from(n) * 8, 8).unwrap()).collect();
            let refused = error_of(lender.lend(&region, 0, 8));
            assert_eq!(refused, MessageError::TooManyLent { max: LOANS_MAX });
            let mut views: Vec<_> = (0..LOANS_MAX).map(|_| view(&receiver)).collect();
            assert!(lent.iter().all(|one| !one.is_back().unwrap()));
            // Given back in another order, and by a waiting thread's peer.
            drop(views.swap_remove(17));
            lent[17].wait().unwrap();
            let again = lender.lend(&region, 400, 8).unwrap();
            assert!(lent[17].is_back().unwrap() && !again.is_back().unwrap());
            assert_eq!(lender.send(b"bytes go on").ok(), Some(()));
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| lent[40].wait().unwrap());
                std::thread::sleep(Duration::from_millis(50));
                drop(views);
                waits.join().unwrap();
            });
            drop(view(&receiver));
            again.wait().unwrap();
            lent.iter().for_each(|one| one.wait().unwrap());
        });
    });
}

/// The receiver closes the connection and keeps its views; then its program ends.
#[test]
fn what_a_receiver_holds_comes_back_when_it_ends() {
    bounded(|| {
        on_both_paths(|_, near, far, host, _| {
            let (lender, receiver) = connected(near, far, host);
            let region = create(near, "held");
            let lent = lender.lend(&region, 0, 5000).unwrap();
            let unseen = lender.lend(&region, 8, 8).unwrap();
            let held = view(&receiver);
            drop(receiver);
            assert!(held.to_vec().unwrap() == pattern(BYTES, 3)[..5000]);
            // Nobody can look at what was not received, but the two are of one lease.
            assert!(!lent.wait_timeout(Duration::from_millis(50)).unwrap());
            drop(held);
            lent.wait().unwrap();
            unseen.wait().unwrap();
            // The lender closes, with a view at the other end.
            let (lender, receiver) = connected(near, far, host);
            let lent = lender.lend(&region, 0, 5000).unwrap();
            let held = view(&receiver);
            drop(lender);
            assert!(held.to_vec().unwrap() == pattern(BYTES, 3)[..5000]);
            assert!(!lent.wait_timeout(Duration::from_millis(50)).unwrap());
            drop((held, receiver));
            lent.wait().unwrap();
        });
    });
}

#[test]
fn a_revoke_takes_slices_back() {
    bounded(|| {
        on_both_paths(|_, near, far, host, _| {
            let (lender, receiver) = connected(near, far, host);
            let region = create(near, "revoked");
            let lent = lender.lend(&region, 0, 4096).unwrap();
            let held = view(&receiver);
            held.to_vec().unwrap();
            assert_eq!(region.revoke(None).unwrap(), 2);
            lent.wait().unwrap();
            eventually("the view is over", || held.to_vec().is_err());
            let over = held.to_vec().unwrap_err();
            assert!(matches!(over, RegionError::Revoked { .. }), "{over}");
            // The same region, in its new memory.
            region.write(0, b"anew").unwrap();
            let lent = lender.lend(&region, 0, 4).unwrap();
            assert_eq!(view(&receiver).to_vec().unwrap(), b"anew");
            lent.wait().unwrap();
            // What is given back late stands for nothing else.
            drop(held);
            let lent = lender.lend(&region, 0, 4).unwrap();
            let held = view(&receiver);
            assert!(!lent.wait_timeout(Duration::from_millis(20)).unwrap());
            drop(held);
            lent.wait().unwrap();
        });
    });
}

#[test]
fn what_cannot_be_lent_is_refused_by_name() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (near, far) = (a.session(), b.session());
        let (lender, receiver) = connected(&near, &far, &b);
        let region = RegionOptions::new().key(KEY).create(&near, "r", 100).unwrap();
        let refused = lender.lend(&region, 90, 11).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput, "{refused}");
        let long = error_of(lender.lend(&region, 0, raas::LOAN_BYTES_MAX + 1));
        assert_eq!(long, MessageError::SliceTooLong { len: raas::LOAN_BYTES_MAX + 1 });
        let other = Region::open(&far, a.address(), "r", KEY).unwrap();
        let refused = receiver.lend(&other, 0, 8).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported, "{refused}");
        let writer = Region::open_for(&near, a.address(), "r", KEY, RegionAccess::WRITE).unwrap();
        let refused = lender.lend(&writer, 0, 8).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
        // Longer than any message that is copied: nobody's memory is taken for it unasked.
        let big = RegionOptions::new().key(KEY).create(&near, "big", 9 << 20).unwrap();
        let _lent = lender.lend(&big, 0, 9 << 20).unwrap();
        assert_eq!(error_of(receiver.receive_vec()), MessageError::Lent { len: 9 << 20 });
        let small = error_of(receiver.receive(&mut [0; 8]));
        assert_eq!(small, MessageError::BufferTooSmall { len: 9 << 20, buffer: 8 });
        assert_eq!(view(&receiver).len(), 9 << 20);
        // A region that another program has, by its key, can be lent on.
        let reader = Region::open_for(&near, a.address(), "r", KEY, RegionAccess::READ).unwrap();
        region.write(0, b"lent on").unwrap();
        let lent = lender.lend(&reader, 0, 7).unwrap();
        assert_eq!(receiver.receive_vec().unwrap().unwrap(), b"lent on");
        lent.wait().unwrap();
        drop(region);
        eventually("nothing of a region that ended is lent", || lender.lend(&reader, 0, 7).is_err());
    });
}

// ---- programs that are killed

fn child(test: &str, host: &Host, peer: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("by_reference::{test}"), "--nocapture", "--test-threads", "1"])
        .env(PEER, peer.to_string())
        .env("RAAS_SOCKET", &host.config.socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_for_ready(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("ready")), "the child did not say that it is ready");
}

fn ready_until_killed() -> ! {
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_receiver_leaks_nothing() {
    const TEST: &str = "a_killed_receiver_leaks_nothing";
    if let Some(peer) = std::env::var_os(PEER) {
        let stream = MessageStream::connect(peer.into_string().unwrap()).unwrap();
        let _views: Vec<_> = (0..10).map(|_| view(&stream)).collect();
        ready_until_killed();
    }
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        for home in [&a, &b] {
            let session = a.session();
            let region = create(&session, "lent");
            let listener = MessageListener::bind_with(&session, (a.address(), 0), ListenOptions::new()).unwrap();
            let mut child = child(TEST, home, listener.local_addr().unwrap());
            let (lender, _) = listener.accept_timeout(PATIENCE).unwrap();
            let lent: Vec<_> = (0..20).map(|n| lender.lend(&region, n * 64, 64).unwrap()).collect();
            wait_for_ready(&mut child);
            assert!(lent.iter().all(|one| !one.is_back().unwrap()));
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| lent[0].wait().unwrap());
                std::thread::sleep(Duration::from_millis(50));
                kill(child);
                waits.join().unwrap();
            });
            lent.iter().for_each(|one| one.wait().unwrap());
            let opens = || raas::inspect::regions(Some(&a.config.socket)).unwrap()[0].clone();
            eventually("nobody has it open", || (opens().opens, opens().remote_opens) == (0, 0));
        }
    });
}

#[test]
fn views_outlive_a_killed_lender() {
    const TEST: &str = "views_outlive_a_killed_lender";
    if let Some(peer) = std::env::var_os(PEER) {
        let session = Session::global().unwrap();
        let region = create(&session, "goes");
        let stream = MessageStream::connect(peer.into_string().unwrap()).unwrap();
        let _lent: Vec<_> = (0..10).map(|n| stream.lend(&region, n * 8, 100_000).unwrap()).collect();
        ready_until_killed();
    }
    bounded(|| {
        let host = Host::started();
        let session = host.session();
        let listener = MessageListener::bind_with(&session, (host.address(), 0), ListenOptions::new()).unwrap();
        let mut child = child(TEST, &host, listener.local_addr().unwrap());
        let (receiver, _) = listener.accept_timeout(PATIENCE).unwrap();
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let first = view(&receiver);
        wait_for_ready(&mut child);
        kill(child);
        eventually("the region ended", || raas::inspect::regions(Some(&host.config.socket)).unwrap().is_empty());
        // What was received, and what had arrived.
        let all = pattern(BYTES, 3);
        assert!(first.to_vec().unwrap() == all[..100_000]);
        for n in 1..10 {
            assert!(view(&receiver).to_vec().unwrap() == all[n * 8..][..100_000], "slice {n}");
        }
        assert!(receiver.receive_view().is_err(), "then the death");
        assert!(first.to_vec().unwrap() == all[..100_000]);
    });
}

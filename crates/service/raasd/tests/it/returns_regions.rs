//! Sessions with regions go on over the death of a daemon: their connections and own regions live, and so do handles to
//! other programs' regions (docs/operate/restart.md). What a handle must not go on with: `regions_reopen`.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raas::{
    ConnectOptions, ListenOptions, Listener, MessageListener, MessageStream, Reason, Region, RegionError, RegionKey,
    RegionOptions, Session, Stream,
};

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

const KEY: RegionKey = RegionKey::new([7; 16]);
const BYTES: u64 = 64 << 10;

fn restart(host: &mut Host, sessions: &[&Session]) {
    host.hand_over();
    eventually("the death is seen", || sessions.iter().all(|session| !session.is_usable()));
    host.start();
    eventually("they came back", || sessions.iter().all(|session| session.is_usable()));
}

fn stream(from: &Session, to: &Session, host: &Host) -> (Stream, Stream) {
    let listener = Listener::bind_with(to, (host.address(), 0)).unwrap();
    let client = Stream::connect_with(from, listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept_timeout(PATIENCE).unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

fn exchange((client, server): (&mut Stream, &mut Stream), seed: u8) {
    let sent = pattern(100_000, seed);
    std::thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).unwrap());
        let mut got = vec![0; sent.len()];
        server.read_exact(&mut got).unwrap();
        assert!(got == sent, "bytes of round {seed}");
    });
}

fn create(session: &Session, name: &str) -> Region {
    RegionOptions::new().key(KEY).create(session, name, BYTES).unwrap()
}

/// Opens it as soon as it is there: whoever made it may come back later, and daemons have to meet.
fn open(session: &Session, host: &Host, name: &str) -> Region {
    let mut region = None;
    eventually("the region can be opened", || {
        region = Region::open(session, host.address(), name, KEY).ok();
        region.is_some()
    });
    region.unwrap()
}

fn is_over(error: &RegionError) -> bool {
    matches!(error, RegionError::DaemonLost { may_have_landed: false, .. })
}

#[test]
fn streams_go_on_and_handles_end_and_are_opened_again() {
    bounded(|| go_on_again_and_again([Host::started_patient(), Host::started_patient()]));
}

/// One engine has taken back what it gets before another has answered.
#[test]
fn streams_go_on_where_daemons_have_several_engines() {
    bounded(|| {
        let with_two = || {
            let mut host = Host::patient();
            host.config.engines = 2;
            host.start();
            host
        };
        go_on_again_and_again([with_two(), with_two()]);
    });
}

fn go_on_again_and_again([mut a, b]: [Host; 2]) {
    let (near, far) = (a.followed(), b.followed());
    let (mut client, mut server) = stream(&near, &far, &b);
    let theirs = create(&far, "theirs");
    let (own, there) = (create(&near, "own"), open(&near, &b, "theirs"));
    let here = open(&near, &a, "own");
    for round in 0..8_u8 {
        own.store(8, 7).unwrap();
        assert_eq!((there.fetch_add(0, 1).unwrap(), here.load(8).unwrap()), (round.into(), 7));
        let (slice, map) = (here.slice(0, 8).unwrap(), here.map(0, 8).unwrap());
        restart(&mut a, &[&near]);
        exchange((&mut client, &mut server), round);
        // What names the memory of before says so, and says what to do.
        let error = there.read_into(0, &[slice]).unwrap_err();
        assert!(is_over(&error) && error.to_string().contains("open the region again"), "{error}");
        assert!(matches!(map.check(), Err(RegionError::DaemonLost { .. })));
        assert!(matches!(own.recv_notification(), Err(RegionError::NotificationsLost { .. })));
        own.slice(0, 8).unwrap();
        assert_eq!((own.load(8).unwrap(), own.epoch()), (7, u64::from(round) + 2));
        exchange((&mut server, &mut client), round);
        own.store(16, 3 + u64::from(round)).unwrap();
        assert_eq!((here.load(16).unwrap(), there.load(0).unwrap()), (3 + u64::from(round), u64::from(round) + 1));
        here.write_notify(24, b"x", 5).unwrap();
        assert_eq!((own.recv_notification().unwrap(), here.epoch()), (5, own.epoch()));
    }
    let rows = raas::inspect::regions(Some(&a.config.socket)).unwrap();
    assert_eq!(rows.iter().map(|row| row.opens).collect::<Vec<_>>(), [1], "only what lives is counted");
    assert_eq!(theirs.load(0).unwrap(), 8);
}

#[test]
fn what_is_given_back_late_is_nothing_of_the_next_daemons() {
    bounded(|| {
        let (mut a, b) = (Host::started_patient(), Host::started_patient());
        let (near, far) = (a.followed(), b.followed());
        let _theirs = create(&far, "theirs");
        // As many of each kind, so that daemons that count from 1 would give the same numbers again.
        let own = create(&near, "own");
        let handles = |a: &Host| (open(&near, a, "own"), open(&near, &b, "theirs"));
        let old = handles(&a);
        let (old_slice, other_slice) = (own.slice(0, 4096).unwrap(), old.0.slice(0, 4096).unwrap());
        restart(&mut a, &[&near]);
        let (here, there) = handles(&a);
        let slice = own.slice(0, 4096).unwrap();
        drop((old_slice, other_slice, old));
        own.write(0, &pattern(4096, 5)).unwrap();
        there.write_from(0, std::slice::from_ref(&slice), raas::Completion::Visible).unwrap();
        let mut got = vec![0; 4096];
        there.read(0, &mut got).unwrap();
        assert!(got == pattern(4096, 5));
        assert_eq!(here.fetch_add(8192, 1).unwrap(), 0);
        assert_eq!(own.load(8192).unwrap(), 1);
    });
}

#[test]
fn the_owners_daemon_ends_and_handles_of_other_hosts_go_on() {
    bounded(|| {
        let (mut a, b) = (Host::started_patient(), Host::started_patient());
        let (near, far) = (a.followed(), b.followed());
        let (mut client, mut server) = stream(&near, &far, &b);
        let own = create(&near, "own");
        let there = open(&far, &a, "own");
        there.fetch_add(0, 1).unwrap();
        let waiting = std::thread::spawn(move || {
            let end = own.recv_notification();
            (own, end)
        });
        restart(&mut a, &[&near]);
        let (own, end) = waiting.join().unwrap();
        assert!(matches!(end, Err(RegionError::NotificationsLost { .. })), "{end:?}");
        assert_eq!((there.fetch_add(0, 1).unwrap(), there.epoch()), (1, 2));
        exchange((&mut client, &mut server), 1);
        let again = open(&far, &a, "own");
        again.write_notify(0, &9_u64.to_ne_bytes(), 5).unwrap();
        assert_eq!((own.recv_notification().unwrap(), own.load(0).unwrap()), (5, 9));
        drop(there);
        assert_eq!(again.load(0).unwrap(), 9);
    });
}

#[test]
fn operations_under_way_end_and_none_is_done_that_says_it_was_not() {
    bounded(|| {
        let (a, mut b) = (Host::started_patient(), Host::started_patient());
        let (near, far) = (a.followed(), b.followed());
        let own = create(&near, "sum");
        let (mut client, mut server) = stream(&near, &far, &b);
        let (is_done, mut unknown, mut done) = (AtomicBool::new(false), 0_u64, 0_u64);
        std::thread::scope(|scope| {
            let adders: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut done, mut unknown) = (0_u64, 0_u64);
                        let there = open(&far, &a, "sum");
                        while !is_done.load(Ordering::Relaxed) {
                            match there.fetch_add(0, 1) {
                                Ok(_) => done += 1,
                                Err(RegionError::OutcomeUnknown { reason, .. }) => {
                                    assert_eq!(reason, Reason::DaemonLost);
                                    unknown += 1;
                                }
                                // What was surely not done is done by the next handle.
                                Err(error) => panic!("{error}"),
                            }
                        }
                        (done, unknown)
                    })
                })
                .collect();
            for turn in 1..=5_u64 {
                let before = own.load(0).unwrap();
                eventually("they add", || own.load(0).unwrap() > before + 50 * turn);
                restart(&mut b, &[&far]);
                exchange((&mut client, &mut server), turn as u8);
            }
            let before = own.load(0).unwrap();
            eventually("they add", || own.load(0).unwrap() > before);
            is_done.store(true, Ordering::Relaxed);
            for adder in adders {
                let (of_one, may) = adder.join().unwrap();
                (done, unknown) = (done + of_one, unknown + may);
            }
        });
        let sum = own.load(0).unwrap();
        assert!((done..=done + unknown).contains(&sum), "{sum}, of {done} and {unknown} of which nobody knows");
    });
}

#[test]
fn what_was_lent_comes_back_or_says_that_nobody_knows() {
    bounded(|| {
        let (mut a, mut b) = (Host::started_patient(), Host::started_patient());
        for is_far in [false, true] {
            let near = a.followed();
            let far = if is_far { b.followed() } else { a.followed() };
            let host = if is_far { &b } else { &a };
            let listener = MessageListener::bind_with(&far, (host.address(), 0), ListenOptions::new()).unwrap();
            let to = listener.local_addr().unwrap();
            let lender = MessageStream::connect_with(&near, to, ConnectOptions::new()).unwrap();
            let receiver = listener.accept_timeout(PATIENCE).unwrap().0;
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            let region = create(&near, if is_far { "lent far" } else { "lent" });
            region.write(0, &pattern(4096, 3)).unwrap();
            let [lent, kept] = [0, 4096].map(|at| lender.lend(&region, at, 4096).unwrap());
            let view = receiver.receive_view().unwrap().unwrap();
            view.open().unwrap();
            restart(&mut a, &[&near]);
            if is_far {
                // The way to it was the daemon that ended; nobody reads it any more.
                lent.wait().unwrap();
                kept.wait().unwrap();
                assert!(view.to_vec().is_err());
            } else {
                assert!(!lent.is_back().unwrap(), "the other program still looks at it");
                assert!(view.to_vec().unwrap() == pattern(4096, 3));
                drop(view);
                lent.wait().unwrap();
                drop(receiver.receive_view().unwrap().unwrap());
                kept.wait().unwrap();
            }
            drop((lent, kept));
            assert!(region.load(0).unwrap().to_ne_bytes()[..] == pattern(4096, 3)[..8]);
            region.write(0, &pattern(4096, 4)).unwrap();
            if is_far {
                drop(receiver.receive_view().unwrap().unwrap());
                let lent = lender.lend(&region, 0, 4096).unwrap();
                let mut view = receiver.receive_view().unwrap().unwrap();
                eventually("the daemons have met", || {
                    let is_there = view.open().is_ok();
                    if !is_there {
                        let again = lender.lend(&region, 0, 4096);
                        again.map(drop).unwrap();
                        view = receiver.receive_view().unwrap().unwrap();
                    }
                    is_there
                });
                assert!(view.to_vec().unwrap() == pattern(4096, 4));
                drop((view, lent));
            }
            // Bytes go on in any case.
            lender.send(b"bytes").unwrap();
            assert_eq!(receiver.receive_vec().unwrap().unwrap(), b"bytes");
        }
        b.stop();
    });
}

#[test]
fn a_session_without_a_next_daemon_ends_with_its_regions() {
    bounded(|| {
        let mut host = Host::started();
        let builder = Session::builder().socket(&host.config.socket).background(true);
        let session = builder.daemon_wait(Duration::from_millis(300)).connect().unwrap();
        let own = create(&session, "own");
        host.hand_over();
        let mut last = None;
        eventually("the session is lost", || {
            let error = own.load(0).err();
            last = error.or(last.take());
            matches!(last, Some(RegionError::Session(_)))
        });
    });
}

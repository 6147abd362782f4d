//! Regions on one host: programs share memory by name, and a revoke takes it from all but the owner.

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{RegionPath, Reply, Request};
use raas::{Completion, Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};
use shm::RegionMemory;

use crate::control_socket::RawClient;
use crate::hosts::{Host, bounded, eventually, pattern};
use crate::several_users::{OTHER, USER, as_user, is_root, open_host};

const KEY: RegionKey = RegionKey::new([7; 16]);
const OTHER_KEY: RegionKey = RegionKey::new([8; 16]);
/// Says to a child what it is.
const ROLE: &str = "RAAS_TEST_REGION_ROLE";

fn create(session: &Session, name: &str, bytes: u64) -> Region {
    RegionOptions::new().key(KEY).create(session, name, bytes).unwrap()
}

fn open(host: &Host, session: &Session, name: &str) -> Region {
    Region::open(session, host.address(), name, KEY).unwrap()
}

fn refusal<T: std::fmt::Debug>(result: Result<T, RegionError>) -> RegionRefusal {
    result.unwrap_err().refusal().unwrap().clone()
}

/// Every region and every handle is gone.
fn nothing_is_left(host: &Host) {
    eventually("all regions are gone", || raas::inspect::regions(Some(&host.config.socket)).unwrap().is_empty());
}

#[test]
fn programs_share_a_region_by_name() {
    bounded(|| {
        let host = Host::started();
        let (maker, user) = (host.session(), host.session());
        let own = create(&maker, "numbers", 1 << 20);
        let other = open(&host, &user, "numbers");
        assert_eq!((own.bytes(), other.bytes(), own.epoch(), other.epoch()), (1 << 20, 1 << 20, 1, 1));
        assert!(own.is_owner() && !other.is_owner());
        let data = pattern(1 << 20, 3);
        other.write(0, &data).unwrap();
        let mut got = vec![0; 1 << 20];
        own.read(0, &mut got).unwrap();
        assert!(got == data);
        let (mut a, mut b) = ([0; 3], [0; 6]);
        own.read_vectored(5, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]).unwrap();
        assert_eq!([&a[..], &b].concat(), data[5..14]);
        own.write_vectored(1, &[IoSlice::new(b"ab"), IoSlice::new(b"cde")]).unwrap();
        other.read(0, &mut b).unwrap();
        assert_eq!(&b[1..], b"abcde");
        own.store(64, 10).unwrap();
        assert_eq!(other.fetch_add(64, 5).unwrap(), 10);
        assert_eq!(own.compare_swap(64, 15, 0xf0).unwrap(), 15);
        assert_eq!(other.compare_swap(64, 15, 1).unwrap(), 0xf0);
        assert_eq!(own.fetch_or(64, 0x0f).unwrap(), 0xf0);
        assert_eq!(other.fetch_and(64, 0x3c).unwrap(), 0xff);
        assert_eq!(own.fetch_xor(64, 0x0c).unwrap(), 0x3c);
        assert_eq!(other.fetch_min(64, 0x20).unwrap(), 0x30);
        assert_eq!(own.fetch_max(64, 0x40).unwrap(), 0x20);
        assert_eq!(other.swap(64, 9).unwrap(), 0x40);
        assert_eq!(own.load(64).unwrap(), 9);
        for completion in [Completion::Posted, Completion::Acked, Completion::Visible] {
            own.write_as(0, b"x", completion).unwrap();
        }
        assert!(matches!(own.write_as(0, b"x", Completion::Persistent), Err(RegionError::NoPersistence)));
        let rows = raas::inspect::regions(Some(&host.config.socket)).unwrap();
        assert_eq!((rows.len(), rows[0].name.as_str(), rows[0].bytes, rows[0].opens), (1, "numbers", 1 << 20, 1));
        assert_eq!((rows[0].owner_pid, rows[0].epoch), (Some(std::process::id()), 1));
        assert_eq!(host.stat().verbs, control::VerbCounts::default(), "no verb for any of it");
        drop(own);
        eventually("the handle of a region that ended fails", || other.load(0).is_err());
        assert!(matches!(other.load(0), Err(RegionError::OwnerGone { may_have_landed: false, .. })));
        nothing_is_left(&host);
    });
}

#[test]
fn a_mapping_is_copied_to_and_from_and_one_check_answers_for_all() {
    bounded(|| {
        let host = Host::started();
        let (maker, user) = (host.session(), host.session());
        let own = create(&maker, "mapped", 8192);
        let other = open(&host, &user, "mapped");
        let read_only = RegionOptions::new().key(KEY).access(RegionAccess::READ).create(&maker, "narrow", 100).unwrap();
        let reader = Region::open_for(&user, host.address(), "narrow", KEY, RegionAccess::READ).unwrap();
        let reader = reader.map(0, 100).unwrap();
        let [a, b] = [&own, &other].map(|region| region.map(100, 1000).unwrap());
        a.write(0, b"first").unwrap();
        a.write(995, b"last!").unwrap();
        b.write(500, b"others").unwrap();
        [&a, &b].into_iter().for_each(|mapped| mapped.check().unwrap());
        let mut found = [0; 6];
        let place = |region: &Region, at: u64, found: &mut [u8]| region.read(at, found).unwrap();
        place(&other, 100, &mut found[..5]);
        assert_eq!(&found[..5], b"first");
        place(&other, 1095, &mut found[..5]);
        assert_eq!(&found[..5], b"last!");
        a.read(500, &mut found).unwrap();
        assert_eq!(&found, b"others");
        // Bad uses do nothing.
        let beyond = |at, len| Err(RegionError::OutOfBounds { name: "mapped".into(), offset: at, len, bytes: 1000 });
        let as_text = |result: Result<(), RegionError>| format!("{result:?}");
        assert_eq!(as_text(a.write(996, b"last!")), as_text(beyond(996, 5)));
        assert_eq!(as_text(a.write(u64::MAX, b"x")), as_text(beyond(u64::MAX, 1)));
        assert_eq!(as_text(b.read(1000, &mut found[..1])), as_text(beyond(1000, 1)));
        assert!(matches!(reader.write(0, b"x"), Err(RegionError::NoAccess { .. })));
        read_only.map(0, 100).unwrap().write(99, b"o").unwrap();
        reader.read(99, &mut found[..1]).unwrap();
        assert_eq!(found[0], b'o');
        reader.check().unwrap();
        // A revoke: what was checked is in the region, what comes after is not, and the next check says so.
        assert_eq!(own.revoke(None).unwrap(), 2);
        [&a, &b].into_iter().for_each(|mapped| mapped.write(0, b"stale").unwrap());
        for mapped in [&a, &b] {
            assert!(matches!(mapped.check(), Err(RegionError::Revoked { may_have_landed: true, .. })));
        }
        place(&own, 100, &mut found[..5]);
        assert_eq!(&found[..5], b"first");
        place(&own, 600, &mut found);
        assert_eq!(&found, b"others");
        drop((own, other, read_only, reader, a, b));
        nothing_is_left(&host);
    });
}

#[test]
fn each_bad_use_has_its_own_error_and_does_nothing() {
    bounded(|| {
        let mut host = Host::new();
        host.config.set_limit("region_bytes_max", 1 << 20).unwrap();
        host.start();
        let session = host.session();
        let own = RegionOptions::new()
            .key(KEY)
            .access(RegionAccess::READ | RegionAccess::ATOMIC)
            .create(&session, "r", 100)
            .unwrap();
        own.write(0, &pattern(100, 1)).unwrap();
        let at = host.address();
        assert_eq!(refusal(Region::open(&session, at, "none", KEY)), RegionRefusal::Unknown);
        assert_eq!(refusal(Region::open(&session, at, "r", OTHER_KEY)), RegionRefusal::WrongKey);
        let allowed = RegionAccess::READ | RegionAccess::ATOMIC;
        let no_access = RegionRefusal::NoAccess { asked: RegionAccess::ALL, allowed };
        assert_eq!(refusal(Region::open(&session, at, "r", KEY)), no_access);
        let taken = RegionOptions::new().create(&session, "r", 1);
        assert!(matches!(refusal(taken), RegionRefusal::NameTaken { .. }));
        let long = "x".repeat(65);
        let options = RegionOptions::new();
        assert_eq!(refusal(options.create(&session, &long, 1)), RegionRefusal::BadName { bytes: 65 });
        assert!(matches!(refusal(options.create(&session, "empty", 0)), RegionRefusal::BadSize { bytes: 0, .. }));
        let quota = RegionRefusal::Quota { asked: 1 << 20, used: 100, max: 1 << 20 };
        assert_eq!(refusal(options.create(&session, "big", 1 << 20)), quota);
        let reader = Region::open_for(&session, at, "r", KEY, RegionAccess::READ).unwrap();
        let denied = reader.write(0, b"x").unwrap_err();
        assert!(matches!(denied, RegionError::NoAccess { asked: RegionAccess::WRITE, .. }), "{denied}");
        assert!(matches!(reader.fetch_add(0, 1), Err(RegionError::NoAccess { asked: RegionAccess::ATOMIC, .. })));
        assert!(matches!(reader.recv_notification(), Err(RegionError::NotOwner { .. })));
        assert!(matches!(reader.revoke(None), Err(RegionError::NotOwner { .. })));
        for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 2), (99, 2)] {
            let refused = own.write(offset, &vec![9; len]).unwrap_err();
            let RegionError::OutOfBounds { offset: o, len: l, bytes: 100, .. } = refused else { panic!("{refused}") };
            assert_eq!((o, l), (offset, len as u64));
        }
        assert!(matches!(own.fetch_add(12, 1), Err(RegionError::Misaligned { offset: 12, .. })));
        assert!(matches!(own.load(1), Err(RegionError::Misaligned { offset: 1, .. })));
        assert!(matches!(own.fetch_add(96, 1), Err(RegionError::OutOfBounds { .. })), "it ends in the middle of it");
        let mut got = vec![0; 100];
        reader.read(0, &mut got).unwrap();
        assert_eq!(got, pattern(100, 1), "nothing was changed");
    });
}

#[test]
fn another_users_region_is_refused_unless_it_is_open_to_others() {
    if !is_root() {
        return;
    }
    bounded(|| {
        let host = open_host(|host| host.config.set_limit("region_bytes_max", 4 * 4096).unwrap());
        let socket = host.config.socket.as_path();
        let at = host.address();
        let (_session, own, shared) = as_user(USER, || {
            let session = Session::connect(socket).unwrap();
            let own = create(&session, "own", 8);
            let shared = RegionOptions::new().key(KEY).other_users(true).create(&session, "shared", 8).unwrap();
            let quota = RegionRefusal::Quota { asked: 4096, used: 16, max: 4096 };
            assert_eq!(refusal(RegionOptions::new().create(&session, "more", 4096)), quota);
            (session, own, shared)
        });
        as_user(OTHER, || {
            let session = Session::connect(socket).unwrap();
            assert_eq!(refusal(Region::open(&session, at, "own", KEY)), RegionRefusal::OtherUser { uid: USER });
            let revoked = Region::revoke_by_name(&session, "shared", KEY, None);
            assert_eq!(refusal(revoked), RegionRefusal::OtherUser { uid: USER });
            Region::open(&session, at, "shared", KEY).unwrap().fetch_add(0, 3).unwrap();
            RegionOptions::new().create(&session, "more", 4096).unwrap();
            let seen = raas::inspect::regions(Some(socket)).unwrap();
            assert_eq!(seen.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["shared"]);
        });
        assert_eq!((shared.load(0).unwrap(), own.load(0).unwrap()), (3, 0));
    });
}

#[test]
fn notifications_come_in_order_and_after_their_bytes() {
    bounded(|| {
        let host = Host::started();
        let (maker, user) = (host.session(), host.session());
        let own = create(&maker, "mailbox", 8 * 1024);
        let other = open(&host, &user, "mailbox");
        let early = own.recv_notification_timeout(Duration::from_millis(10));
        assert!(matches!(early, Err(RegionError::TimedOut { .. })));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for tag in 0..1024u32 {
                    other.write_notify(u64::from(tag) * 8, &u64::from(tag + 1).to_ne_bytes(), tag).unwrap();
                }
            });
            for tag in 0..512u32 {
                assert_eq!(own.recv_notification().unwrap(), tag);
                assert_eq!(own.load(u64::from(tag) * 8).unwrap(), u64::from(tag + 1));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for tag in 512..1024u32 {
                assert_eq!(runtime.block_on(own.notification()).unwrap(), tag);
                assert_eq!(own.load(u64::from(tag) * 8).unwrap(), u64::from(tag + 1));
            }
        });
        // As many as may wait, and then a typed refusal; the bytes are there all the same.
        let refused = (0..2000u64).map(|n| other.write_notify(0, &n.to_ne_bytes(), 1).err().map(|e| (n, e)));
        let (last, refused) = refused.flatten().next().unwrap();
        assert!(matches!(refused.refusal(), Some(RegionRefusal::NotificationsFull { max: 1365 })), "{refused}");
        assert_eq!(own.load(0).unwrap(), last);
        let waiting = std::thread::spawn(move || {
            loop {
                match own.recv_notification() {
                    Ok(1) => {}
                    other => return other,
                }
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        maker_dies(host);
        assert!(matches!(waiting.join().unwrap(), Err(RegionError::Session(_))));
    });
}

/// The daemon ends; whoever waits learns it.
fn maker_dies(mut host: Host) {
    host.stop();
}

// ---- several processes

/// Runs this very test in another process, as `role`.
fn child(test: &str, role: &str, host: &Host) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("regions::{test}"), "--nocapture", "--test-threads", "1"])
        .env(ROLE, role)
        .env("RAAS_SOCKET", &host.config.socket)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

fn here() -> std::net::IpAddr {
    "0.0.0.0".parse().unwrap()
}

/// A line of a child that begins with a word; the rest of it.
fn line_of(out: &mut impl BufRead, word: &str) -> String {
    let mut line = String::new();
    while out.read_line(&mut line).unwrap() > 0 {
        if let Some(at) = line.find(word) {
            return line[at + word.len()..].trim().to_owned();
        }
        line.clear();
    }
    panic!("the child did not say {word}");
}

/// Role: adds to a counter until the region is revoked. Says how often that was done, and how often it may have been.
fn adds_until_revoked() {
    let session = Session::global().unwrap();
    let region = Region::open(&session, here(), "sum", KEY).unwrap();
    println!("ready");
    let mut done = 0u64;
    let may_have_landed = loop {
        match region.fetch_add(0, 1) {
            Ok(_) => {
                done += 1;
                if done == 1 {
                    println!("begun");
                }
            }
            Err(RegionError::Revoked { held: 1, current: 2, may_have_landed, .. }) => break may_have_landed,
            Err(e) => panic!("{e}"),
        }
    };
    assert!(matches!(region.store(0, 0), Err(RegionError::Revoked { may_have_landed: false, .. })));
    println!("added {done} {}", u64::from(may_have_landed));
}

#[test]
fn a_revoke_with_accesses_in_flight_loses_none_and_lets_none_in() {
    if std::env::var_os(ROLE).is_some() {
        return adds_until_revoked();
    }
    bounded(|| {
        let host = Host::started();
        let session = host.session();
        let own = create(&session, "sum", 3 << 20);
        own.write(4096, &pattern(1 << 20, 9)).unwrap();
        let test = "a_revoke_with_accesses_in_flight_loses_none_and_lets_none_in";
        let mut adders: Vec<_> = (0..3).map(|_| child(test, "adder", &host)).collect();
        let mut outs: Vec<_> = adders.iter_mut().map(|a| BufReader::new(a.stdout.take().unwrap())).collect();
        outs.iter_mut().for_each(|out| drop(line_of(out, "ready")));
        let is_over = AtomicBool::new(false);
        let (own_adds, seen) = std::thread::scope(|scope| {
            let adding = scope.spawn(|| {
                let mut done = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    own.fetch_add(0, 1).unwrap();
                    done += 1;
                }
                done
            });
            outs.iter_mut().for_each(|out| drop(line_of(out, "begun")));
            assert_eq!(own.revoke(Some(OTHER_KEY)).unwrap(), 2);
            is_over.store(true, Ordering::Relaxed);
            (adding.join().unwrap(), own.load(0).unwrap())
        });
        let (mut done, mut unknown) = (own_adds, 0);
        for out in &mut outs {
            let line = line_of(out, "added ");
            let (ok, may) = line.split_once(' ').unwrap();
            assert!(ok.parse::<u64>().unwrap() > 0, "it was in flight");
            done += ok.parse::<u64>().unwrap();
            unknown += may.parse::<u64>().unwrap();
        }
        assert!((done..=done + unknown).contains(&seen), "{seen} is not {done} and at most {unknown} more");
        assert_eq!(own.load(0).unwrap(), seen, "nothing came later");
        let mut got = vec![0; 1 << 20];
        own.read(4096, &mut got).unwrap();
        assert!(got == pattern(1 << 20, 9), "the bytes moved");
        assert!(adders.iter_mut().all(|adder| adder.wait().unwrap().success()));
        assert_eq!(refusal(Region::open(&session, host.address(), "sum", KEY)), RegionRefusal::WrongKey);
        let again = Region::open(&session, host.address(), "sum", OTHER_KEY).unwrap();
        assert_eq!((again.epoch(), again.load(0).unwrap(), own.epoch()), (2, seen, 2));
        assert_eq!(again.fetch_add(0, 1).unwrap(), seen);
        assert_eq!(own.load(0).unwrap(), seen + 1);
    });
}

/// A program that looks at no stamp, and writes on into what it has mapped.
#[test]
fn a_revoke_holds_against_a_program_that_does_not_heed_it() {
    bounded(|| {
        let host = Host::started();
        let session = host.session();
        let own = create(&session, "r", 1 << 16);
        let mut raw = RawClient::attached(&host);
        let (host_ip, access) = (host.address(), RegionAccess::ALL);
        raw.send(&Request::RegionOpen {
            request: 1,
            host: host_ip,
            name: "r".into(),
            key: KEY,
            access,
            lease: None,
            leased_lane: false,
        });
        let Some(Reply::RegionOpened { result: Ok(opened), .. }) = raw.next() else { panic!() };
        assert!(matches!(opened.path, RegionPath::Local { .. }));
        let fds: Vec<OwnedFd> = raw.take_fds();
        let memory = fds.into_iter().nth(3).unwrap();
        let memory = RegionMemory::accept(memory, 1 << 16, true).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u8;
                while !is_over.load(Ordering::Relaxed) {
                    n = n.wrapping_add(1);
                    memory.write(0, &[n; 1 << 16]).unwrap();
                }
            });
            eventually("it writes", || own.load(8).unwrap() != 0);
            own.revoke(None).unwrap();
            let mut before = vec![0; 1 << 16];
            own.read(0, &mut before).unwrap();
            for _ in 0..200 {
                let mut after = vec![0; 1 << 16];
                own.read(0, &mut after).unwrap();
                if after != before {
                    is_over.store(true, Ordering::Relaxed);
                }
                assert!(after == before, "a write of a revoked handle reached the region");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

/// Role: makes two regions, one of which stays, and waits to be killed.
fn owns_until_killed() {
    let session = Session::global().unwrap();
    let _goes = create(&session, "goes", 4096);
    let _stays = RegionOptions::new().key(KEY).outlives(true).create(&session, "stays", 4096).unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn a_killed_owner_takes_its_regions_along_but_those_that_outlive_it() {
    if std::env::var_os(ROLE).is_some() {
        return owns_until_killed();
    }
    bounded(|| {
        let host = Host::started();
        let session = host.session();
        let test = "a_killed_owner_takes_its_regions_along_but_those_that_outlive_it";
        let mut owner = child(test, "owner", &host);
        line_of(&mut BufReader::new(owner.stdout.take().unwrap()), "ready");
        let (goes, stays) = (open(&host, &session, "goes"), open(&host, &session, "stays"));
        goes.fetch_add(0, 1).unwrap();
        stays.fetch_add(0, 1).unwrap();
        owner.kill().unwrap();
        owner.wait().unwrap();
        eventually("the region ends", || goes.load(0).is_err());
        let refused = goes.fetch_add(0, 1).unwrap_err();
        assert!(matches!(refused, RegionError::OwnerGone { may_have_landed: false, .. }), "{refused}");
        assert_eq!(refusal(Region::open(&session, host.address(), "goes", KEY)), RegionRefusal::Unknown);
        let again = open(&host, &session, "stays");
        assert_eq!((again.load(0).unwrap(), stays.fetch_add(0, 1).unwrap()), (1, 1));
        let told = again.write_notify(8, b"x", 1).unwrap_err();
        assert!(matches!(told, RegionError::OwnerGone { .. }), "{told}");
        assert_eq!(Region::revoke_by_name(&session, "stays", KEY, None).unwrap(), 2);
        for handle in [&again, &stays] {
            let over = handle.load(0).unwrap_err();
            assert!(matches!(over, RegionError::Revoked { held: 1, current: 2, .. }), "{over}");
        }
        nothing_is_left(&host);
        // The name is free.
        create(&session, "goes", 8);
    });
}

#[test]
fn an_owner_that_does_not_move_loses_its_region() {
    bounded(|| {
        let mut host = Host::new();
        host.config.limits.region_move_ms = 100;
        host.start();
        let mut raw = RawClient::attached(&host);
        let spec = control::RegionSpec {
            name: "r".into(),
            bytes: 8,
            access: RegionAccess::ALL,
            key: KEY,
            huge_pages: false,
            outlives: true,
            other_users: false,
            single_writer: false,
        };
        raw.send(&Request::RegionCreate { request: 1, spec });
        assert!(matches!(raw.next(), Some(Reply::RegionOpened { result: Ok(_), .. })));
        let session = host.session();
        let other = open(&host, &session, "r");
        let revoked = Region::revoke_by_name(&session, "r", KEY, None);
        assert!(matches!(revoked, Err(RegionError::OwnerGone { .. })), "{revoked:?}");
        assert!(matches!(other.load(0), Err(RegionError::Revoked { .. })));
        nothing_is_left(&host);
        crate::control_socket::check_service(&host);
    });
}

#[test]
fn whatever_a_program_held_is_free_when_it_is_gone() {
    bounded(|| {
        let host = Host::started();
        let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let keeper = host.session();
        let _kept = create(&keeper, "kept", 4096);
        host.stat();
        let before = fds();
        for _ in 0..3 {
            let session = host.session();
            let held: Vec<_> = (0..50).map(|n| create(&session, &format!("r{n}"), 4096)).collect();
            let opened: Vec<_> = (0..50).map(|n| open(&host, &session, &format!("r{n}"))).collect();
            let more: Vec<_> = (0..50).map(|_| open(&host, &session, "kept")).collect();
            let rows = raas::inspect::regions(Some(&host.config.socket)).unwrap();
            assert_eq!((rows.len(), rows[0].opens), (51, 50));
            drop((held, opened, more, session));
        }
        eventually("only what is kept is there", || {
            let rows = raas::inspect::regions(Some(&host.config.socket)).unwrap();
            rows.len() == 1 && rows[0].opens == 0
        });
        eventually("descriptors are closed", || fds() <= before);
    });
}

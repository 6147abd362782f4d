//! Regions with one writer at a time: take-overs between hosts and on one, while readers stay.

use std::sync::Barrier;

use raas::{Completion, Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

const KEY: RegionKey = RegionKey::new([9; 16]);

fn log(owner: &Session, bytes: u64) -> Region {
    RegionOptions::new().key(KEY).single_writer(true).create(owner, "log", bytes).unwrap()
}

fn take(user: &Session, host: &Host, term: u64) -> Result<(Region, u64), RegionError> {
    Region::take_over(user, host.address(), "log", KEY, term)
}

/// What a fenced writer hears. Its queue pair may break before its daemon knows why; then the operation that was on its
/// way has an unknown outcome, and the next one is told.
fn fenced(writer: &Region, value: u64) -> RegionError {
    let told = (0..2).map(|_| writer.store(0, value).unwrap_err());
    let mut known = told.filter(|error| !matches!(error, RegionError::OutcomeUnknown { .. }));
    known.next().expect("it is told the second time")
}

fn is_superseded(error: &RegionError, by: u64) -> bool {
    matches!(error, RegionError::Superseded { term, .. } if *term == by)
}

fn row(host: &Host) -> control::RegionRow {
    raas::inspect::regions(Some(&host.config.socket)).unwrap().remove(0)
}

#[test]
fn the_next_writer_fences_the_one_before_and_readers_stay() {
    bounded(|| {
        let (a, b, c) = (Host::started(), Host::started(), Host::started());
        let (owner, first, second) = (a.session(), b.session(), c.session());
        let own = log(&owner, 1 << 20);
        assert_eq!(
            Region::open(&first, a.address(), "log", KEY).unwrap_err().refusal(),
            Some(&RegionRefusal::SingleWriter)
        );
        let reader = Region::open_for(&second, a.address(), "log", KEY, RegionAccess::READ).unwrap();
        let (writer, last) = take(&first, &a, 5).unwrap();
        assert_eq!((last, writer.access()), (0, RegionAccess::ALL));
        let data = pattern(1 << 20, 3);
        writer.write(0, &data).unwrap();
        assert_eq!(writer.compare_swap(8, u64::from_ne_bytes(data[8..16].try_into().unwrap()), 1).unwrap(), {
            u64::from_ne_bytes(data[8..16].try_into().unwrap())
        });
        writer.write_notify(16, b"notified", 7).unwrap();
        assert_eq!((own.recv_notification().unwrap(), reader.load(8).unwrap(), own.load(8).unwrap()), (7, 1, 1));
        assert_eq!((row(&a).term, row(&a).writer, row(&a).single_writer), (5, Some(b.address().to_string()), true));
        // Terms only grow.
        for term in [0, 4, 5] {
            assert!(is_superseded(&take(&second, &a, term).unwrap_err(), 5), "{term}");
        }
        writer.store(8, 2).unwrap();
        let (next, last) = take(&second, &a, 6).unwrap();
        assert_eq!((last, reader.load(8).unwrap()), (5, 2));
        next.store(8, 3).unwrap();
        let over = fenced(&writer, 4);
        assert!(is_superseded(&over, 6), "{over}");
        assert_eq!((reader.load(8).unwrap(), own.load(8).unwrap()), (3, 3));
        assert!(is_superseded(&writer.load(8).unwrap_err(), 6), "its lane carried its reads too");
        drop((writer, next));
        eventually("no leased lane is left", || [&a, &b, &c].iter().all(|host| host.counter("leased_lanes") == 0));
        assert_eq!((row(&a).term, row(&a).writer), (6, None));
        let (again, last) = take(&first, &a, 7).unwrap();
        assert_eq!((last, again.load(8).unwrap()), (6, 3));
        assert_eq!([&a, &b, &c].map(|host| host.counter("lane_failures")), [0; 3]);
    });
}

#[test]
fn nothing_lands_after_a_take_over_while_the_one_before_writes() {
    bounded(|| {
        let (a, b, c) = (Host::started(), Host::started(), Host::started());
        let (owner, users) = (a.session(), [b.session(), c.session()]);
        let own = log(&owner, 4096);
        let mut term = 0;
        for round in 0..10 {
            let (before, after) = (&users[round % 2], &users[(round + 1) % 2]);
            term += 1;
            let writer = take(before, &a, term).unwrap().0;
            let began = Barrier::new(2);
            std::thread::scope(|scope| {
                let writes = scope.spawn(|| {
                    writer.store(0, 0).unwrap();
                    began.wait();
                    (1..).map_while(|n| writer.store(0, n).map(|()| n).ok()).last().unwrap_or(0)
                });
                began.wait();
                term += 1;
                let (next, last) = take(after, &a, term).unwrap();
                assert_eq!(last, term - 1);
                let found = next.load(0).unwrap();
                let done = writes.join().unwrap();
                // One store may have landed whose end its program did not see.
                assert!(found == done || found == done + 1, "round {round}: {done} done, {found} found");
                assert_eq!((own.load(0).unwrap(), next.load(0).unwrap()), (found, found), "round {round}");
            });
        }
    });
}

#[test]
fn on_its_own_host_a_writer_has_nothing_mapped_and_is_fenced_as_well() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user, far) = (a.session(), a.session(), b.session());
        let own = log(&owner, 1 << 20);
        let reader = Region::open_for(&user, a.address(), "log", KEY, RegionAccess::READ).unwrap();
        let (writer, _) = take(&user, &a, 1).unwrap();
        assert!(!writer.is_here() && writer.map(0, 8).is_err() && writer.slice(0, 8).is_err());
        assert_eq!(row(&a).writer, Some(format!("pid {}", std::process::id())));
        let data = pattern(300_000, 1);
        writer.write(8, &data).unwrap();
        let mut found = vec![0; data.len()];
        reader.read(8, &mut found).unwrap();
        assert!(found == data);
        writer.read(8, &mut found).unwrap();
        assert!(found == data);
        assert_eq!((writer.fetch_add(0, 2).unwrap(), own.load(0).unwrap()), (0, 2));
        writer.write_notify(0, &9u64.to_ne_bytes(), 4).unwrap();
        assert_eq!((own.recv_notification().unwrap(), own.load(0).unwrap()), (4, 9));
        // From a region of this program, without a copy through the queue.
        let source = RegionOptions::new().create(&user, "source", 1 << 20).unwrap();
        source.write(0, &pattern(1 << 20, 2)).unwrap();
        writer.write_from(0, &[source.slice(0, 1 << 20).unwrap()], Completion::Visible).unwrap();
        let mut whole = vec![0; 1 << 20];
        own.read(0, &mut whole).unwrap();
        assert!(whole == pattern(1 << 20, 2));
        // The owner writes by a handle that is fenced as others are.
        let (by_owner, last) = take(&owner, &a, 2).unwrap();
        assert_eq!(last, 1);
        assert!(is_superseded(&writer.store(0, 1).unwrap_err(), 2));
        by_owner.store(0, 3).unwrap();
        let (next, last) = take(&far, &a, 3).unwrap();
        assert_eq!((last, next.load(0).unwrap()), (2, 3));
        assert!(is_superseded(&by_owner.store(0, 4).unwrap_err(), 3));
        assert_eq!(own.load(0).unwrap(), 3);
        let (last_one, _) = take(&user, &a, 4).unwrap();
        let over = fenced(&next, 5);
        assert!(is_superseded(&over, 4), "{over:?}");
        last_one.store(0, 6).unwrap();
        // Who ends gives it up.
        drop((last_one, own));
        eventually("no handle is left", || a.counter("region_handles") == 0);
    });
}

#[test]
fn the_owners_next_daemon_knows_no_writer_and_no_term() {
    bounded(|| {
        let (mut a, b) = (Host::started_patient(), Host::started_patient());
        let (owner, user) = (a.followed(), b.followed());
        let own = log(&owner, 4096);
        let (writer, _) = take(&user, &a, 9).unwrap();
        writer.store(0, 1).unwrap();
        a.hand_over();
        a.start();
        eventually("the region is there again", || own.load(0).is_ok_and(|found| found == 1));
        let error = writer.store(0, 2).unwrap_err();
        let begin = std::time::Instant::now();
        // Until its own daemon has a link to the next one.
        let (next, last) = loop {
            match take(&user, &a, 3) {
                Ok(taken) => break taken,
                Err(why) => assert!(begin.elapsed() < PATIENCE, "{error} {why}"),
            }
        };
        assert_eq!((last, next.load(0).unwrap()), (0, 1), "the term before is in what the writers wrote");
        assert!(writer.store(0, 2).is_err());
        next.store(0, 3).unwrap();
        assert_eq!(own.load(0).unwrap(), 3);
    });
}

#[test]
fn the_next_program_owns_a_region_that_outlived_the_one_before() {
    bounded(|| {
        let (mut a, b) = (Host::started_patient(), Host::started_patient());
        let (first, next, user) = (a.session(), a.followed(), b.followed());
        let options = RegionOptions::new().key(KEY).single_writer(true).outlives(true);
        let own = options.create(&first, "log", 4096).unwrap();
        let id = own.id();
        own.store(0, 1).unwrap();
        let refusal = |result: Result<Region, RegionError>| result.unwrap_err().refusal().cloned();
        let pid = std::process::id();
        assert_eq!(refusal(options.adopt(&next, "log", 4096, KEY)), Some(RegionRefusal::Owned { pid }));
        let (writer, _) = take(&user, &a, 1).unwrap();
        drop((own, first));
        eventually("nobody owns it", || row(&a).owner_pid.is_none());
        assert_eq!(refusal(options.adopt(&next, "log", 8192, KEY)), Some(RegionRefusal::OtherSettings));
        let own = options.adopt(&next, "log", 4096, KEY).unwrap();
        assert_eq!((own.id(), own.is_owner(), own.load(0).unwrap(), row(&a).owner_pid), (id, true, 1, Some(pid)));
        // It writes what it has mapped, is told, and the writer stays.
        own.store(8, 2).unwrap();
        writer.write_notify(16, &3u64.to_ne_bytes(), 4).unwrap();
        assert_eq!((own.recv_notification().unwrap(), own.load(16).unwrap(), writer.load(8).unwrap()), (4, 3, 2));
        // And brings it to the next daemon.
        a.hand_over();
        a.start();
        eventually("the region is there again", || own.load(16).is_ok_and(|found| found == 3));
        eventually("it is the owner's", || {
            let rows = raas::inspect::regions(Some(&a.config.socket)).unwrap();
            rows.first().is_some_and(|row| row.owner_pid == Some(pid))
        });
        assert_eq!(own.id(), id);
    });
}

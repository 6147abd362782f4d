//! Regions of this host as local buffers of operations on regions of other hosts: no library copies the bytes.

use std::sync::atomic::{AtomicBool, Ordering};

use raas::{Batch, Completion, Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionSlice, Session};

use crate::hosts::{Host, bounded, eventually, pattern};

const KEY: RegionKey = RegionKey::new([7; 16]);
const BYTES: u64 = 1 << 20;

/// A region of host `a`, open on host `b`, which has one of its own.
struct Both {
    a: Host,
    b: Host,
    user: Session,
    _owner: Session,
    own: Region,
    far: Region,
    near: Region,
}

impl Both {
    fn new() -> Self {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let own = RegionOptions::new().key(KEY).create(&owner, "far", BYTES).unwrap();
        let far = Region::open(&user, a.address(), "far", KEY).unwrap();
        let near = RegionOptions::new().key(KEY).create(&user, "near", BYTES).unwrap();
        Self { a, b, user, _owner: owner, own, far, near }
    }

    fn slices(&self, parts: &[(u64, u64)]) -> Vec<RegionSlice> {
        parts.iter().map(|&(offset, len)| self.near.slice(offset, len).unwrap()).collect()
    }

    fn verbs(&self) -> (u64, u64, u64) {
        let apps = self.b.stat().apps;
        apps.iter().fold((0, 0, 0), |(r, w, a), app| (r + app.reads, w + app.writes, a + app.atomics))
    }
}

fn bytes_of(region: &Region, offset: u64, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    region.read(offset, &mut got).unwrap();
    got
}

#[test]
fn bytes_go_straight_between_regions_for_one_verb() {
    bounded(|| {
        let both = Both::new();
        let data = pattern(600_000, 9);
        both.own.write(1000, &data).unwrap();
        let places = both.slices(&[(16, 100_000), (200_000, 1), (300_003, 499_999)]);
        both.far.read_into(1000, &places).unwrap();
        assert_eq!(both.verbs(), (1, 0, 0));
        let got: Vec<u8> = places.iter().flat_map(|s| bytes_of(&both.near, s.offset(), s.len() as usize)).collect();
        assert!(got == data, "the bytes of all parts, in order");
        both.near.write(16, &pattern(600_000, 4)).unwrap();
        for completion in [Completion::Posted, Completion::Acked, Completion::Visible] {
            both.own.write(0, &[0; 8]).unwrap();
            both.far.write_from(0, &both.slices(&[(16, 600_000)]), completion).unwrap();
            assert!(bytes_of(&both.own, 0, 600_000) == pattern(600_000, 4));
        }
        assert_eq!(both.verbs(), (1, 3, 0));
        // In a chain beside others: read, change, write back.
        let mut batch = Batch::new();
        batch.read_into(&both.far, 8, &both.slices(&[(0, 0), (64, 8)]));
        batch.fence();
        batch.write_from(&both.far, 64, &both.slices(&[(64, 8)]), Completion::Visible);
        let add = batch.fetch_add(&both.far, 0, 0);
        let ended = batch.run().unwrap();
        ended.check().unwrap();
        assert_eq!(ended.value(add).unwrap(), both.own.load(0).unwrap());
        assert_eq!(both.own.load(64).unwrap(), both.own.load(8).unwrap());
        // Between regions of one host: no verb.
        let before = both.verbs();
        both.near.read_into(500_000, &both.slices(&[(0, 300), (5000, 9000)])).unwrap();
        assert!(bytes_of(&both.near, 5000, 9000) == bytes_of(&both.near, 500_300, 9000));
        both.near.write_from(700_000, &both.slices(&[(5000, 9000)]), Completion::Visible).unwrap();
        assert!(bytes_of(&both.near, 5000, 9000) == bytes_of(&both.near, 700_000, 9000));
        assert_eq!(both.verbs(), before);
    });
}

#[test]
fn a_local_buffer_that_may_not_be_is_refused_before_anything_is_done() {
    bounded(|| {
        let both = Both::new();
        let other_session = both.b.session();
        let elsewhere = RegionOptions::new().key(KEY).create(&other_session, "elsewhere", 4096).unwrap();
        let e = both.far.read_into(0, &[elsewhere.slice(0, 8).unwrap()]).unwrap_err();
        assert!(matches!(e, RegionError::NotLocal { .. }), "{e}");
        let e = both.far.slice(0, 8).unwrap_err();
        assert!(matches!(e, RegionError::NotLocal { .. }), "{e}");
        let e = both.near.slice(BYTES - 4, 8).unwrap_err();
        assert!(matches!(e, RegionError::OutOfBounds { len: 8, .. }), "{e}");
        let e = both.far.read_into(0, &both.slices(&[(0, 8); 17])).unwrap_err();
        assert!(matches!(e, RegionError::LocalTooLong { count: 17, count_max: 16, .. }), "{e}");
        let e = both.far.read_into(BYTES - 8, &both.slices(&[(0, 4), (0, 5)])).unwrap_err();
        assert!(matches!(e, RegionError::OutOfBounds { len: 9, .. }), "{e}");
        let e = both.far.write_from(0, &both.slices(&[(0, 8)]), Completion::Persistent).unwrap_err();
        assert!(matches!(e, RegionError::NoPersistence), "{e}");
        let reader = Region::open_for(&both.user, both.b.address(), "elsewhere", KEY, RegionAccess::READ).unwrap();
        let e = both.far.read_into(0, &[reader.slice(0, 8).unwrap()]).unwrap_err();
        assert!(matches!(e, RegionError::NoAccess { asked: RegionAccess::WRITE, .. }), "{e}");
        assert_eq!(both.verbs(), (0, 0, 0));
        elsewhere.store(0, 77).unwrap();
        both.far.write_from(8, &[reader.slice(0, 8).unwrap()], Completion::Visible).unwrap();
        assert_eq!(both.own.load(8).unwrap(), 77, "what may be read may be written from");
        // A revoke of the region takes it from the program that opened it.
        let slice = reader.slice(0, 8).unwrap();
        elsewhere.revoke(None).unwrap();
        let e = both.far.write_from(8, &[slice], Completion::Visible).unwrap_err();
        assert!(matches!(e, RegionError::Revoked { may_have_landed: false, .. }), "{e}");
    });
}

#[test]
fn a_revoke_of_the_local_region_loses_nothing_that_is_read_into_it() {
    bounded(|| {
        let both = Both::new();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut rounds = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    rounds += 1;
                    both.own.write(0, &rounds.to_ne_bytes().repeat(25_000)).unwrap();
                    let slice = both.near.slice(8, 200_000).unwrap();
                    both.far.read_into(0, &[slice]).unwrap();
                    let got = bytes_of(&both.near, 8, 200_000);
                    assert!(got == rounds.to_ne_bytes().repeat(25_000), "round {rounds}");
                }
                rounds
            });
            for epoch in 2..22 {
                assert_eq!(both.near.revoke(None).unwrap(), epoch);
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
        eventually("memory that was left is not registered", || registered_in(&both.b) == Some(1));
        drop(both.near);
        eventually("nor what nobody has", || registered_in(&both.b) == Some(0));
    });
}

fn registered_in(host: &Host) -> Option<u64> {
    host.stat().counters.iter().find(|c| c.0 == "regions_local").map(|c| c.1)
}

#[test]
fn operations_keep_their_local_buffer_when_nobody_waits() {
    bounded(|| {
        let Both { a: _a, b, user, own, far, near, .. } = Both::new();
        near.write(0, &pattern(100_000, 3)).unwrap();
        let mut batch = Batch::new();
        batch.write_from(&far, 0, &[near.slice(0, 100_000).unwrap()], Completion::Acked);
        batch.fence();
        batch.swap(&far, BYTES - 8, 1);
        drop(batch.submit().unwrap());
        drop((near, far));
        eventually("it is done", || own.load(BYTES - 8).unwrap() == 1);
        assert!(bytes_of(&own, 0, 100_000) == pattern(100_000, 3));
        let regions = || raas::inspect::regions(Some(&b.config.socket)).unwrap().len();
        eventually("then the region ends", || regions() == 0 && registered_in(&b) == Some(0));
        drop(user);
    });
}

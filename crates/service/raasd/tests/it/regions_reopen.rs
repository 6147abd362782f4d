//! Handles to regions of other programs and hosts over the death of a daemon: they go on with the same region, and not
//! with another one, nor with one that was revoked (docs/operate/restart.md).

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use raas::{Batch, Region, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::hosts::{Host, bounded, eventually};

const KEY: RegionKey = RegionKey::new([5; 16]);
const NEW_KEY: RegionKey = RegionKey::new([6; 16]);
const BYTES: u64 = 64 << 10;

fn create(session: &Session, name: &str) -> Region {
    RegionOptions::new().key(KEY).create(session, name, BYTES).unwrap()
}

fn open(session: &Session, host: &Host, name: &str) -> Region {
    Region::open(session, host.address(), name, KEY).unwrap()
}

fn is_revoked(error: &RegionError) -> bool {
    matches!(error, RegionError::Revoked { may_have_landed: false, .. })
}

#[test]
fn handles_go_on_when_both_daemons_die() {
    bounded(|| {
        let (mut a, mut b) = (Host::started_patient(), Host::started_patient());
        let (near, far) = (a.followed(), b.followed());
        let own = create(&near, "own");
        let there = open(&far, &a, "own");
        for round in 0..3 {
            assert_eq!(there.fetch_add(0, 1).unwrap(), round);
            a.hand_over();
            b.hand_over();
            // Asked while there is no daemon at all.
            let asked = std::thread::spawn({
                let there = there.clone();
                move || there.load(0)
            });
            a.start();
            b.start();
            assert_eq!(asked.join().unwrap().unwrap(), round + 1);
            assert_eq!((there.epoch(), own.epoch()), (round + 2, round + 2));
        }
        assert_eq!(own.load(0).unwrap(), 3);
    });
}

#[test]
fn a_revoked_handle_stays_revoked_over_a_death_and_one_of_after_it_goes_on() {
    bounded(|| {
        let (mut a, mut b) = (Host::started_patient(), Host::started_patient());
        let (near, other, far) = (a.followed(), a.followed(), b.followed());
        let own = create(&near, "own");
        let old = [open(&other, &a, "own"), open(&far, &a, "own")];
        // The key stays, so the key alone would let the handles in.
        own.revoke(None).unwrap();
        let new = [open(&other, &a, "own"), open(&far, &a, "own")];
        a.hand_over();
        a.start();
        for (old, new) in old.iter().zip(&new) {
            let error = old.fetch_add(0, 1).unwrap_err();
            assert!(is_revoked(&error), "{error}");
            new.fetch_add(0, 1).unwrap();
        }
        b.hand_over();
        b.start();
        assert!(is_revoked(&old[1].load(0).unwrap_err()));
        assert_eq!(new[1].load(0).unwrap(), 2);
        assert_eq!(own.load(0).unwrap(), 2);
    });
}

#[test]
fn a_revoke_after_the_death_ends_what_has_not_gone_on() {
    bounded(|| {
        let (mut a, b) = (Host::started_patient(), Host::started_patient());
        let (near, other, far) = (a.followed(), a.followed(), b.followed());
        let own = create(&near, "own");
        let handles = [open(&other, &a, "own"), open(&far, &a, "own")];
        a.hand_over();
        a.start();
        eventually("its owner has it", || own.epoch() == 2);
        // Nobody had used them since the death, so nothing told them of the revoke.
        own.revoke(None).unwrap();
        for handle in &handles {
            for _ in 0..2 {
                let error = handle.store(0, 1).unwrap_err();
                assert!(is_revoked(&error), "{error}");
            }
        }
        let handle = open(&other, &a, "own");
        a.hand_over();
        a.start();
        eventually("its owner has it", || own.epoch() == 4);
        own.revoke(Some(NEW_KEY)).unwrap();
        let error = handle.load(0).unwrap_err();
        assert!(matches!(error.refusal(), Some(RegionRefusal::WrongKey)), "{error}");
        assert_eq!(own.load(0).unwrap(), 0);
    });
}

#[test]
fn another_region_of_the_same_name_and_key_is_not_taken_for_it() {
    bounded(|| {
        let (mut a, b) = (Host::started_patient(), Host::started_patient());
        let (near, other, far) = (a.followed(), a.followed(), b.followed());
        let own = create(&near, "own");
        own.store(0, 1).unwrap();
        let handles = [open(&other, &a, "own"), open(&far, &a, "own")];
        a.hand_over();
        // It ends while there is no daemon, and its maker makes it anew, of the same size.
        drop(own);
        a.start();
        let next = create(&near, "own");
        next.store(0, 2).unwrap();
        for handle in &handles {
            for _ in 0..2 {
                let error = handle.load(0).unwrap_err();
                assert!(matches!(error, RegionError::OwnerGone { may_have_landed: false, .. }), "{error}");
            }
        }
        assert_eq!(open(&far, &a, "own").load(0).unwrap(), 2);
    });
}

#[test]
fn a_handle_whose_region_does_not_come_back_ends_as_it_broke() {
    bounded(|| {
        let (mut a, b) = (Host::started_patient(), Host::started_patient());
        let (near, other) = (a.followed(), a.followed());
        let far = Session::builder().socket(&b.config.socket).background(true);
        let far = far.daemon_wait(std::time::Duration::from_millis(500)).connect().unwrap();
        let own = create(&near, "own");
        let there = open(&far, &a, "own");
        a.hand_over();
        drop((own, near));
        a.start();
        eventually("a program has the next daemon", || other.is_usable());
        let mut batch = Batch::new();
        let read = batch.read(&there, 0, 8);
        let ended = batch.run().unwrap();
        assert!(ended.error(read).is_some());
        // It says so at once from then on.
        let error = there.load(0).unwrap_err();
        assert!(
            matches!(error, RegionError::DaemonLost { may_have_landed: false, .. } | RegionError::Refused { .. }),
            "{error}"
        );
    });
}

/// What is polled, and what is awaited, does not wait for the region when it is submitted.
#[test]
fn batches_that_are_polled_and_awaited_go_on_in_their_order() {
    bounded(|| {
        let (mut a, mut b) = (Host::started_patient(), Host::started_patient());
        let (near, other, far) = (a.followed(), a.followed(), b.followed());
        let own = create(&near, "own");
        let [here, there] = [open(&other, &a, "own"), open(&far, &a, "own")];
        own.store(0, 100).unwrap();
        a.hand_over();
        b.hand_over();
        eventually("the deaths are seen", || !other.is_usable() && !far.is_usable());
        let submit = |region: &Region| {
            let mut batch = Batch::new();
            batch.fetch_add(region, 0, 1);
            batch.submit().unwrap()
        };
        let mut polled: Vec<_> = (0..4).map(|_| submit(&there)).collect();
        let waited = submit(&there);
        let dropped = submit(&there);
        let mut of_here = submit(&here);
        assert!(polled.iter_mut().chain([&mut of_here]).all(|one| one.try_take().is_none()), "there is no daemon");
        drop(dropped);
        let awaited = submit(&there);
        a.start();
        b.start();
        let mut found = Vec::new();
        for mut pending in polled {
            eventually("it has ended", || {
                found.extend(pending.try_take().map(|ended| ended.value(0).unwrap()));
                pending.is_ended() && pending.try_take().is_none()
            });
        }
        found.push(waited.wait().unwrap().value(0).unwrap());
        let mut awaited = pin!(awaited);
        eventually("it has ended", || match awaited.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => {
                found.push(ended.unwrap().value(0).unwrap());
                true
            }
            Poll::Pending => false,
        });
        let value = of_here.wait_timeout(crate::hosts::PATIENCE).unwrap().unwrap().value(0).unwrap();
        assert!(found.is_sorted() && !found.contains(&value), "{found:?}, {value}");
        assert_eq!((found.len(), own.load(0).unwrap()), (6, 108), "each was done once");
    });
}

#[test]
fn a_handle_goes_on_when_the_next_daemon_dies_too_before_it_is_there() {
    bounded(|| {
        let (a, mut b) = (Host::started_patient(), Host::started_patient());
        let (near, far) = (a.followed(), b.followed());
        let own = create(&near, "own");
        let others = [open(&far, &a, "own"), open(&far, &a, "own")];
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for other in &others {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        if let Err(error) = other.fetch_add(0, 1) {
                            assert!(matches!(error, RegionError::OutcomeUnknown { .. }), "{error}");
                        }
                    }
                });
            }
            // Between no death and after handles go on: some deaths come while they do.
            for death in 0..40 {
                std::thread::sleep(std::time::Duration::from_millis(death % 20 * 8));
                b.hand_over();
                b.start();
            }
            let before = own.load(0).unwrap();
            eventually("they are used again", || own.load(0).unwrap() > before + 10);
            is_over.store(true, Ordering::SeqCst);
        });
    });
}

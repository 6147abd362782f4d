//! A program that writes many regions of a host, each with one writer, by one leased lane.

use std::sync::atomic::{AtomicBool, Ordering};

use raas::{Region, RegionError, RegionKey, RegionOptions, Session};

use crate::hosts::{Host, bounded, eventually};

const KEY: RegionKey = RegionKey::new([9; 16]);
const BYTES: u64 = 4096;

fn own(owner: &Session, partitions: u64) -> Vec<Region> {
    let options = RegionOptions::new().key(KEY).single_writer(true);
    (0..partitions).map(|n| options.create(owner, &format!("p{n}"), BYTES).unwrap()).collect()
}

fn take(user: &Session, host: &Host, partition: u64, term: u64) -> Result<Region, RegionError> {
    Region::take_over(user, host.address(), &format!("p{partition}"), KEY, term).map(|(region, _)| region)
}

#[test]
fn a_program_writes_a_thousand_regions_by_one_lane() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let own = own(&owner, 1000);
        let writers: Vec<Region> = (0..1000).map(|n| take(&user, &a, n, 1).unwrap()).collect();
        assert_eq!((a.counter("leased_lanes"), b.counter("leased_lanes")), (1, 1));
        for (n, writer) in (1..).zip(&writers) {
            writer.store(8, n).unwrap();
        }
        for (n, region) in (1..).zip(&own) {
            assert_eq!(region.load(8).unwrap(), n);
        }
        // It has one operation queue too, of the 64 that a program may have.
        assert_eq!((a.counter("lane_resets"), b.counter("lane_resets")), (0, 0));
        let mut left = writers.into_iter();
        left.nth(998);
        eventually("the others are closed", || b.counter("region_handles") == 1);
        assert_eq!((a.counter("leased_lanes"), b.counter("leased_lanes")), (1, 1), "one is left on it");
        drop(left);
        eventually("no leased lane is left", || a.counter("leased_lanes") + b.counter("leased_lanes") == 0);
        let again = take(&user, &a, 7, 2).unwrap();
        assert_eq!(again.load(8).unwrap(), 8);
    });
}

/// Eight regions of one program are written without a pause, while another program takes half of them over: of these
/// nothing lands any more, and the others go on.
#[test]
fn the_fence_of_one_region_leaves_the_lane_to_the_others() {
    bounded(|| {
        let (a, b, c) = (Host::started(), Host::started(), Host::started());
        let (owner, user, next) = (a.session(), b.session(), c.session());
        let own = own(&owner, 8);
        let writers: Vec<Region> = (0..8).map(|n| take(&user, &a, n, 1).unwrap()).collect();
        let is_over = AtomicBool::new(false);
        let last: Vec<(u64, Region)> = std::thread::scope(|scope| {
            let write = |writer: Region, is_taken: bool| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut done = 0;
                    for n in 1.. {
                        match writer.store(0, n) {
                            Ok(()) => done = n,
                            Err(RegionError::OutcomeUnknown { .. }) if !is_taken => {}
                            Err(RegionError::Superseded { .. } | RegionError::OutcomeUnknown { .. }) => break,
                            Err(other) => panic!("{other}"),
                        }
                        if !is_taken && is_over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    (done, writer)
                })
            };
            let threads: Vec<_> = (0..).zip(writers).map(|(n, writer)| write(writer, n < 4)).collect();
            for (n, region) in (0..4).zip(&own) {
                eventually("it is written", || region.load(0).unwrap() > 10);
                let taken = take(&next, &a, n, 2).unwrap();
                let found = taken.load(0).unwrap();
                eventually("the others go on", {
                    let before: Vec<u64> = own[4..].iter().map(|region| region.load(0).unwrap()).collect();
                    let own = &own;
                    move || own[4..].iter().zip(&before).all(|(region, before)| region.load(0).unwrap() > *before)
                });
                assert_eq!(taken.load(0).unwrap(), found, "something of a fenced writer landed");
            }
            is_over.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (n, ((done, _), region)) in last.iter().zip(&own).enumerate() {
            let found = region.load(0).unwrap();
            // One store may have landed whose end its program did not see.
            assert!((*done..=done + 1).contains(&found), "region {n}: {done} done, {found} found");
        }
        assert_eq!((b.counter("leased_lanes"), c.counter("leased_lanes")), (1, 0));
    });
}

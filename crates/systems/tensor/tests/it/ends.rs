//! How tensors end: freed, replaced, revoked, without an owner. No reader ever sees bytes of another.

use std::time::Duration;

use tensor::{Error, Pool};

use crate::hosts::{bounded, eventually, host, is_of, judge, made, program, put, reader};

#[test]
fn a_reference_to_what_was_replaced_or_freed_is_an_error_and_the_held_one_stays() {
    bounded(|| {
        let (here, there) = (host(), host());
        for place in [&here, &there] {
            // Room for two blocks.
            let pool = Pool::create(here.session(), "pool", 256 + 2 * 5120).unwrap();
            let (session, own) = (program(place), Pool::create(place.session(), "own", 1 << 20).unwrap());
            let reader = reader(&here, &session, &pool);
            let first = put(&pool, "a", 500);
            let held = reader.get("a").unwrap();
            let reference = held.reference();
            let second = put(&pool, "a", 500);
            let stale = reader.get_ref(&reference).unwrap_err();
            assert!(matches!(stale, Error::Stale { held, current, .. } if (held, current) == (first, second)));
            // The other block is held, so there is no room for a third.
            let Err(Error::NoRoom { held: holders, .. }) = made(&pool, 500) else { panic!("there was room") };
            assert_eq!((holders.len(), holders[0].generation, holders[0].is_freed), (1, first, true));
            judge(&held);
            assert_eq!(reader.get_ref(&reader.get("a").unwrap().reference()).unwrap().generation(), second);
            drop(held);
            eventually("the block is usable", || made(&pool, 500).is_ok());
            assert!(matches!(reader.get_ref(&reference), Err(Error::Stale { .. })));
            pool.free("a").unwrap();
            assert!(matches!(reader.get_ref(&reference), Err(Error::Freed { .. })));
            assert!(matches!(reader.get("a"), Err(Error::Unknown { .. })));
            drop(own);
            drop(pool);
            // A pool that was made anew is another one.
            let pool = Pool::create(here.session(), "pool", 256 + 2 * 5120).unwrap();
            put(&pool, "a", 500);
            let again = crate::hosts::reader(&here, &session, &pool);
            assert!(matches!(again.get_ref(&reference), Err(Error::Stale { current: 0, .. })));
            let gone = reader.get("a");
            assert!(matches!(gone, Err(Error::OwnerGone { .. })), "{gone:?}");
        }
    });
}

#[test]
fn free_waits_for_the_reader_or_says_who_it_is() {
    bounded(|| {
        let (here, there) = (host(), host());
        let pool = Pool::create(here.session(), "pool", 1 << 20).unwrap();
        for place in [&here, &there] {
            let generation = put(&pool, "a", 100);
            let held = reader(&here, place.session(), &pool).get("a").unwrap();
            let holders = pool.free_and_wait("a", Duration::from_millis(5)).unwrap();
            assert_eq!((holders.len(), holders[0].generation), (1, generation));
            judge(&held);
            put(&pool, "a", 100);
            let late = reader(&here, place.session(), &pool).get("a").unwrap();
            drop(held);
            let dropping = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                drop(late);
            });
            assert_eq!(pool.free_and_wait("a", Duration::from_secs(60)).unwrap(), []);
            dropping.join().unwrap();
            eventually("all is free", || pool.free_bytes() == (1 << 20) - 256);
        }
    });
}

#[test]
fn a_revoke_takes_every_tensor_away_and_what_is_mapped_keeps_its_bytes() {
    bounded(|| {
        let (here, there) = (host(), host());
        let pool = Pool::create(here.session(), "pool", 256 + 5120).unwrap();
        for place in [&here, &there] {
            let session = program(place);
            let first = put(&pool, "a", 500);
            let near = reader(&here, &session, &pool);
            let held = near.get("a").unwrap();
            let own = Pool::create(place.session(), "own", 1 << 20).unwrap();
            let open = pool.free("a").unwrap();
            assert_eq!(open, 1);
            assert!(matches!(made(&pool, 500), Err(Error::NoRoom { .. })));
            pool.revoke().unwrap();
            eventually("the pins are over", || pool.holders().is_empty());
            // The block is used again, while the reader still looks at what it has.
            let second = put(&pool, "a", 500);
            assert!(second > first);
            assert!(matches!(held.check(), Err(Error::Revoked { .. })), "{:?}", held.check());
            assert!(matches!(held.to_vec(), Err(Error::Revoked { .. })));
            assert!(matches!(own.fetch(&held), Err(Error::Revoked { .. })));
            // Another get needs a new lease, which the reader has by itself.
            let again = near.get("a").unwrap();
            assert_eq!(again.generation(), second);
            judge(&again);
            drop(again);
            drop(held);
            pool.free("a").unwrap();
            eventually("the block is free", || pool.free_bytes() == 5120);
        }
    });
}

#[test]
fn without_its_owner_a_mapped_tensor_stays_and_a_far_one_is_an_error() {
    bounded(|| {
        let (here, there) = (host(), host());
        let pool = Pool::create(here.session(), "pool", 1 << 20).unwrap();
        let generation = put(&pool, "a", 500);
        let session = program(&here);
        let own = Pool::create(there.session(), "own", 1 << 20).unwrap();
        let (near, far) = (reader(&here, &session, &pool), reader(&here, there.session(), &pool));
        let (mapped, distant) = (near.get("a").unwrap(), far.get("a").unwrap());
        drop(pool);
        assert!(matches!(near.get("a"), Err(Error::OwnerGone { .. })));
        assert!(matches!(far.get("a"), Err(Error::OwnerGone { .. })));
        judge(&mapped);
        // The far one is told by its daemon, in time.
        eventually("the far tensor is over", || match own.fetch(&distant) {
            Ok(draft) => {
                let mut bytes = [0; 4000];
                draft.read(0, &mut bytes).unwrap();
                assert!(is_of(&bytes, generation));
                false
            }
            Err(error) => {
                assert!(matches!(error, Error::OwnerGone { .. } | Error::Revoked { .. }), "{error}");
                true
            }
        });
    });
}

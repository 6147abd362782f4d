//! The exact number of verbs of each operation on memory of another host, by the counters of `raas stat`; and of none on
//! memory of this host.

use crate::hosts::{Hosts, bounded};
use rmem::{
    ALock, ALockSeat, Atomic, Barrier, ByKey, Chain, Client, Counter, LeaseLock, ListSet, Map, MaxRegister, Memory, On,
    Pool, Queue, Register, RoundRobin, Wait,
};
use std::time::Duration;

/// READs, WRITEs, atomics.
type Verbs = (u64, u64, u64);

/// What `act` costs.
fn cost<T>(hosts: &Hosts, act: impl FnOnce() -> T) -> (Verbs, T) {
    let before = hosts.verbs();
    let result = act();
    let after = hosts.verbs();
    ((after.0 - before.0, after.1 - before.1, after.2 - before.2), result)
}

#[test]
fn words_roots_and_blocks() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let mut client = Client::join(hosts.far_pool()).wait().unwrap();
        let (verbs, ptr) = cost(&hosts, || client.make(On(0), &5u64).wait().unwrap());
        assert_eq!(verbs, (0, 1, 1), "fresh memory: one atomic; its value: one WRITE");
        assert_eq!(cost(&hosts, || client.load(ptr).wait().unwrap()), ((1, 0, 0), 5));
        assert_eq!(cost(&hosts, || client.store(ptr, &6).wait().unwrap()).0, (0, 1, 0));
        assert_eq!(cost(&hosts, || client.fetch_add(ptr, 4).wait().unwrap()), ((0, 0, 1), 6));
        let swap = cost(&hosts, || client.compare_exchange(ptr, 10, 11).wait().unwrap());
        assert_eq!(swap, ((0, 0, 1), Ok(10)));
        assert_eq!(client.compare_exchange(ptr, 10, 12).wait().unwrap(), Err(11));
        assert_eq!(cost(&hosts, || client.set_root("it", ptr).wait().unwrap()), ((1, 0, 2), Ok(())));
        assert_eq!(cost(&hosts, || client.root("it").wait().unwrap()), ((1, 0, 0), Some(ptr)));
        assert_eq!(client.root::<u64>("other").wait().unwrap(), None);
        let words = rmem::Layout::words(1).unwrap();
        assert_eq!(cost(&hosts, || client.free(ptr, words).wait().unwrap()).0, (0, 0, 0));
        let (verbs, again) = cost(&hosts, || client.allocate(words, On(0), 0).wait().unwrap());
        assert_eq!((verbs, again.address()), ((0, 0, 0), ptr.address()), "its own free block");
        assert_eq!(again.epoch(), ptr.epoch() + 1, "in its next life");
        let (verbs, number) = cost(&hosts, || Counter::create(&mut client, On(0)).wait().unwrap());
        assert_eq!(verbs, (0, 1, 1));
        assert_eq!(cost(&hosts, || number.add(&client, 3).wait().unwrap()), ((0, 0, 1), 0));
        assert_eq!(cost(&hosts, || number.get(&client).wait().unwrap()), ((1, 0, 0), 3));
        let greatest = MaxRegister::create(&mut client, On(0)).wait().unwrap();
        assert_eq!(cost(&hosts, || greatest.write(&client, 9).wait().unwrap()).0, (0, 0, 1));
        greatest.write(&client, 4).wait().unwrap();
        assert_eq!(cost(&hosts, || greatest.read(&client).wait().unwrap()), ((1, 0, 0), 9));
        assert_eq!(cost(&hosts, || client.renew().wait().unwrap()).0, (1, 0, 2), "the lease and the epoch");
        let barrier = Barrier::create(&mut client, 1, On(0)).wait().unwrap();
        assert_eq!(cost(&hosts, || barrier.arrive(&mut client, 0).wait().unwrap()).0, (0, 0, 1));
    });
}

#[test]
fn the_set() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let mut client = Client::join(hosts.far_pool()).wait().unwrap();
        let set = ListSet::create(&mut client, On(0)).wait().unwrap();
        // The head; then a node for each key that is less, and the one behind.
        assert_eq!(cost(&hosts, || set.contains(&mut client, 5).wait().unwrap()), ((1, 0, 0), false));
        assert_eq!(cost(&hosts, || set.insert(&mut client, 5).wait().unwrap()), ((1, 1, 2), true));
        assert_eq!(cost(&hosts, || set.insert(&mut client, 5).wait().unwrap()), ((2, 0, 0), false));
        assert_eq!(cost(&hosts, || set.insert(&mut client, 9).wait().unwrap()), ((2, 1, 2), true));
        assert_eq!(cost(&hosts, || set.insert(&mut client, 7).wait().unwrap()), ((3, 1, 2), true));
        assert_eq!(cost(&hosts, || set.contains(&mut client, 9).wait().unwrap()), ((4, 0, 0), true));
        assert_eq!(cost(&hosts, || set.remove(&mut client, 7).wait().unwrap()), ((3, 0, 2), true));
        assert_eq!(cost(&hosts, || set.remove(&mut client, 7).wait().unwrap()), ((3, 0, 0), false));
        assert_eq!(client.settle().wait().unwrap(), 0);
        assert_eq!(cost(&hosts, || set.insert(&mut client, 6).wait().unwrap()), ((3, 1, 1), true), "a block again");
        assert_eq!(set.keys(&mut client, 10).wait().unwrap(), [5, 6, 9]);
        // The owner's host: nothing.
        let mut owner = Client::join(hosts.own_pool()).wait().unwrap();
        let set = ListSet::open(&owner, set.ptr(), On(0)).wait().unwrap();
        let work = || (set.insert(&mut owner, 1).wait().unwrap(), set.remove(&mut owner, 9).wait().unwrap());
        assert_eq!(cost(&hosts, work), ((0, 0, 0), (true, true)));
    });
}

#[test]
fn the_map_and_its_cache() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let mut client = Client::join(hosts.far_pool()).wait().unwrap();
        let map = Map::create(&mut client, 1, ByKey).wait().unwrap();
        assert_eq!(cost(&hosts, || map.get(&mut client, 5).wait().unwrap()), ((1, 0, 0), None));
        assert_eq!(cost(&hosts, || map.put(&mut client, 5, b"five").wait().unwrap()), ((1, 2, 3), true));
        assert_eq!(cost(&hosts, || map.get(&mut client, 5).wait().unwrap()), ((3, 0, 0), Some(b"five".to_vec())));
        assert_eq!(cost(&hosts, || map.get(&mut client, 5).wait().unwrap()), ((2, 0, 0), Some(b"five".to_vec())));
        let stats = client.stats();
        assert_eq!((stats.cache_hits, stats.cache_misses, stats.hit_rate()), (1, 1, 0.5));
        // Another value is another block: what the cache has is no answer any more.
        assert_eq!(cost(&hosts, || map.put(&mut client, 5, b"cinq").wait().unwrap()), ((2, 1, 2), false));
        assert_eq!(cost(&hosts, || map.get(&mut client, 5).wait().unwrap()), ((3, 0, 0), Some(b"cinq".to_vec())));
        client.set_cache_words(0);
        assert_eq!(cost(&hosts, || map.get(&mut client, 5).wait().unwrap()).0, (3, 0, 0));
        assert_eq!(cost(&hosts, || map.remove(&mut client, 5).wait().unwrap()), ((3, 0, 3), Some(b"cinq".to_vec())));
        assert_eq!(cost(&hosts, || map.remove(&mut client, 5).wait().unwrap()), ((1, 0, 0), None));
        let long: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        map.put(&mut client, 6, &long).wait().unwrap();
        assert_eq!(map.get(&mut client, 6).wait().unwrap(), Some(long));
        let error = map.put(&mut client, 7, &vec![0; rmem::VALUE_BYTES_MAX as usize + 1]).wait().unwrap_err();
        assert!(matches!(error, rmem::Error::OutOfRange { value: 131_057, .. }), "{error}");
    });
}

#[test]
fn queue_and_register() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let mut client = Client::join(hosts.far_pool()).wait().unwrap();
        let queue = Queue::create(&mut client, RoundRobin).wait().unwrap();
        assert_eq!(cost(&hosts, || queue.pop(&mut client).wait().unwrap()), ((3, 0, 0), None));
        assert_eq!(cost(&hosts, || queue.push(&mut client, 7).wait().unwrap()).0, (2, 1, 3));
        queue.push(&mut client, 8).wait().unwrap();
        assert_eq!(cost(&hosts, || queue.pop(&mut client).wait().unwrap()), ((4, 0, 1), Some(7)));
        assert_eq!(queue.pop(&mut client).wait().unwrap(), Some(8));
        assert_eq!(queue.pop(&mut client).wait().unwrap(), None);
        let register = Register::create(&mut client, 100, 2, On(0)).wait().unwrap();
        let (verbs, mut writer) = cost(&hosts, || register.writer(&client).wait().unwrap());
        assert_eq!(verbs, (0, 0, 1));
        assert_eq!(cost(&hosts, || register.read(&mut client).wait().unwrap()), ((1, 0, 0), vec![]));
        for value in [[1; 100], [2; 100], [3; 100]] {
            assert_eq!(cost(&hosts, || writer.write(&mut client, &value).wait().unwrap()).0, (0, 1, 1));
            assert_eq!(cost(&hosts, || register.read(&mut client).wait().unwrap()), ((1, 0, 0), value.to_vec()));
        }
        // Behind another writer's value: a second round trip.
        let mut second = register.writer(&client).wait().unwrap();
        assert_eq!(cost(&hosts, || second.write(&mut client, b"x").wait().unwrap()).0, (0, 2, 2));
        assert_eq!(register.read(&mut client).wait().unwrap(), b"x");
        assert!(matches!(register.writer(&client).wait(), Err(rmem::Error::OutOfRange { value: 3, max: 2, .. })));
    });
}

#[test]
fn the_locks() {
    const PATIENCE_US: u64 = 60_000_000;
    bounded(|| {
        let hosts = Hosts::new(1);
        let mut far = Client::join(hosts.far_pool()).wait().unwrap();
        let lock = ALock::create(&mut far, On(0)).wait().unwrap();
        // The far client has no memory of its own host in the pool: its seat lies on node 0, too.
        let mut seat = ALockSeat::new(&mut far).wait().unwrap();
        let (verbs, guard) = cost(&hosts, || lock.lock(&mut far, &mut seat, PATIENCE_US).wait().unwrap());
        assert_eq!((verbs, guard.is_local()), ((1, 2, 1), false), "its seat, victim: WRITEs; the state: a READ");
        assert_eq!(cost(&hosts, || guard.unlock(&mut far, PATIENCE_US).wait().unwrap()).0, (0, 0, 1));
        let mut own = Client::join(hosts.own_pool()).wait().unwrap();
        let mut seat = ALockSeat::new(&mut own).wait().unwrap();
        let (verbs, is_local) = cost(&hosts, || {
            let guard = lock.lock(&mut own, &mut seat, PATIENCE_US).wait().unwrap();
            let is_local = guard.is_local();
            guard.unlock(&mut own, PATIENCE_US).wait().unwrap();
            is_local
        });
        assert_eq!((verbs, is_local), ((0, 0, 0), true));
        let lock = LeaseLock::create(&mut far, Duration::from_secs(20), On(0)).wait().unwrap();
        let (verbs, mut guard) = cost(&hosts, || lock.lock(&mut far, PATIENCE_US).wait().unwrap());
        assert_eq!((verbs, guard.token(), guard.was_taken_over()), ((1, 0, 1), 1, false));
        assert_eq!(cost(&hosts, || guard.renew(&far).wait().unwrap()).0, (0, 0, 1));
        assert!(matches!(lock.lock(&mut own, 1000).wait(), Err(rmem::Error::TimedOut { .. })));
        assert_eq!(cost(&hosts, || guard.unlock(&far).wait().unwrap()).0, (0, 0, 1));
        assert_eq!(lock.lock(&mut own, PATIENCE_US).wait().unwrap().token(), 2);
    });
}

#[test]
fn a_chain_is_one_submission_and_a_writer_need_not_wait() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let pool = hosts.far_pool();
        let mut client = Client::join(pool.clone()).wait().unwrap();
        let at = client.make(On(0), &[0u64; 4]).wait().unwrap().address();
        let mut chain = Chain::new();
        chain.write(at, [1, 2]);
        let add = chain.atomic(at.plus(2), Atomic::Add(5));
        let read = chain.read(at, 4);
        let (verbs, found) = cost(&hosts, || pool.submit(&chain).unwrap().wait().unwrap());
        assert_eq!((verbs, &found[add]), ((1, 1, 1), &vec![0]));
        assert_eq!(found[read][..2], [1, 2], "a READ sees the WRITE before it");
        let going: Vec<_> = (0..50)
            .map(|i| {
                let mut chain = Chain::new();
                chain.write(at, [i, i]);
                chain.atomic(at.plus(2), Atomic::Add(1));
                pool.submit(&chain).unwrap()
            })
            .collect();
        going.into_iter().for_each(|chain| drop(chain.wait().unwrap()));
        assert_eq!(client.load(rmem::Ptr::<u64>::new(at.plus(2), 1)).wait().unwrap(), 55);
        pool.post(at, &[7]).unwrap();
        // Straight between regions: no copy.
        let own = hosts.user_region(4096);
        own.store(64, 99).unwrap();
        let (verbs, ()) = cost(&hosts, || pool.write_from(at.plus(1), &[own.slice(64, 8).unwrap()]).unwrap());
        assert_eq!(verbs, (0, 1, 0));
        let (verbs, ()) = cost(&hosts, || pool.read_into(at.plus(1), &[own.slice(128, 8).unwrap()]).unwrap());
        assert_eq!((verbs, own.load(128).unwrap()), ((1, 0, 0), 99));
    });
}

#[test]
fn a_pool_of_two_hosts_places_by_policy() {
    bounded(|| {
        let hosts = Hosts::new(2);
        let mut client = Client::join(hosts.both_pool()).wait().unwrap();
        assert_eq!(client.memory().home(), Some(1));
        let nodes: Vec<u8> = (0..4).map(|_| client.make(RoundRobin, &1u64).wait().unwrap().address().node).collect();
        assert!(nodes == [0, 1, 0, 1] || nodes == [1, 0, 1, 0], "{nodes:?}");
        let (verbs, here) = cost(&hosts, || client.make(rmem::Local, &2u64).wait().unwrap());
        assert_eq!((verbs, here.address().node), ((0, 0, 0), 1), "its own host's memory costs nothing");
        // A list whose nodes lie on both hosts.
        let set = ListSet::create(&mut client, ByKey).wait().unwrap();
        for key in 0..40 {
            assert!(set.insert(&mut client, key * 7 % 40).wait().unwrap());
        }
        assert_eq!(set.keys(&mut client, 100).wait().unwrap(), (0..40).collect::<Vec<_>>());
        let wrong = Pool::new(vec![hosts.own_region(), hosts.own_region()]).unwrap();
        let error = Client::join(wrong).wait().unwrap_err();
        assert!(matches!(error, rmem::Error::NotFormatted { node: 1, .. }), "{error}");
    });
}

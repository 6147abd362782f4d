//! Real daemons: threads of several sessions at once, a node that dies, a node that is revoked, tasks.

use std::time::Duration;

use crate::hosts::{Hosts, KEY, bounded};
use raas::{RegionKey, Session};
use rmem::{ALock, ALockSeat, Barrier, ByKey, Client, Counter, Error, ListSet, Map, On, Pool, Ptr, Queue, Wait};

const PATIENCE_US: u64 = 60_000_000;

/// Three threads of the first host and three of the second, each with a session of its own.
fn on_both_hosts(hosts: &Hosts, work: impl Fn(Client<Pool>, u64) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..6 {
            let work = &work;
            scope.spawn(move || {
                let host = if number % 2 == 0 { &hosts.owner } else { &hosts.user };
                let session = Session::connect(host.session().socket()).unwrap();
                let pool = Pool::new(vec![hosts.far_region(&session)]).unwrap();
                work(Client::join(pool).wait().unwrap(), number);
            });
        }
    });
}

#[test]
fn threads_of_two_hosts_lose_nothing() {
    bounded(|| {
        const EACH: u64 = 60;
        let hosts = Hosts::with_lease(1, Duration::from_secs(5));
        let mut first = Client::join(hosts.own_pool()).wait().unwrap();
        let set = ListSet::create(&mut first, ByKey).wait().unwrap();
        let map = Map::create(&mut first, 16, ByKey).wait().unwrap();
        let queue = Queue::create(&mut first, ByKey).wait().unwrap();
        let lock = ALock::create(&mut first, ByKey).wait().unwrap();
        let barrier = Barrier::create(&mut first, 6, ByKey).wait().unwrap();
        let plain: Ptr<u64> = first.make(On(0), &0).wait().unwrap();
        let sum = Counter::create(&mut first, On(0)).wait().unwrap();
        on_both_hosts(&hosts, |mut client, number| {
            let mut seat = ALockSeat::new(&mut client).wait().unwrap();
            barrier.arrive(&mut client, PATIENCE_US).wait().unwrap();
            for i in 0..EACH {
                assert!(set.insert(&mut client, i * 6 + number).wait().unwrap());
                map.put(&mut client, i % 20, &number.to_le_bytes()).wait().unwrap();
                queue.push(&mut client, i).wait().unwrap();
                let guard = lock.lock(&mut client, &mut seat, PATIENCE_US).wait().unwrap();
                let found = client.load(plain).wait().unwrap();
                client.store(plain, &(found + 1)).wait().unwrap();
                guard.unlock(&mut client, PATIENCE_US).wait().unwrap();
                let taken = queue.pop(&mut client).wait().unwrap().unwrap();
                sum.add(&client, taken).wait().unwrap();
                if i % 2 == 0 {
                    assert!(set.remove(&mut client, i * 6 + number).wait().unwrap());
                }
            }
            barrier.arrive(&mut client, PATIENCE_US).wait().unwrap();
            client.leave().wait().unwrap();
        });
        assert_eq!(first.load(plain).wait().unwrap(), 6 * EACH, "the lock keeps additions apart");
        assert_eq!(sum.get(&first).wait().unwrap(), 6 * (0..EACH).sum::<u64>(), "each value was taken once");
        let odd: Vec<u64> = (0..EACH).filter(|i| i % 2 == 1).flat_map(|i| (0..6).map(move |n| i * 6 + n)).collect();
        assert_eq!(set.keys(&mut first, 10_000).wait().unwrap(), odd);
        assert!((0..20).all(|key| map.get(&mut first, key).wait().unwrap().is_some_and(|value| value.len() == 8)));
        assert_eq!(queue.pop(&mut first).wait().unwrap(), None);
        assert!(first.stats().retired == 0);
    });
}

#[test]
fn a_dead_reader_keeps_memory_back_for_a_lease_and_no_longer() {
    bounded(|| {
        let hosts = Hosts::with_lease(1, Duration::from_secs(8));
        let mut client = Client::join(hosts.own_pool()).wait().unwrap();
        let reader = Client::join(hosts.far_pool()).wait().unwrap();
        let set = ListSet::create(&mut client, On(0)).wait().unwrap();
        for key in 0..20 {
            set.insert(&mut client, key).wait().unwrap();
            set.remove(&mut client, key).wait().unwrap();
        }
        for _ in 0..5 {
            client.renew().wait().unwrap();
        }
        assert_eq!((client.stats().reclaimed, client.stats().retired), (0, 20), "the reader may still look at them");
        // It does nothing any more, as if it were dead.
        assert_eq!(client.settle().wait().unwrap(), 0);
        assert_eq!((client.stats().reclaimed, client.stats().evictions), (20, 1));
        // It was not dead. It joins again with its next operation.
        let mut reader = reader;
        assert!(!ListSet::open(&reader, set.ptr(), On(0)).wait().unwrap().contains(&mut reader, 3).wait().unwrap());
        assert_eq!(reader.stats().rejoins, 1);
    });
}

#[test]
fn a_node_that_dies_or_is_revoked_is_an_error_at_once() {
    bounded(|| {
        let hosts = Hosts::new(2);
        let pool = hosts.both_pool();
        let mut client = Client::join(pool.clone()).wait().unwrap();
        let set = ListSet::create(&mut client, On(0)).wait().unwrap();
        let here = ListSet::create(&mut client, On(1)).wait().unwrap();
        assert!(set.insert(&mut client, 1).wait().unwrap());
        let new_key = RegionKey::new([5; 16]);
        hosts.own_region().revoke(Some(new_key)).unwrap();
        let error = set.insert(&mut client, 2).wait().unwrap_err();
        assert!(matches!(error, Error::Revoked { node: 0 }), "{error}");
        assert!(raas::Region::open(hosts.user.session(), crate::hosts::address(&hosts.owner), "pool", KEY).is_err());
        // With the new key the pool is what it was.
        let far =
            raas::Region::open(hosts.user.session(), crate::hosts::address(&hosts.owner), "pool", new_key).unwrap();
        let again = Pool::new(vec![far, pool.region(1).unwrap().clone()]).unwrap();
        let mut client = Client::join(again).wait().unwrap();
        assert!(set.contains(&mut client, 1).wait().unwrap());
        assert!(!set.contains(&mut client, 2).wait().unwrap());
        // Node 0 and its host end.
        let Hosts { owner, .. } = hosts;
        drop(owner);
        let error = loop {
            match set.contains(&mut client, 1).wait() {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NodeLost { node: 0, .. } | Error::Revoked { node: 0 }), "{error}");
        assert!(matches!(
            set.insert(&mut client, 3).wait(),
            Err(Error::NodeLost { node: 0, .. } | Error::Revoked { .. })
        ));
        // What lies on the other node alone goes on, as long as no lease is to be renewed.
        assert!(here.contains(&mut client, 1).wait().is_ok_and(|found| !found));
    });
}

#[test]
fn memory_that_is_used_up_is_an_error_and_comes_back() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let mut client = Client::join(hosts.own_pool()).wait().unwrap();
        let map = Map::create(&mut client, 4, On(0)).wait().unwrap();
        let value = vec![1; 60_000];
        let mut stored = 0;
        let error = loop {
            match map.put(&mut client, stored, &value).wait() {
                Ok(_) => stored += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NoMemory { node: 0, .. }), "{error}");
        assert!(stored > 10, "1 MiB has {stored} of 64 KiB");
        // What is removed is there again, for this client and for others.
        for key in 0..stored {
            assert!(map.remove(&mut client, key).wait().unwrap().is_some());
        }
        for key in 0..stored {
            assert!(map.put(&mut client, key, &value).wait().unwrap());
        }
        (0..stored).for_each(|key| drop(map.remove(&mut client, key).wait().unwrap()));
        assert_eq!(client.settle().wait().unwrap(), 0);
        client.leave().wait().unwrap();
        let mut other = Client::join(hosts.own_pool()).wait().unwrap();
        let map = Map::open(&other, map.ptr(), On(0)).wait().unwrap();
        (0..stored).for_each(|key| assert!(map.put(&mut other, key, &value).wait().unwrap()));
    });
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_of_one_thread_have_operations_under_way_together() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (sum, set) = {
            let mut first = Client::join(hosts.own_pool()).wait().unwrap();
            let sum = Counter::create(&mut first, On(0)).wait().unwrap();
            (sum, ListSet::create(&mut first, On(0)).wait().unwrap())
        };
        runtime.block_on(async {
            let tasks: Vec<_> = (0..8)
                .map(|number| {
                    let pool = hosts.far_pool().for_tasks();
                    tokio::spawn(async move {
                        let mut client = Client::join(pool).await.unwrap();
                        for key in 0..20 {
                            sum.add(&client, 1).await.unwrap();
                            set.insert(&mut client, key * 8 + number).await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        let mut client = Client::join(hosts.own_pool()).wait().unwrap();
        assert_eq!(sum.get(&client).wait().unwrap(), 160);
        assert_eq!(set.keys(&mut client, 1000).wait().unwrap(), (0..160).collect::<Vec<_>>());
    });
}

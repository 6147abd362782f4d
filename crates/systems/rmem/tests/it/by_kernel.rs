//! Looking into a map by a kernel: what it costs, that it answers as the map's READs do, and what it says where it may
//! not run.

use std::collections::BTreeMap;

use crate::hosts::{Hosts, bounded};
use raas::RegionError;
use rmem::{ByKey, Client, Map, On, Pool, Wait};

/// READs, WRITEs, atomics, kernels.
type Verbs = (u64, u64, u64, u64);

fn cost<T>(hosts: &Hosts, act: impl FnOnce() -> T) -> (Verbs, T) {
    let (before, kernels) = (hosts.verbs(), hosts.kernels());
    let result = act();
    let after = hosts.verbs();
    ((after.0 - before.0, after.1 - before.1, after.2 - before.2, hosts.kernels() - kernels), result)
}

#[test]
fn a_lookup_is_one_round_trip_however_long_the_list_is() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let mut client = Client::join(hosts.far_pool()).wait().unwrap();
        let map = Map::create(&mut client, 1, On(0)).wait().unwrap();
        let one = (0, 0, 0, 1);
        assert_eq!(cost(&hosts, || map.get_by_kernel(&mut client, 1).wait().unwrap()), (one, None));
        let mut keys = 0;
        for length in [1u64, 4, 16, 64] {
            for key in keys..length {
                map.put(&mut client, key, &key.to_be_bytes()).wait().unwrap();
            }
            keys = length;
            let last = length - 1;
            let wanted = Some(last.to_be_bytes().to_vec());
            assert_eq!(cost(&hosts, || map.get_by_kernel(&mut client, last).wait().unwrap()), (one, wanted.clone()));
            client.set_cache_words(0);
            let reads = (length + 2, 0, 0, 0);
            assert_eq!(cost(&hosts, || map.get(&mut client, last).wait().unwrap()), (reads, wanted), "by READs");
            assert_eq!(cost(&hosts, || map.get_by_kernel(&mut client, length).wait().unwrap()), (one, None));
        }
        // The longest value that an answer has room for, and one byte more: that one is a READ.
        for (bytes, verbs) in [(856usize, one), (857, (1, 0, 0, 1))] {
            let value = vec![bytes as u8; bytes];
            map.put(&mut client, 9, &value).wait().unwrap();
            assert_eq!(cost(&hosts, || map.get_by_kernel(&mut client, 9).wait().unwrap()), (verbs, Some(value)));
        }
        // On the memory's own host it costs no verb.
        let mut owner = Client::join(hosts.own_pool()).wait().unwrap();
        let found = cost(&hosts, || map.get_by_kernel(&mut owner, 3).wait().unwrap());
        assert_eq!(found, ((0, 0, 0, 0), Some(3u64.to_be_bytes().to_vec())));
    });
}

/// A small generator of numbers, so that a failure is the same each time.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn it_finds_what_a_model_has_on_one_host_and_on_two() {
    bounded(|| {
        for nodes in [1, 2] {
            let hosts = Hosts::new(nodes);
            let pool = if nodes == 1 { hosts.far_pool() } else { hosts.both_pool() };
            let mut client = Client::join(pool).wait().unwrap();
            let map = Map::create(&mut client, 2, ByKey).wait().unwrap();
            let (mut model, mut state) = (BTreeMap::new(), 15);
            for turn in 0..400u64 {
                let key = next(&mut state) % 24;
                if next(&mut state).is_multiple_of(3) {
                    let removed = map.remove(&mut client, key).wait().unwrap();
                    assert_eq!(removed, model.remove(&key), "turn {turn}");
                } else {
                    let value = vec![turn as u8; (next(&mut state) % 1200) as usize];
                    map.put(&mut client, key, &value).wait().unwrap();
                    model.insert(key, value);
                }
                for key in [key, next(&mut state) % 24] {
                    let found = map.get_by_kernel(&mut client, key).wait().unwrap();
                    assert_eq!(found.as_ref(), model.get(&key), "turn {turn}, key {key}, {nodes} nodes");
                }
            }
            for key in 0..24 {
                let by_kernel = map.get_by_kernel(&mut client, key).wait().unwrap();
                assert_eq!(by_kernel, map.get(&mut client, key).wait().unwrap());
            }
        }
    });
}

#[test]
fn without_the_right_to_execute_it_says_so() {
    bounded(|| {
        let hosts = Hosts::new(1);
        let session = hosts.user.session();
        let address = hosts.owner.session().addresses()[0];
        let reads = raas::Region::open(session, address, "pool", crate::hosts::KEY).unwrap();
        let mut client = Client::join(Pool::new(vec![reads]).unwrap()).wait().unwrap();
        let map = Map::create(&mut client, 4, On(0)).wait().unwrap();
        let error = map.get_by_kernel(&mut client, 1).wait().unwrap_err();
        assert!(matches!(&error, rmem::Error::Region { node: 0, cause: RegionError::NoAccess { .. } }), "{error}");
        assert_eq!(map.get(&mut client, 1).wait().unwrap(), None, "READs need no more than before");
    });
}

//! The structures over real daemons: threads of two hosts, each with a session of its own, while the queue pair between
//! the hosts is replaced. What they saw is judged as the model's clients are.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use histories::{Event, Verdict, judge_by};
use raas::{Region, RegionAccess, RegionKey, RegionOptions, Session};
use raas_embedded::Embedded;
use rmem::{ByKey, Client, Error, ListSet, Map, On, Pool, Register, Wait, format};

const KEY: RegionKey = RegionKey::new([6; 16]);
const THREADS: u64 = 6;
const ROUNDS: u64 = 40;
const KEYS: u64 = 5;

/// With kernels.
fn full() -> RegionAccess {
    RegionAccess::ALL | RegionAccess::EXECUTE
}

fn start(number: u8) -> Embedded {
    let [.., b, c] = std::process::id().to_be_bytes();
    let address = IpAddr::from([127, 128 | b, c, 200 + number]);
    raas_embedded::builder(address).key(&[7; 32]).start().unwrap()
}

/// What a thread did, and what it found if that is known.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Insert(Option<bool>),
    Remove(Option<bool>),
    Contains(Option<bool>),
    Put(u64),
    Get(Option<u64>),
    Write(u64),
    Read(Option<u64>),
}

/// A set's key is 0 or 1, a map's value and a register's value are themselves.
fn apply(state: &u64, act: &Act) -> Option<u64> {
    let flag = |found: &Option<bool>, right: bool, then: u64| found.is_none_or(|f| f == right).then_some(then);
    let sees = |found: &Option<u64>| found.is_none_or(|found| found == *state).then_some(*state);
    match act {
        Act::Insert(found) => flag(found, *state == 0, 1),
        Act::Remove(found) => flag(found, *state == 1, 0),
        Act::Contains(found) => flag(found, *state == 1, *state),
        Act::Put(value) | Act::Write(value) => Some(*value),
        Act::Get(found) | Act::Read(found) => sees(found),
    }
}

type Calls = Mutex<Vec<(u64, Event<Act>)>>;

/// Lets one thread do one thing, and notes when it asked and what it found.
fn noted(calls: &Calls, clock: &AtomicU64, object: u64, unknown: Act, act: impl FnOnce() -> Result<Act, Error>) {
    let asked = clock.fetch_add(1, Ordering::SeqCst);
    let result = act();
    let ended = clock.fetch_add(1, Ordering::SeqCst);
    let event = match result {
        Ok(what) => Event { what, asked, ended: Some(ended), after: None },
        // It may have been done: a lane was reset.
        Err(Error::OutcomeUnknown { .. }) => Event { what: unknown, asked, ended: None, after: None },
        Err(other) => panic!("{other}"),
    };
    calls.lock().unwrap().push((object, event));
}

struct Things {
    set: ListSet<ByKey>,
    map: Map<ByKey>,
    register: Register,
}

fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    assert!(bytes.chunks(8).all(|piece| piece == word), "torn: {bytes:?}");
    u64::from_ne_bytes(word)
}

fn work(client: &mut Client<Pool>, thread: u64, things: &Things, calls: &Calls, clock: &AtomicU64) {
    const MAP: u64 = 100;
    const REGISTER: u64 = 200;
    let mut writer = if thread < 2 { Some(things.register.writer(client).wait().unwrap()) } else { None };
    for round in 0..ROUNDS {
        let (key, value) = ((round * 7 + thread) % KEYS, thread * 1000 + round + 1);
        let of_map = MAP + key;
        match (round + thread) % 7 {
            0 => noted(calls, clock, key, Act::Insert(None), || {
                Ok(Act::Insert(Some(things.set.insert(client, key).wait()?)))
            }),
            1 => noted(calls, clock, key, Act::Remove(None), || {
                Ok(Act::Remove(Some(things.set.remove(client, key).wait()?)))
            }),
            2 => noted(calls, clock, key, Act::Contains(None), || {
                Ok(Act::Contains(Some(things.set.contains(client, key).wait()?)))
            }),
            3 => noted(calls, clock, of_map, Act::Put(value), || {
                things.map.put(client, key, &value.to_ne_bytes().repeat(5)).wait()?;
                Ok(Act::Put(value))
            }),
            4 => noted(calls, clock, of_map, Act::Get(None), || {
                Ok(Act::Get(Some(things.map.get(client, key).wait()?.map_or(0, |bytes| number(&bytes)))))
            }),
            5 => noted(calls, clock, of_map, Act::Get(None), || {
                Ok(Act::Get(Some(things.map.get_by_kernel(client, key).wait()?.map_or(0, |bytes| number(&bytes)))))
            }),
            _ => match writer.as_mut().filter(|_| round % 2 == 0) {
                Some(writer) => noted(calls, clock, REGISTER, Act::Write(value), || {
                    writer.write(client, &value.to_ne_bytes().repeat(8)).wait()?;
                    Ok(Act::Write(value))
                }),
                None => noted(calls, clock, REGISTER, Act::Read(None), || {
                    let bytes = things.register.read(client).wait()?;
                    Ok(Act::Read(Some(if bytes.is_empty() { 0 } else { number(&bytes) })))
                }),
            },
        }
    }
}

#[test]
fn what_threads_of_two_hosts_find_is_explained_by_one_order() {
    let hosts = [start(1), start(2)];
    let address = hosts[0].session().addresses()[0];
    let region = RegionOptions::new().key(KEY).access(full()).create(hosts[0].session(), "pool", 1 << 20).unwrap();
    let pool = Pool::new(vec![region]).unwrap();
    format(&pool, 0, Duration::from_secs(5)).wait().unwrap();
    let mut first = Client::join(pool).wait().unwrap();
    let set = ListSet::create(&mut first, ByKey).wait().unwrap();
    let map = Map::create(&mut first, 2, ByKey).wait().unwrap();
    let register = Register::create(&mut first, 64, 4, On(0)).wait().unwrap();
    let things = Things { set, map, register };
    let (calls, clock) = (Calls::default(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (hosts, things, calls, clock) = (&hosts, &things, &calls, &clock);
            scope.spawn(move || {
                let session = Session::connect(hosts[thread as usize % 2].session().socket()).unwrap();
                let region = Region::open_for(&session, address, "pool", KEY, full()).unwrap();
                let mut client = Client::join(Pool::new(vec![region]).unwrap()).wait().unwrap();
                work(&mut client, thread, things, calls, clock);
            });
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(5));
            raas::inspect::reset_lane(Some(hosts[1].session().socket()), address).unwrap();
        }
    });
    let calls = calls.into_inner().unwrap();
    assert_eq!(calls.len() as u64, THREADS * ROUNDS);
    let objects: std::collections::BTreeSet<u64> = calls.iter().map(|(object, _)| *object).collect();
    let of = |object: u64| calls.iter().filter(|(o, _)| *o == object).map(|(_, e)| *e).collect::<Vec<_>>();
    let verdicts: Vec<Verdict> = objects.iter().map(|object| judge_by(&of(*object), 0, apply)).collect();
    for (object, verdict) in objects.iter().zip(&verdicts) {
        assert_ne!(*verdict, Verdict::Wrong, "no order explains object {object}: {:#?}", of(*object));
    }
    assert!(verdicts.contains(&Verdict::Explained), "all are too long to judge");
    // The judge is not blind: a value that nobody wrote has no place.
    let mut forged = of(200);
    let read = forged.iter_mut().find(|e| e.ended.is_some() && matches!(e.what, Act::Read(_))).unwrap();
    read.what = Act::Read(Some(u64::MAX));
    assert_ne!(judge_by(&forged, 0, apply), Verdict::Explained);
}

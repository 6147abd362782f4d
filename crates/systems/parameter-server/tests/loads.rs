//! The exchange and the training over kernel TCP, on one host over RaaS, and between two daemons.

use std::net::{IpAddr, SocketAddr};

use parameter_server::{
    CLASSES, Digits, Exchange, Over, PARAMETERS, PIXELS, Server, Trained, Training, WorkError, Worker, exchange, train,
};
use raas_embedded::Embedded;

const KEY: [u8; 32] = [9; 32];
/// Keys of each server.
const KEYS: u64 = 2000;

/// Two hosts, and what carries connections of the servers and of the workers.
struct World {
    hosts: Vec<Embedded>,
}

/// A host of its own: addresses of the loopback network that no other test process has.
fn host(last: u8) -> Embedded {
    let [.., b, c] = std::process::id().to_be_bytes();
    raas_embedded::builder(IpAddr::from([127, 96 | (b & 31), c, last])).key(&KEY).start().unwrap()
}

impl World {
    fn new() -> Self {
        Self { hosts: vec![host(1), host(2)] }
    }

    /// Carriers of servers and workers: TCP, one host, two hosts.
    fn ways(&self) -> [(&'static str, Over, Over); 3] {
        let over = |host: usize| Over::Raas(self.hosts[host].session().clone());
        [("tcp", Over::Tcp, Over::Tcp), ("same host", over(0), over(0)), ("two hosts", over(0), over(1))]
    }

    fn serve(&self, over: &Over, count: usize) -> Vec<SocketAddr> {
        let address = match over {
            Over::Tcp => IpAddr::from([127, 0, 0, 1]),
            Over::Raas(session) => session.addresses()[0],
        };
        (0..count).map(|_| Server::start(over, SocketAddr::new(address, 0), KEYS).unwrap().address()).collect()
    }
}

#[test]
fn sums_of_what_was_pushed_are_exact_over_each_carrier() {
    let world = World::new();
    for (name, serving, working) in world.ways() {
        for (workers, servers) in [(1, 1), (4, 4)] {
            let servers = world.serve(&serving, servers);
            for pairs in [1, 10, 1000] {
                let wanted = Exchange { workers, pairs, rounds: 20 };
                exchange(&working, &servers, wanted).unwrap_or_else(|e| panic!("{name}, {wanted:?}: {e}"));
            }
        }
    }
}

#[test]
fn scattered_keys_are_pushed_and_pulled_and_bad_ones_change_nothing() {
    let world = World::new();
    for (name, serving, working) in world.ways() {
        let servers = world.serve(&serving, 3);
        let mut worker = Worker::connect(&working, &servers).unwrap();
        assert_eq!(worker.keys(), 3 * KEYS);
        // More runs than are read one by one at two servers, one run at the third.
        let mut keys: Vec<u64> = (0..2 * KEYS).step_by(7).collect();
        keys.extend(2 * KEYS + 5..2 * KEYS + 50);
        let pushed: Vec<f32> = keys.iter().map(|key| *key as f32 + 0.5).collect();
        worker.push(&keys, &pushed).unwrap();
        let mut found = vec![0.0; keys.len()];
        worker.pull(&keys, &mut found).unwrap();
        assert_eq!(found, pushed, "{name}");

        let outside = worker.push(&[1, 3 * KEYS], &[1.0, 1.0]);
        assert!(matches!(outside, Err(WorkError::KeyOutside { .. })), "{name}: {outside:?}");
        let order = worker.push(&[7, 7], &[1.0, 1.0]);
        assert!(matches!(order, Err(WorkError::Order { .. })), "{name}: {order:?}");
        let uneven = worker.pull(&[7], &mut []);
        assert!(matches!(uneven, Err(WorkError::Pairs { .. })), "{name}: {uneven:?}");
        worker.pull(&keys, &mut found).unwrap();
        assert_eq!(found, pushed, "{name}");
        worker.reset().unwrap();
        worker.pull(&keys, &mut found).unwrap();
        assert!(found.iter().all(|value| *value == 0.0), "{name}");
    }
}

/// Images that can be told apart: each digit lights a few pixels of its own, and noise lights others.
fn images(count: usize) -> String {
    let mut state = 1u32;
    let mut random = |below: u32| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % below
    };
    let mut text = String::new();
    for _ in 0..count {
        let digit = random(CLASSES as u32) as usize;
        for pixel in 0..PIXELS {
            let lit = if pixel / 6 == digit { 8 } else { 0 };
            text += &format!("{},", lit + random(9));
        }
        text += &format!("{digit}\n");
    }
    text
}

#[test]
fn a_training_learns_the_same_over_each_carrier() {
    let world = World::new();
    let digits = Digits::of_text(&images(400)).unwrap();
    let mut alone: Vec<Trained> = vec![];
    for (name, serving, working) in world.ways() {
        let servers = world.serve(&serving, 2);
        let wanted = Training { workers: 1, batch: 16, epochs: 0, rate: 0.5 };
        let untrained = train(&working, &servers, &digits, wanted).unwrap().accuracy;
        assert!(untrained < 0.3, "{name}: a model of zeroes names {untrained} of the images");
        alone.push(train(&working, &servers, &digits, Training { epochs: 8, ..wanted }).unwrap());
        let many = train(&working, &servers, &digits, Training { workers: 4, epochs: 8, ..wanted }).unwrap();
        assert!(many.accuracy > 0.9, "{name}: four workers reach {}", many.accuracy);
    }
    // One worker's steps have one order, so the model is the same to the last bit.
    assert!(alone[0].accuracy > 0.9, "{}", alone[0].accuracy);
    assert!(alone.iter().all(|trained| trained.accuracy == alone[0].accuracy), "{alone:?}");
    assert!(PARAMETERS as u64 <= 2 * KEYS);
}

#[test]
fn a_batch_that_cannot_be_is_refused() {
    let world = World::new();
    let servers = world.serve(&Over::Tcp, 1);
    let digits = Digits::of_text(&images(10)).unwrap();
    let wanted = Training { workers: 2, batch: 5, epochs: 1, rate: 0.5 };
    let told = train(&Over::Tcp, &servers, &digits, wanted).unwrap_err();
    assert!(matches!(told, WorkError::Batch { batch: 5, share: 4 }), "{told}");
    let told = exchange(&Over::Tcp, &servers, Exchange { workers: 1, pairs: KEYS + 1, rounds: 1 }).unwrap_err();
    assert!(matches!(told, WorkError::KeyOutside { .. }), "{told}");
}

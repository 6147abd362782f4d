//! A stream on which each message waits for the one before, and those that do not.

use std::sync::atomic::Ordering;

use control::PathKind;
use raas_core::Connection;

use super::{World, byte, try_write};

/// A write of `end`, carried to the other one, which reads it in pieces of `piece` bytes.
fn say(world: &mut World, end: usize, len: usize, piece: usize) {
    let bytes: Vec<u8> = (world.hosts[end].wrote..).take(len).map(|at| byte(end, at)).collect();
    let mut sent = 0;
    while sent < len {
        sent += try_write(&mut world.hosts[end], &bytes[sent..]).0;
        world.lane(end);
    }
    world.hosts[end].wrote += len as u64;
    let mut got = 0;
    while got < len {
        world.lane(end);
        world.tcp(end);
        let Connection { endpoint, rx, .. } = world.hosts[1 - end].connection.as_mut().unwrap();
        let mut buf = vec![0; piece];
        let count = rx.try_read(endpoint, &mut buf).unwrap().unwrap_or(0);
        assert_eq!(buf[..count], bytes[got..got + count]);
        got += count;
    }
}

#[test]
fn a_conversation_leaves_the_ring_and_who_does_not_wait_for_each_answer_stays() {
    let talk = |seed, turns, writes: usize, piece: usize| {
        let mut world = World::new(seed);
        (0..2).for_each(|end| world.attach(end));
        for _ in 0..10 {
            (0..2).for_each(|end| world.tcp(end));
            world.hosts.iter().for_each(|host| host.direct.as_ref().unwrap().handle_event());
        }
        for _ in 0..turns {
            for end in 0..2 {
                (0..writes).for_each(|_| say(&mut world, end, 64, piece));
            }
        }
        world.hosts.map(|host| {
            let counts = [&host.words.direct_tx, &host.words.direct_rx].map(|word| word.load(Ordering::Relaxed));
            (host.connection.unwrap().endpoint.path(), counts)
        })
    };
    for seed in 1..20 {
        let [near, far] = talk(seed, 40, 1, 64);
        assert_eq!([near.0, far.0], [PathKind::TcpDirect; 2], "seed {seed}");
        assert_eq!((near.1[0], near.1[1]), (far.1[1], far.1[0]), "seed {seed}: both count the same bytes");
        assert!(near.1.iter().all(|bytes| (64..40 * 64).contains(bytes)), "seed {seed}: {near:?}");
        assert_eq!(talk(seed, 12, 1, 64).map(|end| end.0), [PathKind::Lane; 2], "seed {seed}: it is young");
        assert_eq!(talk(seed, 40, 2, 64).map(|end| end.0), [PathKind::Lane; 2], "seed {seed}: two writes a turn");
    }
}

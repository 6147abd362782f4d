//! The readiness descriptor under loom: a change that nobody looked at makes it readable.
use std::sync::atomic::Ordering;

use loom::thread;

use super::{Cell32, Cell64, Strength, explore, must_fail};
use crate::ready::{claim_signal, clear_signal};
use crate::sleep::{arm, claim_sleep};
use crate::sync::AtomicWord;
use crate::waiting::READABLE;

/// The words of one connection and what the kernel keeps: the wake socket and the eventfd, each empty or not.
#[derive(Clone)]
struct World {
    data: Cell64,
    waiting: Cell32,
    socket: Cell32,
    told: Cell32,
    eventfd: Cell32,
}

impl World {
    fn new(strength: Strength) -> Self {
        // The kernel's objects are ordered by its locks, whatever is taken away from the protocol.
        let kernel = || Cell32::new(Strength::AsWritten);
        let word = || Cell32::new(strength);
        Self { data: Cell64::new(strength), waiting: word(), socket: kernel(), told: word(), eventfd: kernel() }
    }

    /// The other process: publishes byte after byte and sends what `waiting` asks for.
    fn publish(&self, bytes: u64) {
        let answered = std::sync::atomic::AtomicU32::new(0);
        for byte in 1..=bytes {
            self.data.store(byte, Ordering::Release);
            if claim_sleep(&self.waiting, &answered, READABLE) {
                self.socket.fetch_or(1, Ordering::AcqRel);
            }
        }
    }

    /// The thread that watches the wake socket.
    fn watch(&self) {
        if self.socket.fetch_and(0, Ordering::AcqRel) != 0 && claim_signal(&self.told) {
            self.eventfd.fetch_or(1, Ordering::AcqRel);
        }
    }

    fn drain(&self) {
        self.eventfd.fetch_and(0, Ordering::AcqRel);
    }

    fn look(&self, bytes: u64) -> bool {
        self.data.load(Ordering::Acquire) == bytes
    }

    fn readable(&self) -> bool {
        self.eventfd.load(Ordering::Acquire) != 0
    }
}

/// How the waiting side clears.
type Clear = fn(&World);

fn as_written(world: &World) {
    clear_signal(&world.told, || world.drain());
}

fn flag_first(world: &World) {
    world.told.fetch_and(0, Ordering::AcqRel);
    world.drain();
}

/// Somebody waits for `bytes` bytes with a look after each clearing, twice at most; then it polls. With everything
/// published and the wake socket drained, the descriptor must be readable if a byte was not seen.
fn nobody_polls_in_vain(strength: Strength, bytes: u64, clear: Clear) {
    let world = World::new(strength);
    if bytes > 1 {
        // A wait before this one left its announcement.
        arm(&world.waiting, READABLE, || false);
    }
    let peer = thread::spawn({
        let world = world.clone();
        move || world.publish(bytes)
    });
    let watcher = thread::spawn({
        let world = world.clone();
        move || world.watch()
    });
    let sleep = || {
        clear(&world);
        arm(&world.waiting, READABLE, || world.look(bytes))
    };
    let mut asleep = sleep();
    if asleep && world.readable() {
        asleep = sleep();
    }
    peer.join().unwrap();
    watcher.join().unwrap();
    // The watcher's next round: the socket is level-triggered.
    world.watch();
    assert!(!asleep || world.readable(), "lost wake: the byte is there, the descriptor is not readable");
}

#[test]
fn an_unseen_byte_makes_the_descriptor_readable() {
    explore(2, || nobody_polls_in_vain(Strength::AsWritten, 2, as_written));
}

#[test]
fn without_fences_the_byte_is_not_told() {
    must_fail("lost wake", 2, || nobody_polls_in_vain(Strength::WithoutFences, 1, as_written));
}

#[test]
fn the_flag_cleared_before_the_descriptor_loses_a_byte() {
    must_fail("lost wake", 3, || nobody_polls_in_vain(Strength::AsWritten, 2, flag_first));
}

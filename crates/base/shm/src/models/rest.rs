//! The rest handshake under loom: what the application wrote is there when its tail is, however the engine gives pages
//! back.
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::Ordering;

use super::{Cell32, Cell64, Strength, explore, must_fail};
use crate::rest::{announce, claim, finish, release, unused};
use crate::sync::AtomicWord;

/// One byte of the ring whose unordered accesses loom reports, and the words around it.
#[derive(Clone)]
struct Shared {
    byte: Arc<UnsafeCell<u8>>,
    tail: Cell64,
    tx_use: Cell32,
    tx_rest: Cell32,
}

impl Shared {
    fn new(strength: Strength) -> Self {
        let shared = Self {
            byte: Arc::new(UnsafeCell::new(0)),
            tail: Cell64::new(strength),
            tx_use: Cell32::new(strength),
            tx_rest: Cell32::new(strength),
        };
        release(&shared.tx_use);
        shared
    }

    fn set(&self, value: u8) {
        // SAFETY: loom checks the access; that no other thread is at this byte is what the model shows.
        self.byte.with_mut(|place| unsafe { *place = value });
    }

    /// A write by the application, if it may.
    fn try_write(&self) -> bool {
        let claimed = claim(&self.tx_use, &self.tx_rest);
        if claimed {
            self.set(7);
            self.tail.store(1, Ordering::Release);
            release(&self.tx_use);
        }
        claimed
    }

    /// The engine gives the page back, if it may: nothing is written, and nothing was that has not left.
    fn try_rest(&self, strength: Strength) {
        announce(&self.tx_rest);
        strength.fence();
        if unused(&self.tx_use) && self.tail.load(Ordering::Acquire) == 0 {
            self.set(0);
        }
        finish(&self.tx_rest);
    }
}

/// A write, tried once more if the engine was giving pages back, against one rest or two.
fn model(strength: Strength, rests: usize) {
    let shared = Shared::new(strength);
    let theirs = shared.clone();
    let application = thread::spawn(move || theirs.try_write() || theirs.try_write());
    for _ in 0..rests {
        shared.try_rest(strength);
    }
    let written = application.join().unwrap() || shared.try_write();
    assert!(written, "nobody is at it any more");
    let value = shared.byte.with(|place| {
        // SAFETY: as in `set`.
        unsafe { *place }
    });
    assert_eq!(value, 7, "a published byte is gone");
}

#[test]
fn no_byte_is_given_back_with_its_page() {
    explore(3, || model(Strength::AsWritten, 1));
    explore(2, || model(Strength::AsWritten, 2));
}

#[test]
fn without_the_barrier_bytes_are_lost() {
    must_fail("Causality violation", 3, || model(Strength::WithoutFences, 1));
}

#[test]
fn relaxed_words_race_on_the_bytes() {
    must_fail("Causality violation", 3, || model(Strength::Relaxed, 1));
}

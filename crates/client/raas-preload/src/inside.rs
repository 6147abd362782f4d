//! Whether this thread is inside the library: then descriptors that it closes are the library's own.

use std::cell::Cell;

use crate::hold::{self, Hold};

thread_local! {
    // Without a destructor and without memory of the heap, so that any moment of a thread's life may ask.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The thread is inside until this is dropped.
#[derive(Debug)]
pub(crate) struct Inside(Hold);

/// Enters.
pub(crate) fn enter() -> Inside {
    let hold = hold::hold();
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    Inside(hold)
}

/// Whether the thread is inside.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

//! Statics of which a child made by `fork` has its own.
//!
//! Owns a chain of values, one for each process that the program forked through. It must never have a child wait for a
//! lock that only its parent's threads could open.

use std::sync::OnceLock;

/// A value for each process, made when it is first asked for; in a static. After `fork` the child has its own, and the
/// parent's stays where it is, untouched. For libraries that stand on this one and keep tables of its sockets.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    first: OnceLock<Node<T>>,
}

#[derive(Debug)]
struct Node<T: 'static> {
    pid: u32,
    value: T,
    next: OnceLock<Box<Self>>,
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> PerProcess<T> {
    /// Without any value yet.
    pub const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// This process's value.
    pub fn get(&self) -> &T {
        self.of(std::process::id())
    }

    fn of(&self, pid: u32) -> &T {
        let mut link = self.first.get_or_init(|| Node::new(pid));
        while link.pid != pid {
            link = link.next.get_or_init(|| Box::new(Node::new(pid)));
        }
        &link.value
    }
}

impl<T: Default> Node<T> {
    fn new(pid: u32) -> Self {
        Self { pid, value: T::default(), next: OnceLock::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn each_process_has_its_own() {
        static VALUE: PerProcess<AtomicU32> = PerProcess::new();
        for pid in [7, 8, 9] {
            assert_eq!(VALUE.of(pid).swap(pid, Ordering::Relaxed), 0, "new in each process");
        }
        assert_eq!([9, 7, 8].map(|pid| VALUE.of(pid).load(Ordering::Relaxed)), [9, 7, 8]);
    }
}

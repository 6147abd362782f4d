//! Looking for a while before a thread sleeps, where kernel TCP has the bytes: on connections whose two ends are both
//! under `raas run`, between hosts without RDMA hardware (docs/use/run.md).
//!
//! Decides whether a look is worth its time: it must not make idle programs busy.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::kernel_tcp::has_bytes_or_end;
use crate::{errno, spin};

/// Waits in which nothing was found, after which a thread looks seldom.
const CREDIT: u32 = 8;
/// Then it looks in one of so many waits.
const SHARE: u32 = 8;

/// Whether looking has paid of late.
#[derive(Debug, Default)]
pub(crate) struct Payoff {
    /// Waits with a look that found nothing, since one found something.
    idle: AtomicU32,
}

impl Payoff {
    /// Looks with `ready`, which asks the kernel, until it says so or for too long. Whether it said so.
    pub(crate) fn look(&self, ready: &mut dyn FnMut() -> bool) -> bool {
        // Threads that count at once lose a count of each other's, which harms nobody.
        let idle = self.idle.load(Ordering::Relaxed);
        if idle >= CREDIT && !idle.is_multiple_of(SHARE) {
            self.idle.store(idle.wrapping_add(1), Ordering::Relaxed);
            return false;
        }
        let found = spin::until(&mut |_| ready());
        self.idle.store(if found { 0 } else { idle.wrapping_add(1) }, Ordering::Relaxed);
        found
    }
}

/// Looks until the socket is readable, or at its end. `errno` stays as it is.
pub(crate) fn until_readable(payoff: &Payoff, fd: c_int) {
    let code = errno::get();
    payoff.look(&mut || has_bytes_or_end(fd));
    errno::set(code);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_finds_nothing_is_looked_at_seldom_and_one_that_does_always() {
        let payoff = Payoff::default();
        let looks = |ready: bool| {
            let mut count = 0;
            payoff.look(&mut || {
                count += 1;
                ready
            });
            count > 0
        };
        assert!((0..CREDIT).all(|_| looks(false)));
        let later = (0..10 * SHARE).filter(|_| looks(false)).count();
        assert_eq!(later, 10, "one of {SHARE}");
        // The next look that finds something makes all of them look again.
        while !looks(true) {}
        assert!((0..CREDIT).all(|_| looks(true)));
        assert!(looks(false));
    }
}

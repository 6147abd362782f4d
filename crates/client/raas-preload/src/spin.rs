//! Looking for a while before a thread blocks: yielding, so that whoever is waited for can run.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use shm::Crowding;

/// Looks of one wait. Together they take about 50 us on an idle core, which is more than waking a thread does.
const LOOKS_MAX: u32 = 100;
/// One of so many looks asks the kernel too, which costs a system call.
const KERNEL_SHARE: u32 = 4;

/// Threads that look at the moment.
static LOOKING: AtomicU32 = AtomicU32::new(0);
/// More threads would only pass the processors around among themselves.
static LOOKING_MAX: LazyLock<u32> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)));
/// Whether a core that is yielded comes back soon.
static CROWDING: LazyLock<Crowding> = LazyLock::new(Crowding::default);

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Streams alone.
    Streams,
    /// Streams, and what only the kernel knows.
    All,
}

/// Whether a thread without work does best to sleep at once.
pub(crate) fn is_crowded() -> bool {
    CROWDING.is_crowded()
}

/// Looks until `ready` or too often. True: it was ready.
pub(crate) fn until(ready: &mut dyn FnMut(Look) -> bool) -> bool {
    if ready(Look::All) {
        return true;
    }
    if is_crowded() {
        return false;
    }
    if LOOKING.fetch_add(1, Ordering::Relaxed) >= *LOOKING_MAX {
        LOOKING.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    let mut found = false;
    for look in 1..=LOOKS_MAX {
        let is_on_time = CROWDING.yield_core();
        found = ready(if look % KERNEL_SHARE == 0 { Look::All } else { Look::Streams });
        if found && is_on_time {
            CROWDING.on_time();
        }
        if found || !is_on_time {
            break;
        }
    }
    LOOKING.fetch_sub(1, Ordering::Relaxed);
    found
}

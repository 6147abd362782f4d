//! Looking for a while before a thread blocks: yielding, so that whoever is waited for can run.

use std::sync::LazyLock;

use shm::YieldTurns;

/// Looks of one wait. Together they take about 50 us on an idle core, which is more than waking a thread does.
const LOOKS_MAX: u32 = 100;
/// One of so many looks asks the kernel too, which costs a system call.
const KERNEL_SHARE: u32 = 4;

/// Threads that look at the moment, and whether a core that is yielded comes back soon.
static TURNS: LazyLock<YieldTurns> = LazyLock::new(YieldTurns::default);

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
    TURNS.is_crowded()
}

/// Looks until `ready` or too often. True: it was ready.
pub(crate) fn until(ready: &mut dyn FnMut(Look) -> bool) -> bool {
    if ready(Look::All) {
        return true;
    }
    let Some(turn) = TURNS.take() else { return false };
    for look in 1..=LOOKS_MAX {
        let is_on_time = turn.yield_core();
        let found = ready(if look % KERNEL_SHARE == 0 { Look::All } else { Look::Streams });
        if found && is_on_time {
            turn.on_time();
        }
        if found || !is_on_time {
            return found;
        }
    }
    false
}

//! How long a task looks for itself before it leaves it to others to wake it: for tasks what [`crate::patience`] is for
//! threads.
//!
//! A wake takes two switches, of the session's watcher and of the executor's thread. Between two looks the executor runs
//! its other tasks and gives the core away. Owns which connections are looked at: on average no more of a session than
//! there are processors, counted by the reads of all between two of one. With more of them there is always something to
//! do, and looking takes the processor from who has bytes.

use std::future::Future as _;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Context;
use std::time::{Duration, Instant};

use shm::YieldTurns;

use crate::patience::WaitPolicy;

/// How long one wait looks: the time of a remote call, in which the other side's executor has work of its own.
const LOOK_TIME: Duration = Duration::from_micros(100);
/// No wait looks now.
const NONE: u64 = 0;
/// The last wait looked until its time was over; it is to be woken.
const OVER: u64 = u64::MAX;

/// Reads of all connections of a session by tasks.
#[derive(Debug)]
pub(crate) struct Reads {
    origin: Instant,
    all: AtomicU64,
}

/// What a connection remembers of its last wait. Calls that meet may count one too few: it is a guess.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// Reads since then.
    own: AtomicU32,
    /// Those of all, up to then.
    all: AtomicU64,
    /// There were few others in between.
    is_one_of_few: AtomicBool,
    /// Until when this one looks, in nanoseconds since the session's origin.
    until: AtomicU64,
}

impl Reads {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), all: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(OVER - 1)
    }
}

impl Conversation {
    pub(crate) fn on_read(&self, reads: &Reads, turns: &YieldTurns) {
        reads.all.fetch_add(1, Ordering::Relaxed);
        self.own.store(self.own.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        if !matches!(self.until.load(Ordering::Relaxed), NONE | OVER) {
            turns.on_time();
        }
        self.on_written();
    }

    /// An answer may come.
    pub(crate) fn on_written(&self) {
        self.until.store(NONE, Ordering::Relaxed);
    }

    /// Whether the task of this context is polled again soon to look once more. False: it is to be woken. `policy` is
    /// asked when a wait begins.
    pub(crate) fn looks_again(
        &self,
        reads: &Reads,
        turns: &YieldTurns,
        policy: impl FnOnce() -> WaitPolicy,
        context: &mut Context<'_>,
    ) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == NONE {
            if !self.is_one_of_few(reads, turns.max()) || policy().yields == 0 {
                return false;
            }
            let look_time = u64::try_from(LOOK_TIME.as_nanos()).unwrap_or(0);
            self.until.store(reads.now().saturating_add(look_time).clamp(NONE + 1, OVER - 1), Ordering::Relaxed);
        } else if until == OVER || reads.now() >= until {
            self.until.store(OVER, Ordering::Relaxed);
            return false;
        }
        // The wake comes after the executor's other tasks, and after it asked for events.
        turns.yield_core() && pin!(tokio::task::yield_now()).poll(context).is_pending()
    }

    /// A wait begins: whether at most `max` conversations read between the last two reads.
    fn is_one_of_few(&self, reads: &Reads, max: u32) -> bool {
        let own = u64::from(self.own.swap(0, Ordering::Relaxed));
        if own > 0 {
            let all = reads.all.load(Ordering::Relaxed);
            let since = all.wrapping_sub(self.all.swap(all, Ordering::Relaxed));
            self.is_one_of_few.store(since <= own * u64::from(max), Ordering::Relaxed);
        }
        self.is_one_of_few.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const YIELDS: WaitPolicy = WaitPolicy { spins: 0, yields: 100 };

    /// Conversations that a session looks at.
    const LOOKED_AT_MAX: u32 = 2;

    struct Session {
        reads: Reads,
        turns: YieldTurns,
    }

    impl Session {
        fn new() -> Self {
            Self { reads: Reads::new(), turns: YieldTurns::never_late(LOOKED_AT_MAX) }
        }

        fn read(&self, one: &Conversation) {
            one.on_read(&self.reads, &self.turns);
        }

        fn looks(&self, one: &Conversation, policy: WaitPolicy) -> bool {
            one.looks_again(&self.reads, &self.turns, || policy, &mut Context::from_waker(Waker::noop()))
        }
    }

    #[test]
    fn a_conversation_is_looked_at_for_a_while_after_bytes_moved() {
        let (session, one) = (Session::new(), Conversation::default());
        assert!(!session.looks(&one, YIELDS), "nothing was read");
        session.read(&one);
        assert!(!session.looks(&one, WaitPolicy { spins: 0, yields: 0 }), "threads sleep at once");
        for moved in [
            |session: &Session, one: &Conversation| session.read(one),
            |_: &Session, one: &Conversation| one.on_written(),
        ] {
            moved(&session, &one);
            assert!(session.looks(&one, YIELDS), "bytes moved");
            let began = Instant::now();
            while session.looks(&one, YIELDS) {
                assert!(began.elapsed() < Duration::from_secs(60), "it looks for ever");
            }
            assert!(!session.looks(&one, YIELDS), "it is over until bytes move again");
        }
    }

    #[test]
    fn one_of_many_conversations_waits_to_be_woken() {
        let session = Session::new();
        let all: Vec<_> = (0..=LOOKED_AT_MAX).map(|_| Conversation::default()).collect();
        for round in 0..3 {
            for one in &all {
                session.read(one);
                // Waits before the answer and after it are alike.
                assert!(!session.looks(one, YIELDS) || round == 0, "there are more than processors");
                one.on_written();
                assert!(!session.looks(one, YIELDS) || round == 0, "there are more than processors");
            }
        }
        // The first wait learns that there are few.
        for begins in [false, true] {
            all[..LOOKED_AT_MAX as usize].iter().for_each(|one| session.read(one));
            assert_eq!(session.looks(&all[0], YIELDS), begins);
        }
    }
}

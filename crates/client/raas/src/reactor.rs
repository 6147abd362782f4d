//! Which of the blocked threads watches the descriptors: leader and followers, no thread of our own.
//!
//! Owns the queue of blocked threads. One of them leads: it sleeps in the kernel on all descriptors of the session and
//! wakes the others for what concerns them; they sleep each on its own [`Parker`]. When the leader leaves it names
//! another. It must never lose leadership while somebody sleeps, and never hold its lock while it sleeps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::park::{Parker, lock};

/// Longest sleep of any thread before it looks again at what it waits for. A wake that was lost, by a hostile peer or
/// a full wake socket, costs no more than this.
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Reactor {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    led: bool,
    next_ticket: u64,
    followers: BTreeMap<u64, Arc<Parker>>,
}

/// The role of a thread that wants to sleep.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    Leader(Leadership<'a>),
    Follower(u64),
}

/// The right to watch the descriptors; dropping it names the next leader.
#[derive(Debug)]
pub(crate) struct Leadership<'a>(&'a Reactor);

impl Reactor {
    /// Joins the blocked threads.
    pub(crate) fn enter(&self, parker: &Arc<Parker>) -> Place<'_> {
        let mut queue = lock(&self.queue);
        if !queue.led {
            queue.led = true;
            return Place::Leader(Leadership(self));
        }
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.followers.insert(ticket, Arc::clone(parker));
        Place::Follower(ticket)
    }

    /// Leads if nobody does.
    pub(crate) fn try_lead(&self) -> Option<Leadership<'_>> {
        let mut queue = lock(&self.queue);
        if queue.led {
            return None;
        }
        queue.led = true;
        Some(Leadership(self))
    }

    /// Whether some thread watches the descriptors, or is about to.
    pub(crate) fn is_led(&self) -> bool {
        lock(&self.queue).led
    }

    /// Sleeps as a follower until notified, at most until `deadline` or [`SLEEP_MAX`]. Some: the thread now leads.
    pub(crate) fn follow(&self, ticket: u64, parker: &Parker, deadline: Option<Instant>) -> Option<Leadership<'_>> {
        parker.park(sleep_bound(deadline));
        // The thread that named this one the leader took its ticket out. So the queue shows it, whatever woke the
        // thread.
        let still_follower = lock(&self.queue).followers.remove(&ticket).is_some();
        if still_follower { None } else { Some(Leadership(self)) }
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        // The one that has waited longest is likely to go on waiting, and will lead without interruption.
        match queue.followers.pop_first() {
            Some((_, parker)) => {
                parker.notify();
            }
            None => queue.led = false,
        }
    }
}

/// How long a thread with this deadline may sleep now.
pub(crate) fn sleep_bound(deadline: Option<Instant>) -> Duration {
    deadline.map_or(SLEEP_MAX, |d| d.saturating_duration_since(Instant::now()).min(SLEEP_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leadership_passes_on_and_ends() {
        let reactor = Reactor::default();
        let parkers: Vec<_> = (0..3).map(|_| Arc::new(Parker::default())).collect();
        let Place::Leader(first) = reactor.enter(&parkers[0]) else { panic!("the first leads") };
        let Place::Follower(a) = reactor.enter(&parkers[1]) else { panic!("the second follows") };
        let Place::Follower(b) = reactor.enter(&parkers[2]) else { panic!("the third follows") };
        drop(first);
        let second = reactor.follow(a, &parkers[1], None).expect("the longest sleeper leads now");
        parkers[2].notify();
        assert!(reactor.follow(b, &parkers[2], None).is_none(), "woken for its own sake");
        drop(second);
        assert!(matches!(reactor.enter(&parkers[0]), Place::Leader(_)), "nobody led");
    }
}

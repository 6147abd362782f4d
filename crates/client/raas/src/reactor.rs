//! Which of the blocked threads watches the descriptors: leader and followers, no thread of our own.
//!
//! Owns the queue of blocked threads. One of them leads: it sleeps in the kernel on all descriptors of the session and
//! wakes the others for what concerns them; they sleep each on its own [`Parker`]. When the leader leaves it names
//! another. It must never lose leadership while somebody sleeps, and never hold its lock while it sleeps.
//!
//! Threads that sleep in polls of their own (`elsewhere`) lead too, or rely on somebody who does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::park::{Parker, lock};

/// Longest sleep of any thread before it looks again at what it waits for. A wake that was lost, by a hostile peer or
/// a full wake socket, costs no more than this.
pub const SLEEP_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Reactor {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    led: bool,
    next_ticket: u64,
    followers: BTreeMap<u64, Arc<Parker>>,
    /// Threads that sleep in polls of their own and rely on somebody who leads.
    outsiders: u32,
    /// Leads for them. None: somebody leads at all times.
    watcher: Option<Arc<Parker>>,
    /// It is the watcher who leads.
    watcher_leads: bool,
}

/// The role of a thread that wants to sleep in a poll of its own.
#[derive(Debug)]
pub(crate) enum Outside<'a> {
    Leader(Leadership<'a>),
    /// Somebody else leads. To be counted out by [`Reactor::leave_outside`].
    Outsider,
    /// The watcher leads, for nobody: it is to be kicked.
    WatcherLeads,
}

/// The role of a thread that wants to sleep.
#[derive(Debug)]
pub(crate) enum Role<'a> {
    Leader(Leadership<'a>),
    Follower(u64),
}

/// The right to watch the descriptors; dropping it names the next leader.
#[derive(Debug)]
pub(crate) struct Leadership<'a>(&'a Reactor);

impl Reactor {
    /// Joins the blocked threads.
    pub(crate) fn enter(&self, parker: &Arc<Parker>) -> Role<'_> {
        let mut queue = lock(&self.queue);
        if !queue.led {
            queue.led = true;
            queue.watcher_leads = queue.watcher.as_ref().is_some_and(|watcher| Arc::ptr_eq(watcher, parker));
            return Role::Leader(Leadership(self));
        }
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.followers.insert(ticket, Arc::clone(parker));
        Role::Follower(ticket)
    }

    /// Leads if nobody does.
    pub(crate) fn try_lead(&self) -> Option<Leadership<'_>> {
        let mut queue = lock(&self.queue);
        if queue.led {
            return None;
        }
        queue.led = true;
        queue.watcher_leads = false;
        Some(Leadership(self))
    }

    /// A thread wants to sleep in a poll of its own. `patiently`: it would rather lead than have the watcher do so.
    pub(crate) fn enter_outside(&self, patiently: bool) -> Outside<'_> {
        let mut queue = lock(&self.queue);
        if !queue.led {
            queue.led = true;
            queue.watcher_leads = false;
            return Outside::Leader(Leadership(self));
        }
        if patiently && queue.watcher_leads && queue.outsiders == 0 {
            return Outside::WatcherLeads;
        }
        queue.outsiders += 1;
        Outside::Outsider
    }

    /// An outsider is awake.
    pub(crate) fn leave_outside(&self) {
        lock(&self.queue).outsiders -= 1;
    }

    /// Whether threads sleep in polls of their own and rely on somebody who leads.
    pub(crate) fn has_outsiders(&self) -> bool {
        lock(&self.queue).outsiders > 0
    }

    /// This one leads while there are outsiders, and else nobody need.
    pub(crate) fn set_watcher(&self, parker: &Arc<Parker>) {
        lock(&self.queue).watcher = Some(Arc::clone(parker));
    }

    /// Has the watcher look whether it is to end, if it sleeps for nobody.
    pub(crate) fn notify_watcher(&self) {
        if let Some(watcher) = &lock(&self.queue).watcher {
            watcher.notify();
        }
    }

    /// Whether some thread watches the descriptors, or is about to.
    pub(crate) fn is_led(&self) -> bool {
        lock(&self.queue).led
    }

    /// Sleeps as a follower until notified or `beside` has something to tell, at most until `deadline` or [`SLEEP_MAX`].
    /// Some: the thread now leads.
    pub(crate) fn follow(
        &self,
        ticket: u64,
        parker: &Parker,
        beside: Option<PollFd<'_>>,
        deadline: Option<Instant>,
    ) -> Option<Leadership<'_>> {
        let bound = sleep_bound(deadline);
        match beside {
            Some(beside) => parker.park_beside(beside, bound),
            None => parker.park(bound),
        }
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
                queue.watcher_leads = queue.watcher.as_ref().is_some_and(|watcher| Arc::ptr_eq(watcher, &parker));
                parker.notify();
            }
            None => {
                (queue.led, queue.watcher_leads) = (false, false);
                if queue.outsiders > 0
                    && let Some(watcher) = &queue.watcher
                {
                    watcher.notify();
                }
            }
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
        let Role::Leader(first) = reactor.enter(&parkers[0]) else { panic!("the first leads") };
        let Role::Follower(a) = reactor.enter(&parkers[1]) else { panic!("the second follows") };
        let Role::Follower(b) = reactor.enter(&parkers[2]) else { panic!("the third follows") };
        drop(first);
        let second = reactor.follow(a, &parkers[1], None, None).expect("the longest sleeper leads now");
        parkers[2].notify();
        assert!(reactor.follow(b, &parkers[2], None, None).is_none(), "woken for its own sake");
        drop(second);
        assert!(matches!(reactor.enter(&parkers[0]), Role::Leader(_)), "nobody led");
    }

    #[test]
    fn a_thread_that_sleeps_elsewhere_leads_or_has_the_watcher_lead() {
        let (reactor, watcher) = (Reactor::default(), Arc::new(Parker::default()));
        reactor.set_watcher(&watcher);
        let Outside::Leader(first) = reactor.enter_outside(true) else { panic!("nobody led") };
        assert!(matches!(reactor.enter_outside(true), Outside::Outsider), "the first one leads");
        assert!(!watcher.is_notified() && reactor.has_outsiders());
        drop(first);
        assert!(watcher.is_notified(), "somebody sleeps and relies on a leader");
        let Role::Leader(leads) = reactor.enter(&watcher) else { panic!("nobody led") };
        reactor.leave_outside();
        assert!(matches!(reactor.enter_outside(true), Outside::WatcherLeads), "it leads for nobody");
        assert!(matches!(reactor.enter_outside(false), Outside::Outsider));
        assert!(matches!(reactor.enter_outside(true), Outside::Outsider), "it leads for somebody");
        drop(leads);
        let Outside::Leader(third) = reactor.enter_outside(true) else { panic!("the watcher has left") };
        watcher.prepare();
        reactor.leave_outside();
        reactor.leave_outside();
        drop(third);
        assert!(!watcher.is_notified(), "nobody needs it");
    }
}

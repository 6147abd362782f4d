//! The handles to regions that a session gave out, for news of the daemon.
//!
//! Owns the way of a piece of news to its handle. News of a handle that its caller does not have yet are kept, at most
//! [`EARLY_MAX`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use raas_core::RegionNews;

use crate::park::lock;

/// News of handles that their callers do not have yet, at most.
const EARLY_MAX: usize = 1024;

/// A handle to a region, for which the daemon has news.
pub(crate) trait RegionUser: std::fmt::Debug + Send + Sync {
    /// The handle's number in the session.
    fn open_number(&self) -> u64;

    /// Does what the daemon's news ask for. It may send, so no lock is held.
    fn follow(self: Arc<Self>, news: RegionNews);

    /// The daemon that gave it has ended, and the session goes on with another. It is over, or is brought to the next
    /// daemon: then the result is true. It must not send, wait or notify; [`RegionUser::wake`] follows.
    fn part(&self) -> bool;

    /// Nothing goes by its queue any more. All handles have been told [`RegionUser::part`] before, for they share queues:
    /// one that finds its queue ended must find that it has ended itself.
    fn part_queue(&self);

    /// There is another daemon, and the handle is one that is brought to it. May wait for answers.
    fn bring_back(self: Arc<Self>);

    /// It is over with the daemon that gave it, whosever it is.
    fn lose(&self);

    /// Wakes whoever waits for news: the session is over, or the handle is.
    fn wake(&self);
}

#[derive(Debug, Default)]
struct Inner {
    handles: BTreeMap<u64, Weak<dyn RegionUser>>,
    early: VecDeque<RegionNews>,
    /// What is to be brought to the next daemon.
    parted: Vec<Weak<dyn RegionUser>>,
    /// Which daemon of the session gave the handles: those before it are gone.
    daemon: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct RegionTable(Mutex<Inner>);

impl RegionTable {
    /// A caller has the handle, which a daemon of the session gave. False: that one ended before.
    pub(crate) fn add(&self, handle: &Arc<dyn RegionUser>, daemon: u64) -> bool {
        let open = handle.open_number();
        let mut inner = lock(&self.0);
        if daemon != inner.daemon {
            return false;
        }
        inner.handles.insert(open, Arc::downgrade(handle));
        let (mine, others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut inner.early).into_iter().partition(|news| news.open() == open);
        inner.early = others;
        drop(inner);
        mine.into_iter().for_each(|news| Arc::clone(handle).follow(news));
        true
    }

    /// Nobody has the handle any more.
    pub(crate) fn remove(&self, open: u64) {
        lock(&self.0).handles.remove(&open);
    }

    /// Gives news to the handle that they are of.
    pub(crate) fn follow(&self, news: RegionNews) {
        if let Some((handle, news)) = self.take(news) {
            handle.follow(news);
        }
    }

    fn take(&self, news: RegionNews) -> Option<(Arc<dyn RegionUser>, RegionNews)> {
        let mut inner = lock(&self.0);
        match inner.handles.get(&news.open()) {
            Some(handle) => Some((handle.upgrade()?, news)),
            None => {
                if inner.early.len() >= EARLY_MAX {
                    inner.early.pop_front();
                }
                inner.early.push_back(news);
                None
            }
        }
    }

    /// The daemon has ended, and so many had before: its handles are to be woken.
    pub(crate) fn part(&self, daemon: u64) -> Vec<Arc<dyn RegionUser>> {
        let mut inner = lock(&self.0);
        inner.daemon = daemon;
        inner.early.clear();
        let handles: Vec<_> = std::mem::take(&mut inner.handles).into_values().filter_map(|h| h.upgrade()).collect();
        drop(inner);
        let parted: Vec<_> = handles.iter().filter(|handle| handle.part()).map(Arc::downgrade).collect();
        handles.iter().for_each(|handle| handle.part_queue());
        lock(&self.0).parted.extend(parted);
        handles
    }

    /// What is to be brought to the daemon that has come.
    pub(crate) fn take_parted(&self) -> Vec<Arc<dyn RegionUser>> {
        let parted = std::mem::take(&mut lock(&self.0).parted);
        parted.iter().filter_map(Weak::upgrade).collect()
    }

    /// All handles: the session is over.
    pub(crate) fn wake_all(&self) {
        let handles: Vec<_> = {
            let inner = lock(&self.0);
            inner.handles.values().chain(&inner.parted).filter_map(Weak::upgrade).collect()
        };
        handles.iter().for_each(|handle| handle.wake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct User {
        open: u64,
        news: AtomicU32,
        parts: AtomicU32,
        is_owners: bool,
    }

    impl RegionUser for User {
        fn open_number(&self) -> u64 {
            self.open
        }

        fn follow(self: Arc<Self>, _: RegionNews) {
            self.news.fetch_add(1, Ordering::Relaxed);
        }

        fn part(&self) -> bool {
            self.parts.fetch_add(1, Ordering::Relaxed);
            self.is_owners
        }

        fn part_queue(&self) {}

        fn bring_back(self: Arc<Self>) {}

        fn lose(&self) {}

        fn wake(&self) {}
    }

    #[test]
    fn handles_and_news_of_a_daemon_are_nothing_of_the_next_ones() {
        let table = RegionTable::default();
        let [had, late, next] = [7, 8, 8].map(|open| Arc::new(User { open, ..User::default() }));
        let add = |user: &Arc<User>, daemon| table.add(&(Arc::clone(user) as Arc<dyn RegionUser>), daemon);
        let counts = |user: &User| (user.news.load(Ordering::Relaxed), user.parts.load(Ordering::Relaxed));
        let news = |open| RegionNews::LeaseOver { open, lease: 1 };
        assert!(add(&had, 0));
        table.follow(news(7));
        table.follow(news(8));
        assert_eq!(table.part(1).len(), 1);
        table.follow(news(7));
        // Its answer came of the daemon that has ended.
        assert!(!add(&late, 0) && add(&next, 1));
        assert_eq!([&had, &late, &next].map(|user| counts(user)), [(1, 1), (0, 0), (0, 0)]);
        table.follow(news(8));
        assert_eq!([&late, &next].map(|user| counts(user)), [(0, 0), (1, 0)]);
        assert!(table.part(2).iter().all(|user| user.open_number() == 8));
        assert!(table.take_parted().is_empty(), "none of these is its owner's");
    }

    #[test]
    fn an_owners_handle_is_brought_back_once_for_each_daemon() {
        let table = RegionTable::default();
        let [own, dropped] = [5, 6].map(|open| Arc::new(User { open, is_owners: true, ..User::default() }));
        let add = |user: &Arc<User>, daemon| table.add(&(Arc::clone(user) as Arc<dyn RegionUser>), daemon);
        assert!(add(&own, 0) && add(&dropped, 0));
        assert_eq!(table.part(1).len(), 2);
        drop(dropped);
        let parted = table.take_parted();
        assert!(parted.len() == 1 && parted[0].open_number() == 5);
        assert!(table.take_parted().is_empty());
        assert!(!add(&own, 0), "that daemon is gone");
        assert!(add(&own, 1));
        assert_eq!(table.part(2).len(), 1);
        assert_eq!(table.take_parted().len(), 1);
    }
}

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

    /// Wakes whoever waits for news: the session is over.
    fn wake(&self);
}

#[derive(Debug, Default)]
struct Inner {
    handles: BTreeMap<u64, Weak<dyn RegionUser>>,
    early: VecDeque<RegionNews>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct RegionTable(Mutex<Inner>);

impl RegionTable {
    /// A caller has the handle.
    pub(crate) fn add(&self, handle: &Arc<dyn RegionUser>) {
        let open = handle.open_number();
        let mut inner = lock(&self.0);
        inner.handles.insert(open, Arc::downgrade(handle));
        let (mine, others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut inner.early).into_iter().partition(|news| news.open() == open);
        inner.early = others;
        drop(inner);
        mine.into_iter().for_each(|news| Arc::clone(handle).follow(news));
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

    /// Whether there is no handle.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).handles.values().all(|handle| handle.strong_count() == 0)
    }

    /// All handles: the session is over.
    pub(crate) fn wake_all(&self) {
        let handles: Vec<_> = lock(&self.0).handles.values().filter_map(Weak::upgrade).collect();
        handles.iter().for_each(|handle| handle.wake());
    }
}

//! The handles to regions that a session gave out, for news of the daemon.
//!
//! Owns the way of a piece of news to its handle. News of a handle that its caller does not have yet are kept, at most
//! [`EARLY_MAX`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use raas_core::RegionNews;

use super::handle::Handle;
use crate::attachment::Attachment;
use crate::park::lock;

/// News of handles that their callers do not have yet, at most.
const EARLY_MAX: usize = 1024;

#[derive(Debug, Default)]
struct Inner {
    handles: BTreeMap<u64, Weak<Handle>>,
    early: VecDeque<RegionNews>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct RegionTable(Mutex<Inner>);

impl RegionTable {
    /// A caller has the handle.
    pub(super) fn add(&self, handle: &Arc<Handle>) {
        let open = handle.open_number();
        let mut inner = lock(&self.0);
        inner.handles.insert(open, Arc::downgrade(handle));
        let (mine, others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut inner.early).into_iter().partition(|news| open_of(news) == open);
        inner.early = others;
        drop(inner);
        mine.into_iter().for_each(|news| handle.follow(news));
    }

    /// Nobody has the handle any more.
    pub(super) fn remove(&self, open: u64) {
        lock(&self.0).handles.remove(&open);
    }

    fn take(&self, news: RegionNews) -> Option<(Arc<Handle>, RegionNews)> {
        let mut inner = lock(&self.0);
        match inner.handles.get(&open_of(&news)) {
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

    /// All handles: the session is over.
    pub(crate) fn wake_all(&self) {
        let handles: Vec<_> = lock(&self.0).handles.values().filter_map(Weak::upgrade).collect();
        handles.iter().for_each(|handle| handle.wake());
    }
}

fn open_of(news: &RegionNews) -> u64 {
    match news {
        RegionNews::Move { open, .. } | RegionNews::Ended { open, .. } | RegionNews::Notified { open, .. } => *open,
    }
}

impl Attachment {
    /// Follows what the daemon said of handles to regions.
    pub(crate) fn follow_region_news(&self) {
        loop {
            let news = lock(&self.tables).session.next_region_news();
            let Some(news) = news else { return };
            // Outside of the tables' lock: the handle may send.
            if let Some((handle, news)) = self.regions.take(news) {
                handle.follow(news);
            }
        }
    }
}

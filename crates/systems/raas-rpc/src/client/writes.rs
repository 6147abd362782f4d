//! Writes of requests, whose ends nobody waits for: what matters is the response.
//!
//! Owns how many are under way, and what is made of one that failed. Their ends must be looked at now and then, because
//! only then goes in what waits for room in the queue.

use std::collections::VecDeque;
use std::sync::Mutex;

use raas::{Batch, Pending, RegionError, RegionRefusal};

use super::channel::ChannelOver;
use crate::server::lock;

/// Writes under way at most; with more, the oldest is waited for.
const WRITES_MAX: usize = 16;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Writes(Mutex<VecDeque<Pending>>);

impl Writes {
    /// Begins a write.
    pub(super) fn begin(&self, batch: Batch) -> Result<(), ChannelOver> {
        let write = batch.submit()?;
        self.look()?;
        let oldest = {
            let mut writes = lock(&self.0);
            writes.push_back(write);
            if writes.len() > WRITES_MAX { writes.pop_front() } else { None }
        };
        match oldest {
            Some(oldest) => judge(oldest.wait()?.check()),
            None => Ok(()),
        }
    }

    /// Looks at those that have ended. An error says that the server's memory cannot be written any more.
    pub(super) fn look(&self) -> Result<(), ChannelOver> {
        let mut writes = lock(&self.0);
        while let Some(ended) = writes.front_mut().and_then(Pending::try_take) {
            writes.pop_front();
            judge(ended.check())?;
        }
        Ok(())
    }
}

fn judge(result: Result<(), RegionError>) -> Result<(), ChannelOver> {
    match result {
        // The bytes are there, and with so many notifications the server does not sleep.
        Err(RegionError::Refused { why: RegionRefusal::NotificationsFull { .. }, .. }) => Ok(()),
        result => Ok(result?),
    }
}

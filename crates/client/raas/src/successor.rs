//! The session that takes the place of one whose daemon was lost.
//!
//! Owns the way from a lost session to its successor, which all its users share. It must never make two successors of
//! one session.

use std::sync::Arc;
use std::time::Duration;

use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::lock;

impl Attachment {
    /// This session while its daemon is there; else the one in its place, which is made now if nobody made it before. A
    /// daemon has `within` to answer.
    pub(crate) fn successor(self: &Arc<Self>, within: Duration) -> Result<Arc<Self>, SessionError> {
        self.check_fork()?;
        if self.daemon_is_there() {
            return Ok(Arc::clone(self));
        }
        // Under the lock, so that callers that come meanwhile get the same one.
        let mut place = lock(&self.successor);
        let next = match &*place {
            Some(next) => next.successor(within)?,
            None => Self::connect(self.config.clone(), within)?,
        };
        if self.is_watched() {
            next.ensure_watched()?;
        }
        *place = Some(Arc::clone(&next));
        Ok(next)
    }
}

//! The session that takes the place of one whose daemon was lost.
//!
//! Owns the way from a lost session to its successor, which all its users share. It must never make two successors of
//! one session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::lock;

/// How long the thread that follows the session may take to notice that its daemon ended.
const NOTICE_MAX: Duration = Duration::from_secs(1);
/// Pause between two looks at whether it did.
const LOOK: Duration = Duration::from_millis(1);

impl Attachment {
    /// This session while its daemon is there; else the one in its place, which is made now if nobody made it before. A
    /// daemon has `within` to answer.
    pub(crate) fn successor(self: &Arc<Self>, within: Duration) -> Result<Arc<Self>, SessionError> {
        self.check_fork()?;
        if self.daemon_is_there() {
            return Ok(Arc::clone(self));
        }
        if self.returns()? {
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

    /// Whether the session goes on with the next daemon. An error: it would, and there is none yet.
    fn returns(self: &Arc<Self>) -> Result<bool, SessionError> {
        let end = Instant::now() + NOTICE_MAX;
        while !self.is_over() {
            if self.is_away() {
                let returned = self.return_now();
                if !self.is_over() {
                    return returned.map(|()| true);
                }
                break;
            }
            if self.daemon_is_there() {
                return Ok(true);
            }
            // Whoever follows the session is about to notice.
            self.look();
            if Instant::now() >= end {
                break;
            }
            std::thread::sleep(LOOK);
        }
        Ok(false)
    }
}

//! Waiting for the daemon's answer to a request.
//!
//! Owns the end of the wait. It must never leave a request behind that nobody waits for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raas_core::{Answer, RequestId};

use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::{Parker, lock};

/// Waits for the answer to a request that was sent; `parker` is notified of it. None: it did not come in time. If it
/// still comes, it finds no waiter, and is undone.
pub(crate) fn wait_for_answer(
    attachment: &Arc<Attachment>,
    request: RequestId,
    parker: &Arc<Parker>,
    timeout: Duration,
) -> Result<Option<Answer>, SessionError> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let slept = attachment.block(parker, deadline, &mut || lock(&attachment.tables).is_over(request));
        let is_late = deadline.is_some_and(|d| Instant::now() >= d);
        // In a forked child the tables are the parent's, and may be locked for ever.
        attachment.check_fork()?;
        let mut tables = lock(&attachment.tables);
        if slept.is_err() || is_late || tables.is_over(request) {
            let (answer, lost) = (tables.finish(request), tables.lost());
            slept?;
            return match (answer, lost) {
                (None, Some(lost)) => Err(lost),
                (answer, _) => Ok(answer),
            };
        }
    }
}

//! Requests about regions whose caller waits for the answer.
//!
//! Owns nothing. It must never wait longer than the session's bound.

use std::sync::Arc;

use control::Request;
use raas_core::{Answer, RequestId, Session};

use super::error::RegionError;
use crate::answer_wait::wait_for_answer;
use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::Parker;
use crate::poller::Waiter;

/// Asks the daemon, and waits for its answer.
pub(super) fn ask(
    attachment: &Arc<Attachment>,
    make: impl FnOnce(&mut Session) -> (RequestId, Request),
) -> Result<Answer, RegionError> {
    let parker = Arc::new(Parker::default());
    let request = attachment.ask(vec![Waiter::Thread(Arc::clone(&parker))], make)?;
    let waited = attachment.config.timeout;
    let silent = || SessionError::Silent { path: attachment.config.path.clone(), waited };
    Ok(wait_for_answer(attachment, request, &parker, waited)?.ok_or_else(silent)?)
}

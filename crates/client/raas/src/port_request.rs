//! Asking the daemon for a port of this host: of a listener, or of a datagram socket.
//!
//! Owns the wait for the answer. It must never ask for an address that is not this host's.

use std::net::SocketAddr;
use std::sync::Arc;

use control::Request;
use raas_core::{Answer, RequestId, Session};

use crate::answer_wait::wait_for_answer;
use crate::attachment::Attachment;
use crate::error::{BindError, SessionError};
use crate::park::Parker;
use crate::poller::Waiter;

/// Sends the request that `make` makes for the port of `addr`, and returns the daemon's answer.
pub(crate) fn ask_for_port(
    attachment: &Arc<Attachment>,
    addr: SocketAddr,
    make: impl FnOnce(&mut Session) -> (RequestId, Request),
) -> Result<Answer, BindError> {
    if !addr.ip().is_unspecified() && !attachment.addresses.contains(&addr.ip()) {
        return Err(BindError::NotThisHost { addr, addresses: attachment.addresses.clone() });
    }
    let parker = Arc::new(Parker::default());
    let request = attachment.ask(vec![Waiter::Thread(Arc::clone(&parker))], make)?;
    let waited = attachment.config.timeout;
    // An answer that comes later finds nobody, and is undone then.
    let silent = || SessionError::Silent { path: attachment.config.path.clone(), waited };
    Ok(wait_for_answer(attachment, request, &parker, waited)?.ok_or_else(silent)?)
}

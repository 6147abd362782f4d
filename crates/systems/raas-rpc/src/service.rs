//! What a server calls: a service that makes a response of a request.
//!
//! Owns the interface alone; a codec stands on it. A service runs in threads of the server, several calls at a time.

use std::time::Instant;

use crate::hello::{ClientId, Transport};

/// What a service may know of the call that it answers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallInfo {
    /// Who calls.
    pub client: ClientId,
    /// The call's number; with the client's name it is the call's identity, and no other call ever has both.
    pub sequence: u64,
    /// When nobody waits for the response any more; `None` if the client gave no deadline. A call whose deadline has
    /// passed when its turn comes is not begun.
    pub deadline: Option<Instant>,
    /// How the request came.
    pub transport: Transport,
}

/// A service: request bytes in, response bytes out.
///
/// Any `Fn(&CallInfo, &[u8]) -> Result<Vec<u8>, String>` is one. Each call is executed at most once, however often its
/// request came. An `Err` reaches the caller as [`CallError::Failed`](crate::CallError::Failed) with that text. If a
/// service panics its caller gets [`CallError::Panicked`](crate::CallError::Panicked), and the server goes on.
pub trait Service: Send + Sync + 'static {
    /// Makes the response.
    fn call(&self, info: &CallInfo, request: &[u8]) -> Result<Vec<u8>, String>;
}

impl<F> Service for F
where
    F: Fn(&CallInfo, &[u8]) -> Result<Vec<u8>, String> + Send + Sync + 'static,
{
    fn call(&self, info: &CallInfo, request: &[u8]) -> Result<Vec<u8>, String> {
        self(info, request)
    }
}

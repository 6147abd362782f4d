//! The making of connections and listeners for tasks.
//!
//! Owns what may wait on a thread that may. It must never block a task.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{ToSocketAddrs, lookup_host};

use crate::addresses::Failures;
use crate::dial::ConnectOptions;
use crate::error::{BindError, ConnectError, SessionError};
use crate::fallback_tcp::{self, CarriedBy};
use crate::listen_options::ListenOptions;
use crate::session::{Session, TIMEOUT_DEFAULT};

/// The addresses in turn.
pub(super) async fn dial(
    session: Result<Session, SessionError>,
    addr: impl ToSocketAddrs,
    options: &ConnectOptions,
) -> Result<crate::Stream, ConnectError> {
    options.check()?;
    let carrier = options.fallback.carried_by(session)?;
    let mut failures = Failures::new();
    for to in lookup_host(addr).await.map_err(ConnectError::Resolve)? {
        match connect_one(&carrier, to, options).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failures.add(error)?,
        }
    }
    Err(failures.into_error())
}

async fn connect_one(
    carrier: &CarriedBy,
    to: SocketAddr,
    options: &ConnectOptions,
) -> Result<crate::Stream, ConnectError> {
    let (cause, daemon) = match carrier {
        CarriedBy::Tcp(cause) => (*cause, None),
        CarriedBy::Daemon(session) => {
            let connected = match options.begin_now(session, to) {
                Ok(connecting) => connecting.await,
                Err(e) => Err(e),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(failed) => match options.fallback.cause_of(&failed) {
                    Some(cause) => (cause, Some(Arc::clone(&session.attachment))),
                    None => return Err(failed),
                },
            }
        }
    };
    let limits = options.limits(daemon.as_ref().map_or(TIMEOUT_DEFAULT, |attachment| attachment.config.timeout));
    aside(move || fallback_tcp::connect(to, cause, limits, daemon.as_ref())).await
}

pub(super) async fn listen(
    session: Result<Session, SessionError>,
    addr: impl ToSocketAddrs,
    options: ListenOptions,
) -> Result<crate::Listener, BindError> {
    let addresses: Vec<SocketAddr> = lookup_host(addr).await.map_err(BindError::Resolve)?.collect();
    aside(move || options.listen(session, &addresses[..])).await
}

/// The process-wide session; attaching may wait for the daemon.
pub(super) async fn global() -> Result<Session, SessionError> {
    aside(Session::global).await
}

/// Runs what may wait on a thread that may.
pub(super) async fn aside<T: Send + 'static, E: From<SessionError> + Send + 'static>(
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(e) => Err(SessionError::io("a thread of the runtime", io::Error::other(e)).into()),
    }
}

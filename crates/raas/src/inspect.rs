//! Questions to the daemon, for `raas ss`, `raas stat` and tools like them.
//!
//! Owns the connection of an inspector, which gets no shared memory. It must never keep more rows than it has room for.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use control::{ChannelError, ConnectionRow, InspectAnswer, InspectQuery, Reply, Request, Role, Stat};
use rustix::event::PollFlags;

use crate::SessionError;
use crate::attach::{attach, channel_error, wait_for};

/// How long the daemon may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Rows of one answer at most.
const ROWS_MAX: usize = 4 << 20;

/// All connections of the host. `socket`: None for the rule of [`crate::Session::global`].
pub fn connections(socket: Option<&Path>) -> Result<Vec<ConnectionRow>, SessionError> {
    let mut rows = Vec::new();
    ask(socket, InspectQuery::Connections, |answer| match answer {
        InspectAnswer::Connections(part) if rows.len() + part.len() <= ROWS_MAX => {
            rows.extend(part);
            Ok(())
        }
        InspectAnswer::Connections(_) => Err(SessionError::Protocol(format!("more than {ROWS_MAX} connections"))),
        InspectAnswer::Stat(_) => Err(SessionError::Protocol("asked for connections, told the state".into())),
    })?;
    Ok(rows)
}

/// The host's device, lanes, resources, counters and applications. `socket` as in [`connections`].
pub fn stat(socket: Option<&Path>) -> Result<Stat, SessionError> {
    let mut stat: Option<Stat> = None;
    ask(socket, InspectQuery::Stat, |answer| match answer {
        // Each part has some lanes and applications; the rest is the same in all.
        InspectAnswer::Stat(told) => {
            match &mut stat {
                None => stat = Some(*told),
                Some(whole) => {
                    whole.lanes.extend(told.lanes);
                    whole.apps.extend(told.apps);
                }
            }
            Ok(())
        }
        InspectAnswer::Connections(_) => Err(SessionError::Protocol("asked for the state, told connections".into())),
    })?;
    stat.ok_or_else(|| SessionError::Protocol("the answer has no part".into()))
}

fn ask(
    socket: Option<&Path>,
    query: InspectQuery,
    mut take: impl FnMut(InspectAnswer) -> Result<(), SessionError>,
) -> Result<(), SessionError> {
    let path = control::socket_path(socket);
    let name = format!("inspector {}", std::process::id());
    let (control, _) = attach(&path, Role::Inspector, name, TIMEOUT)?;
    control::send_message(control.as_fd(), &Request::Inspect { request: 1, query }, &[]).map_err(channel_error)?;
    let mut buffer = Vec::new();
    let mut deadline = Instant::now() + TIMEOUT;
    loop {
        match control::recv_message::<Reply>(control.as_fd(), &mut buffer) {
            Ok((Reply::Inspected { request: 1, answer, more }, _)) => {
                take(answer)?;
                if !more {
                    return Ok(());
                }
                deadline = Instant::now() + TIMEOUT;
            }
            Ok((Reply::Detached { reason, .. }, _)) => return Err(SessionError::Lost { reason }),
            Ok((other, _)) => return Err(SessionError::Protocol(format!("the answer to Inspect was {other:?}"))),
            Err(ChannelError::WouldBlock) => {
                if !wait_for(control.as_fd(), PollFlags::IN, deadline)? {
                    return Err(SessionError::Silent { path, waited: TIMEOUT });
                }
            }
            Err(e) => return Err(channel_error(e)),
        }
    }
}

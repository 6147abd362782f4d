//! Questions to the daemon, for `raas ss`, `raas stat` and tools like them.
//!
//! Owns the connection of an inspector, which gets no shared memory. It must never keep more rows than it has room for.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use control::{ChannelError, ConnectionRow, DatagramRow, InspectAnswer, InspectQuery, Reply, Request, Role, Stat};
use rustix::event::PollFlags;

use crate::SessionError;
use crate::attach::{attach, channel_error, wait_for};

/// How long the daemon may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of the only question of a connection.
const REQUEST: u64 = 1;
/// Rows of one answer at most.
const ROWS_MAX: usize = 4 << 20;

/// All connections of the host. `socket`: None for the rule of [`crate::Session::global`].
pub fn connections(socket: Option<&Path>) -> Result<Vec<ConnectionRow>, SessionError> {
    let mut rows = Vec::new();
    let query = Request::Inspect { request: REQUEST, query: InspectQuery::Connections };
    ask(socket, &query, |answer| match answer {
        InspectAnswer::Connections(part) if rows.len() + part.len() <= ROWS_MAX => {
            rows.extend(part);
            Ok(())
        }
        InspectAnswer::Connections(_) => Err(SessionError::Protocol(format!("more than {ROWS_MAX} connections"))),
        other => Err(SessionError::Protocol(format!("asked for connections, told {other:?}"))),
    })?;
    Ok(rows)
}

/// All datagram sockets of the host. `socket` as in [`connections`].
pub fn datagrams(socket: Option<&Path>) -> Result<Vec<DatagramRow>, SessionError> {
    let mut rows = Vec::new();
    let query = Request::Inspect { request: REQUEST, query: InspectQuery::Datagrams };
    ask(socket, &query, |answer| match answer {
        InspectAnswer::Datagrams(part) if rows.len() + part.len() <= ROWS_MAX => {
            rows.extend(part);
            Ok(())
        }
        InspectAnswer::Datagrams(_) => Err(SessionError::Protocol(format!("more than {ROWS_MAX} datagram sockets"))),
        other => Err(SessionError::Protocol(format!("asked for datagram sockets, told {other:?}"))),
    })?;
    Ok(rows)
}

/// The host's device, lanes, resources, counters and applications. `socket` as in [`connections`].
pub fn stat(socket: Option<&Path>) -> Result<Stat, SessionError> {
    let mut stat: Option<Stat> = None;
    let query = Request::Inspect { request: REQUEST, query: InspectQuery::Stat };
    ask(socket, &query, |answer| match answer {
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
        other => Err(SessionError::Protocol(format!("asked for the state, told {other:?}"))),
    })?;
    stat.ok_or_else(|| SessionError::Protocol("the answer has no part".into()))
}

/// Breaks the queue pair of the lane to `peer`, as a failure of the device would: its connections see a pause. False: there is
/// no lane to that host. Only root and the daemon's user may. `socket` as in [`connections`].
pub fn reset_lane(socket: Option<&Path>, peer: IpAddr) -> Result<bool, SessionError> {
    let mut found = false;
    ask(socket, &Request::ResetLane { request: REQUEST, peer }, |answer| match answer {
        InspectAnswer::LaneReset(was) => {
            found = was;
            Ok(())
        }
        other => Err(SessionError::Protocol(format!("asked for a reset, told {other:?}"))),
    })?;
    Ok(found)
}

fn ask(
    socket: Option<&Path>,
    query: &Request,
    mut take: impl FnMut(InspectAnswer) -> Result<(), SessionError>,
) -> Result<(), SessionError> {
    let path = control::socket_path(socket);
    let name = format!("inspector {}", std::process::id());
    let (control, _) = attach(&path, Role::Inspector, name, TIMEOUT)?;
    control::send_message(control.as_fd(), query, &[]).map_err(channel_error)?;
    let mut buffer = Vec::new();
    let mut deadline = Instant::now() + TIMEOUT;
    loop {
        match control::recv_message::<Reply>(control.as_fd(), &mut buffer) {
            Ok((Reply::Inspected { request: REQUEST, answer, more }, _)) => {
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

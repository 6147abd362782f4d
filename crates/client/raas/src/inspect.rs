//! Questions to the daemon, for `raas ss`, `raas stat` and tools like them.
//!
//! Owns the connection of an inspector, which gets no shared memory. It must never keep more rows than it has room for,
//! and must never ask for a page before it has read the one before.
//!
//! Root and the daemon's user see all connections; other users see their own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use control::{
    AppRow, ConnectionRow, ConnectionState, DatagramRow, DirectoryRow, HandOverRefusal, LaneRow, MemberRow, RegionRow,
    StageRow, Stat, Successor, TenantRow, TraceRow,
};
use control::{ChannelError, Cursor, InspectAnswer, InspectQuery, Reply, Request, Role};
use raas_core::SessionFault;
use rustix::event::PollFlags;

use crate::control_socket::attach;
use crate::descriptor::wait_for;
use crate::error::SessionError;
use crate::lookup;

/// How long the daemon may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of a question; there is one at a time.
const REQUEST: u64 = 1;
/// Rows of one answer at most.
const ROWS_MAX: usize = 4 << 20;
/// Pages of one answer at most: each looks at some of the daemon's rows, and may have none.
const PAGES_MAX: usize = 1 << 20;

/// All connections of the host. `socket`: None looks for the daemon as [`crate::Session::global`] does.
pub fn connections(socket: Option<&Path>) -> Result<Vec<ConnectionRow>, SessionError> {
    rows(socket, InspectQuery::Connections, "connections", |answer| match answer {
        InspectAnswer::Connections(rows) => Ok(rows),
        other => Err(other),
    })
}

/// All datagram sockets of the host. `socket` as in [`connections`].
pub fn datagrams(socket: Option<&Path>) -> Result<Vec<DatagramRow>, SessionError> {
    rows(socket, InspectQuery::Datagrams, "datagram sockets", |answer| match answer {
        InspectAnswer::Datagrams(rows) => Ok(rows),
        other => Err(other),
    })
}

/// The regions of the host: an ordinary user's own, and those that are open to other users. `socket` as in
/// [`connections`].
pub fn regions(socket: Option<&Path>) -> Result<Vec<RegionRow>, SessionError> {
    rows(socket, InspectQuery::Regions, "regions", |answer| match answer {
        InspectAnswer::Regions(rows) => Ok(rows),
        other => Err(other),
    })
}

/// Messages that the daemon's engines looked at, stage by stage, the last ones of each engine. `socket` as in
/// [`connections`].
pub fn trace(socket: Option<&Path>) -> Result<Vec<TraceRow>, SessionError> {
    rows(socket, InspectQuery::Trace, "messages", |answer| match answer {
        InspectAnswer::Trace(rows) => Ok(rows),
        other => Err(other),
    })
}

/// The tenants of the daemon's policy, in its order; for an ordinary user those of its own programs. `socket` as in
/// [`connections`].
pub fn tenants(socket: Option<&Path>) -> Result<Vec<TenantRow>, SessionError> {
    rows(socket, InspectQuery::Tenants, "tenants", |answer| match answer {
        InspectAnswer::Tenants(rows) => Ok(rows),
        other => Err(other),
    })
}

/// All rows of a table, whose pages `of` knows; another answer comes back.
fn rows<T>(
    socket: Option<&Path>,
    query: InspectQuery,
    what: &str,
    of: impl Fn(InspectAnswer) -> Result<Vec<T>, InspectAnswer>,
) -> Result<Vec<T>, SessionError> {
    let mut rows = Vec::new();
    ask_pages(socket, query, |answer| {
        let page = of(answer).map_err(|other| SessionError::Protocol(format!("asked for {what}, told {other:?}")))?;
        if rows.len() + page.len() > ROWS_MAX {
            return Err(SessionError::Protocol(format!("more than {ROWS_MAX} {what}")));
        }
        rows.extend(page);
        Ok(())
    })?;
    Ok(rows)
}

/// The hosts of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// Hosts, once for each directory that names them, by address.
    pub hosts: Vec<MemberRow>,
    /// The directories; none where the daemon's configuration names nothing to ask.
    pub directories: Vec<DirectoryRow>,
}

/// The hosts of the cluster as the daemon's directories know them (docs/operate/clusters.md). `socket` as in [`connections`].
pub fn cluster(socket: Option<&Path>) -> Result<ClusterState, SessionError> {
    let mut state = ClusterState::default();
    ask_pages(socket, InspectQuery::Members, |answer| match answer {
        InspectAnswer::Members(rows) if state.hosts.len() + rows.len() <= ROWS_MAX => {
            state.hosts.extend(rows);
            Ok(())
        }
        InspectAnswer::Directories(rows) if state.directories.len() + rows.len() <= ROWS_MAX => {
            state.directories.extend(rows);
            Ok(())
        }
        other => Err(SessionError::Protocol(format!("asked for the hosts of the cluster, told {other:?}"))),
    })?;
    Ok(state)
}

/// Some hosts of the cluster that have or serve a name, and the directories where the daemon looked. Each question
/// begins with another host. `socket` as in [`connections`].
pub fn find(socket: Option<&Path>, name: &str) -> Result<(Vec<IpAddr>, Vec<DirectoryRow>), SessionError> {
    let mut inspector = Inspector::attach(socket)?;
    match inspector.ask(&Request::Lookup { request: REQUEST, name: name.to_owned() })? {
        (InspectAnswer::Found { addresses, directories }, _) => Ok((addresses, directories)),
        (other, _) => Err(SessionError::Protocol(format!("asked for the hosts of a name, told {other:?}"))),
    }
}

/// The host's device, lanes, resources, counters and applications. `socket` as in [`connections`].
pub fn stat(socket: Option<&Path>) -> Result<Stat, SessionError> {
    let mut stat: Option<Stat> = None;
    let mut programs = Programs::default();
    ask_pages(socket, InspectQuery::Stat, |answer| match (answer, &mut stat) {
        (InspectAnswer::Stat(mut told), None) => {
            let apps = std::mem::take(&mut told.apps);
            let whole = stat.insert(*told);
            apps.into_iter().for_each(|app| programs.add(&mut whole.apps, app));
            Ok(())
        }
        (InspectAnswer::StatRows { lanes, apps }, Some(whole))
            if whole.lanes.len() + whole.apps.len() + lanes.len() + apps.len() <= ROWS_MAX =>
        {
            whole.lanes.extend(lanes);
            apps.into_iter().for_each(|app| programs.add(&mut whole.apps, app));
            Ok(())
        }
        (other, _) => Err(SessionError::Protocol(format!("asked for the state, told {other:?}"))),
    })?;
    stat.ok_or_else(|| SessionError::Protocol("the answer has no first page".into()))
}

/// Where the rows of programs are, by session.
#[derive(Default)]
struct Programs(BTreeMap<u64, usize>);

impl Programs {
    /// Adds a row to that of the same session, of another engine, or behind all. Session 0 is none.
    fn add(&mut self, rows: &mut Vec<AppRow>, row: AppRow) {
        let known = self.0.get(&row.session).filter(|_| row.session != 0);
        match known.and_then(|at| rows.get_mut(*at)) {
            Some(sum) => {
                sum.connections = sum.connections.saturating_add(row.connections);
                // Sums of bytes wrap, as those of one engine do.
                sum.tx_bytes = sum.tx_bytes.wrapping_add(row.tx_bytes);
                sum.rx_bytes = sum.rx_bytes.wrapping_add(row.rx_bytes);
                sum.pinned_bytes = sum.pinned_bytes.saturating_add(row.pinned_bytes);
            }
            None => {
                self.0.insert(row.session, rows.len());
                rows.push(row);
            }
        }
    }
}

/// Breaks the queue pair of the lane to `peer`, as a failure of the device would: its connections see a pause. False:
/// there is no lane to that host. Only root and the daemon's user may. `socket` as in [`connections`].
pub fn reset_lane(socket: Option<&Path>, peer: IpAddr) -> Result<bool, SessionError> {
    let mut inspector = Inspector::attach(socket)?;
    match inspector.ask(&Request::ResetLane { request: REQUEST, peer })? {
        (InspectAnswer::LaneReset(was), _) => Ok(was),
        (other, _) => Err(SessionError::Protocol(format!("asked for a reset, told {other:?}"))),
    }
}

/// Asks the daemon to end without a word to its programs and peers, because another one takes its place: they wait for that
/// one (docs/operate/restart.md). `Ok(Ok(()))`: it does; `Ok(Err(_))`: why it goes on. Only root and the daemon's user may ask. `socket` as in
/// [`connections`].
pub fn hand_over(socket: Option<&Path>, successor: Successor) -> Result<Result<(), HandOverRefusal>, SessionError> {
    let mut inspector = Inspector::attach(socket)?;
    match inspector.ask(&Request::HandOver { request: REQUEST, successor })? {
        (InspectAnswer::HandsOver(answer), _) => Ok(answer),
        (other, _) => Err(SessionError::Protocol(format!("asked to make way, told {other:?}"))),
    }
}

/// Where a program of this user looks for its daemon, in that order, and what is there: `Ok` where one serves. Programs
/// take the first of these. `socket` as in [`connections`].
pub fn places(socket: Option<&Path>) -> Vec<(PathBuf, Result<(), SessionError>)> {
    lookup::look(socket, TIMEOUT)
}

/// Asks for one page after the other.
fn ask_pages(
    socket: Option<&Path>,
    query: InspectQuery,
    mut take: impl FnMut(InspectAnswer) -> Result<(), SessionError>,
) -> Result<(), SessionError> {
    let mut inspector = Inspector::attach(socket)?;
    let mut from = Cursor::default();
    for _ in 0..PAGES_MAX {
        let (answer, next) = inspector.ask(&Request::Inspect { request: REQUEST, query, from })?;
        take(answer)?;
        match next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
    Err(SessionError::Protocol(format!("an answer of more than {PAGES_MAX} pages")))
}

/// A tool at the control socket.
struct Inspector {
    path: PathBuf,
    control: OwnedFd,
    buffer: Vec<u8>,
}

impl Inspector {
    fn attach(socket: Option<&Path>) -> Result<Self, SessionError> {
        let path = lookup::find(socket, TIMEOUT)?;
        let name = format!("inspector {}", std::process::id());
        let (control, _) = attach(&path, Role::Inspector, name, TIMEOUT)?;
        Ok(Self { path, control, buffer: Vec::new() })
    }

    /// One question; the answer, and where the next page begins.
    fn ask(&mut self, question: &Request) -> Result<(InspectAnswer, Option<Cursor>), SessionError> {
        control::send_message(self.control.as_fd(), question, &[]).map_err(SessionFault::from)?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match control::recv_message::<Reply>(self.control.as_fd(), &mut self.buffer) {
                Ok((Reply::Inspected { request: REQUEST, answer, next }, _)) => return Ok((answer, next)),
                Ok((Reply::Detached { reason, .. }, _)) => return Err(SessionError::Lost { reason }),
                Ok((other, _)) => return Err(SessionError::Protocol(format!("the answer to Inspect was {other:?}"))),
                Err(ChannelError::WouldBlock) => {
                    if !wait_for(self.control.as_fd(), PollFlags::IN, deadline)? {
                        return Err(SessionError::Silent { path: self.path.clone(), waited: TIMEOUT });
                    }
                }
                Err(e) => return Err(SessionFault::from(e).into()),
            }
        }
    }
}

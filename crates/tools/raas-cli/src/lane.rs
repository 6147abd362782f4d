//! `raas lane reset`: breaks the queue pair of a lane, so that both daemons make a new one under its connections. An
//! operator uses it to see that applications survive it, or on a lane that seems faulty.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;

use raas::{Reason, SessionError};
use serde_json::json;

use crate::cli::LaneResetArgs;
use terminal::Failure;
use terminal::out;
use transport::session_failure;

/// Resets the lane to the host that was named, or all lanes.
pub(crate) fn reset(args: &LaneResetArgs) -> Result<(), Failure> {
    let socket = args.socket.path();
    let peers = match &args.peer {
        Some(name) => vec![host(name)?],
        None => lanes(socket)?,
    };
    let mut done = Vec::new();
    for peer in peers {
        if raas::inspect::reset_lane(socket, peer).map_err(failure)? {
            done.push(peer);
        } else if args.peer.is_some() {
            return Err(Failure::Failed(format!(
                "there is no lane to {peer}: `raas stat` lists the lanes of this host"
            )));
        }
    }
    if args.json {
        out::line(json!({ "schema": "raas.lane/1", "reset": done }))?;
    } else if done.is_empty() {
        out::line("this host has no lanes")?;
    } else {
        let lines = done.iter().map(|peer| format!("the lane to {peer} is made anew; `raas stat` counts it\n"));
        out::print(lines.collect::<String>())?;
    }
    Ok(())
}

fn lanes(socket: Option<&Path>) -> Result<Vec<IpAddr>, Failure> {
    let stat = raas::inspect::stat(socket).map_err(session_failure)?;
    // With several engines there are several lanes to a host, which are reset together.
    Ok(stat.lanes.iter().map(|lane| lane.peer.ip()).collect::<BTreeSet<_>>().into_iter().collect())
}

fn host(name: &str) -> Result<IpAddr, Failure> {
    let unusable = |why: String| Failure::Usage(format!("`{name}`: {why}; name the peer's host or address"));
    let mut found = (name, 0).to_socket_addrs().map_err(|e| unusable(e.to_string()))?;
    found.next().map(|at| at.ip()).ok_or_else(|| unusable("the name has no address".into()))
}

/// A daemon that refuses ends the question.
fn failure(e: SessionError) -> Failure {
    match e {
        SessionError::Lost { reason: Reason::Policy } => {
            Failure::Refused("only root and the daemon's own user may reset a lane: `sudo raas lane reset`".into())
        }
        other => session_failure(other),
    }
}

//! `raas why`: the path of one connection, or of one that would be made, with the reason, and why not another path.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control::{ConnectionRow, LaneRow, PathKind, Reason};
use serde_json::{Value, json};

use crate::cli::WhyArgs;
use crate::route::{self, Route};
use crate::ss;
use terminal::Failure;
use terminal::out;
use transport::{Raas, reason_failure, session_failure};

/// How stream bytes leave on a lane unless something speaks for another verb; a key of `verbs` in `raas stat`.
const USUAL_VERB: &str = "write_imm";

/// What is to be said.
#[derive(Debug)]
struct Explanation {
    /// The connection, unless it would only be made.
    connection: Option<ConnectionRow>,
    /// The host at the other end.
    host: IpAddr,
    /// The port there, of a connection that would be made, if it was named.
    port: Option<u16>,
    /// `None`: there is no way.
    path: Option<PathKind>,
    reason: Reason,
    device: Option<Device>,
    /// The lane, also one that is down.
    lane: Option<LaneRow>,
    round_trip: Option<Duration>,
    alternatives: Vec<(PathKind, String)>,
}

/// The device of a lane and the address that it has there.
#[derive(Debug)]
struct Device {
    name: String,
    /// Why the daemon has this one.
    reason: String,
    gid: Option<IpAddr>,
    /// Place in the GID table of a device of rdma-core.
    gid_index: Option<u8>,
}

/// Explains, and fails as a connection to that host would.
pub(crate) fn run(args: &WhyArgs) -> Result<(), Failure> {
    let socket = args.socket.path();
    // A tool that lasts a moment; attached as a program, since a probe is a connection.
    let raas = Raas::attach(socket, "raas why")?;
    let explanation = match args.what.parse::<u64>() {
        Ok(id) => of_connection(&raas, id)?,
        Err(_) => {
            let (host, port) = route::target(&args.what, socket)?;
            Explanation { port, ..of_host(&raas, host)? }
        }
    };
    if args.json {
        out::line(explanation.to_json())?;
    } else {
        out::print(explanation.to_text())?;
    }
    match explanation.path {
        Some(_) => Ok(()),
        None => Err(reason_failure(explanation.reason, format!("{}: {}", explanation.to(), explanation.reason))),
    }
}

fn of_connection(raas: &Raas, id: u64) -> Result<Explanation, Failure> {
    let socket = Some(raas.session().socket());
    let row = ss::connection(socket, id)?;
    let (host, path, reason) = (row.peer.ip(), row.path, row.reason);
    let lane = match &row.lane {
        Some(name) => {
            let stat = raas::inspect::stat(socket).map_err(session_failure)?;
            stat.lanes.into_iter().find(|lane| lane.name == *name)
        }
        None => None,
    };
    explain(raas, Some(row), host, Some(path), reason, lane, None)
}

fn of_host(raas: &Raas, host: IpAddr) -> Result<Explanation, Failure> {
    match route::probe(raas, host)? {
        Route::SameHost => explain(raas, None, host, Some(PathKind::Shm), Reason::SameHost, None, None),
        Route::Lane { lane, round_trip } => {
            explain(raas, None, host, Some(PathKind::Lane), Reason::OtherHost, lane.map(|lane| *lane), Some(round_trip))
        }
        Route::None(reason) => {
            let stat = raas::inspect::stat(Some(raas.session().socket())).map_err(session_failure)?;
            let lane = stat.lanes.into_iter().find(|lane| lane.peer.ip() == host.to_canonical());
            explain(raas, None, host, None, reason, lane, None)
        }
    }
}

fn explain(
    raas: &Raas,
    connection: Option<ConnectionRow>,
    host: IpAddr,
    path: Option<PathKind>,
    reason: Reason,
    lane: Option<LaneRow>,
    round_trip: Option<Duration>,
) -> Result<Explanation, Failure> {
    let own = raas.session().addresses();
    let on_lane = matches!(path, Some(PathKind::Lane | PathKind::Leased | PathKind::TcpDirect));
    let device = if on_lane { Some(device(raas)?) } else { None };
    let alternatives = alternatives(path, reason, host, own);
    Ok(Explanation { connection, host, port: None, path, reason, device, lane, round_trip, alternatives })
}

fn device(raas: &Raas) -> Result<Device, Failure> {
    let stat = raas::inspect::stat(Some(raas.session().socket())).map_err(session_failure)?;
    let (name, reason) = (stat.device, stat.device_reason);
    // The daemon names the address of its device first.
    let gid = raas.session().addresses().first().copied();
    let choice = gid.and_then(|gid| rdmacore::choose(&rdmacore::list_devices(), Some(&name), gid).ok());
    Ok(Device { name, reason, gid, gid_index: choice.map(|choice| choice.gid.index) })
}

/// Why each of the other paths is not taken.
fn alternatives(path: Option<PathKind>, reason: Reason, host: IpAddr, own: &[IpAddr]) -> Vec<(PathKind, String)> {
    let own: Vec<String> = own.iter().map(ToString::to_string).collect();
    let own = own.join(", ");
    let shm = match path {
        Some(PathKind::Tcp) => reason.to_string(),
        _ => format!("{host} is not an address of this host ({own})"),
    };
    let lane = match path {
        Some(PathKind::Shm) => format!("{host} is this host ({own}): a lane would only add two copies"),
        Some(PathKind::TcpDirect) => "it carries the beginning of the stream, and how it ends".to_owned(),
        Some(PathKind::Leased) => "the program asked for a lane of its own".to_owned(),
        _ => reason.to_string(),
    };
    let leased = "for handles to regions of other hosts, where a program asks for it (Region::open_leased)".to_owned();
    let tcp = match path {
        None => "for programs that ask for it (fallback = tcp), where somebody listens on kernel TCP".to_owned(),
        Some(path) => {
            format!("taken only where a program asks for it and there is no daemon; here is {}", path.as_str())
        }
    };
    let direct = match reason {
        Reason::OtherHost | Reason::Stalled => {
            "for bulk streams and conversations, where both hosts have software NICs and `tcp_direct` is \"auto\""
                .to_owned()
        }
        Reason::SameHost => "shared memory has no daemon on the path".to_owned(),
        reason => reason.to_string(),
    };
    let all = [
        (PathKind::Shm, shm),
        (PathKind::Lane, lane),
        (PathKind::Leased, leased),
        (PathKind::Tcp, tcp),
        (PathKind::TcpDirect, direct),
    ];
    all.into_iter().filter(|(kind, _)| Some(*kind) != path).collect()
}

/// The result of the dials to a host that cannot be reached, and what makes the daemon dial it again.
fn dials(lane: &LaneRow) -> String {
    let failed = lane.dials_failed;
    let again = match lane.redial_in_us {
        0 => "the next datagram has it dialed again".into(),
        wait => format!("datagrams have it dialed again in {:.1} s", wait as f64 / 1e6),
    };
    format!("{failed} in a row came to nothing; {again}, a connect does so at once")
}

/// What protects a lane, with which keys, or why nothing does; nothing before it was connected.
fn secrecy(lane: &LaneRow) -> Option<String> {
    let why = lane.encryption_reason.as_ref()?;
    let Some(cipher) = &lane.cipher else { return Some(format!("in the clear: {why}")) };
    let made = lane.keys_age_us.map(|age| format!(", keys made {:.1} s ago", age as f64 / 1e6));
    Some(format!("{cipher}{}: {why}", made.unwrap_or_default()))
}

impl Explanation {
    /// The other end of a connection that would be made.
    fn to(&self) -> String {
        self.port.map_or_else(|| self.host.to_string(), |port| SocketAddr::new(self.host, port).to_string())
    }

    fn verb(&self) -> Option<&str> {
        let used = self.connection.as_ref().and_then(|c| c.verb.as_deref());
        matches!(self.path, Some(PathKind::Lane)).then_some(used.unwrap_or(USUAL_VERB))
    }

    /// The verb, how it carries bytes, why it is the one, and what was asked for.
    fn verb_text(&self) -> Option<String> {
        let row = self.connection.as_ref();
        let asked = row.and_then(|c| c.verb_asked.as_ref());
        let Some(verb) = self.verb() else {
            // TCP and shared memory have no verbs.
            return asked.map(|asked| format!("none on this path; asked for: {asked}"));
        };
        let how = match verb {
            "send" => "bytes go through the receiver's shared receive queue, and are copied into its ring",
            "read" => "the receiver's engine reads the bytes out of the sender's ring",
            _ => "stream bytes go straight into the receiver's ring, the immediate names it",
        };
        let why = row.and_then(|c| c.verb_reason.as_ref()).map(|why| format!("; {why}")).unwrap_or_default();
        let asked = asked.map(|asked| format!("; asked for: {asked}"));
        Some(format!("{verb}: {how}{why}{}", asked.unwrap_or_default()))
    }

    fn to_json(&self) -> Value {
        let c = self.connection.as_ref();
        let alternatives: Vec<Value> =
            self.alternatives.iter().map(|(path, why)| json!({ "path": path.as_str(), "reason": why })).collect();
        json!({
            "schema": "raas.why/1",
            "id": c.map(|c| c.id),
            "local": c.map(|c| c.local),
            "peer": c.map(|c| c.peer.to_string()).unwrap_or_else(|| self.to()),
            "path": self.path.map(PathKind::as_str),
            "verb": self.verb(),
            "verb_asked": c.and_then(|c| c.verb_asked.as_ref()),
            "verb_reason": c.and_then(|c| c.verb_reason.as_ref()),
            "device": self.device.as_ref().map(|d| &d.name),
            "device_reason": self.device.as_ref().map(|d| &d.reason),
            "gid": self.device.as_ref().and_then(|d| d.gid),
            "gid_index": self.device.as_ref().and_then(|d| d.gid_index),
            "lane": self.lane.as_ref().filter(|_| self.path.is_some()),
            "wire": self.lane.as_ref().and_then(|l| l.wire.as_ref()),
            "wire_reason": self.lane.as_ref().and_then(|l| l.wire_reason.as_ref()),
            "link_path": self.lane.as_ref().and_then(|l| l.link_path.as_ref()),
            "link_path_reason": self.lane.as_ref().and_then(|l| l.link_path_reason.as_ref()),
            "encrypted": self.lane.as_ref().and_then(|l| l.encrypted),
            "cipher": self.lane.as_ref().and_then(|l| l.cipher.as_ref()),
            "keys_age_us": self.lane.as_ref().and_then(|l| l.keys_age_us),
            "encryption_reason": self.lane.as_ref().and_then(|l| l.encryption_reason.as_ref()),
            "dials_failed": self.lane.as_ref().map(|l| l.dials_failed),
            "redial_in_us": self.lane.as_ref().map(|l| l.redial_in_us),
            "round_trip_us": self.round_trip.map(|t| t.as_secs_f64() * 1e6),
            "reason": self.reason.key(),
            "detail": self.reason.to_string(),
            "alternatives": alternatives,
        })
    }

    fn to_text(&self) -> String {
        let mut out = match &self.connection {
            Some(c) if c.path == PathKind::Leased => {
                format!("handle {} to a region of {}, process {}\n", c.id, c.peer.ip(), c.app_pid)
            }
            Some(c) => format!("connection {}: {} to {}, process {}\n", c.id, c.local, c.peer, c.app_pid),
            None => format!("a connection to {}\n", self.to()),
        };
        let mut line = |name: &str, text: String| out += &format!("  {name:<8}  {text}\n");
        line("path", self.path.map_or("none", PathKind::as_str).to_owned());
        line("reason", format!("{}: {}", self.reason.key(), self.reason));
        if let Some(device) = &self.device {
            let gid = device.gid.map(|gid| format!(", GID {gid}")).unwrap_or_default();
            let index = device.gid_index.map(|index| format!(" (index {index})")).unwrap_or_default();
            line("device", format!("{}{gid}{index}: {}", device.name, device.reason));
        }
        if let Some(text) = self.verb_text() {
            line("verb", text);
        }
        if let Some(l) = self.lane.as_ref().filter(|l| self.path.is_none() && l.dials_failed > 0) {
            line("dials", dials(l));
        }
        if let Some(l) = self.lane.as_ref().filter(|_| self.path.is_some()) {
            let numbers = l.qpn.zip(l.peer_qpn);
            let pair = numbers.map_or(String::new(), |(ours, theirs)| format!(" queue pair {ours} to {theirs},"));
            let (mtu, others) = (l.mtu_bytes, l.connections);
            if let Some((wire, why)) = l.wire.as_ref().zip(l.wire_reason.as_ref()) {
                line("wire", format!("{wire}: {why}"));
            }
            if let Some((path, why)) = l.link_path.as_ref().zip(l.link_path_reason.as_ref()) {
                line("over", format!("{path}: {why}"));
            }
            if let Some(text) = secrecy(l) {
                line("secrecy", text);
            }
            line("lane", format!("{}, {},{pair} path MTU {mtu}, {others} connections", l.name, l.state));
        }
        if let Some(t) = self.round_trip {
            line("probe", format!("the peer's daemon answered over the lane after {:.0} us", t.as_secs_f64() * 1e6));
        }
        if self.port.is_some() {
            line("port", "nobody there is asked, so that no program sees a probe: it may have no listener".into());
        }
        for (path, why) in &self.alternatives {
            line("not", format!("{}: {why}", path.as_str()));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ConnectionState;

    fn of(
        path: PathKind,
        reason: Reason,
        (used, asked, why): (Option<&str>, Option<&str>, Option<&str>),
    ) -> Explanation {
        let [verb, verb_asked, verb_reason] = [used, asked, why].map(|text| text.map(str::to_owned));
        let row = ConnectionRow {
            id: 7,
            local: "10.0.0.1:5000".parse().unwrap(),
            peer: "10.0.0.2:80".parse().unwrap(),
            state: ConnectionState::Established,
            lane: None,
            route_id: None,
            path,
            wire: None,
            encrypted: None,
            cipher: None,
            reason,
            verb,
            verb_asked,
            verb_reason,
            tx_bytes: 0,
            rx_bytes: 0,
            direct_tx_bytes: 0,
            direct_rx_bytes: 0,
            tx_queued_bytes: 0,
            rx_queued_bytes: 0,
            app_pid: 5,
        };
        let host = row.peer.ip();
        Explanation {
            alternatives: alternatives(Some(path), reason, host, &["10.0.0.1".parse().unwrap()]),
            connection: Some(row),
            host,
            port: None,
            path: Some(path),
            reason,
            device: None,
            lane: None,
            round_trip: None,
        }
    }

    #[test]
    fn a_verb_that_was_asked_for_and_is_not_met_is_said_with_the_reason() {
        let why = Some("the device takes no READs");
        let told = of(PathKind::Lane, Reason::OtherHost, (Some("write_imm"), Some("read"), why));
        let text = told.verb_text().unwrap();
        assert!(
            text.starts_with("write_imm: ") && text.ends_with("; the device takes no READs; asked for: read"),
            "{text}"
        );
        let json = told.to_json();
        assert_eq!((&json["verb"], &json["verb_asked"]), (&json!("write_imm"), &json!("read")));
        // A stream of bulk on TCP has none any more.
        let told = of(PathKind::TcpDirect, Reason::BulkStream, (Some("send"), Some("send"), None));
        assert_eq!(told.verb_text().unwrap(), "none on this path; asked for: send");
        assert_eq!(told.to_json()["verb"], Value::Null);
        assert_eq!(of(PathKind::Shm, Reason::SameHost, (None, None, None)).verb_text(), None);
    }

    #[test]
    fn a_socket_of_another_namespace_is_explained_as_one_that_stays_on_tcp() {
        let told = of(PathKind::Tcp, Reason::ForeignSocket, (None, None, None));
        let text = told.to_text();
        let reason = Reason::ForeignSocket.to_string();
        assert!(text.contains("path      tcp") && text.contains(&format!("foreign-socket: {reason}")), "{text}");
        // Why no other path: each says the same.
        for path in ["shm", "lane"] {
            assert!(text.contains(&format!("not       {path}: {reason}")), "{path}: {text}");
        }
        assert_eq!(told.to_json()["reason"], "foreign-socket");
    }

    #[test]
    fn a_leased_handle_is_no_connection_and_names_why_the_shared_lane_does_not_carry_it() {
        let told = of(PathKind::Leased, Reason::LeasedLane, (None, None, None));
        let text = told.to_text();
        assert!(text.starts_with("handle 7 to a region of 10.0.0.2, process 5"), "{text}");
        assert!(text.contains("not       lane: the program asked for a lane of its own"), "{text}");
        assert_eq!(told.to_json()["verb"], Value::Null);
    }
}

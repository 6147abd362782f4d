//! Another host: its daemon's port, the lane to it, its UDP port and the path's MTU.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use control::{LaneRow, Reason};
use verbs::{Wire, WirePolicy};

use super::daemon::Serving;
use super::finding::{Code, Findings};
use super::{is_own, path_mtu};
use crate::route::{self, Route};
use transport::Raas;

/// What `raas stat` calls a lane over TCP.
const IWARP: &str = Wire::Iwarp.name();
/// How long a TCP connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// All that can be tried toward `peer`.
pub(super) fn look(peer: IpAddr, serving: &Serving, raas: Option<&Raas>, findings: &mut Findings) {
    findings.about(Some(peer));
    if is_own(raas, peer) {
        findings.ok("peer-lane", "same-host", "an address of this host: connections go through shared memory");
    } else {
        let open = link(peer, serving, findings);
        // Without the port there is no lane; the reason stands above already.
        let lane = raas.filter(|_| open).and_then(|raas| lane(peer, raas, findings));
        if serving.is_software() {
            tcp(peer, serving, lane.as_deref(), findings);
            udp(peer, serving, lane.as_deref(), findings);
        }
    }
    findings.about(None);
}

/// The control link's port.
fn link(peer: IpAddr, serving: &Serving, findings: &mut Findings) -> bool {
    let entry = serving.config.peers.iter().find(|p| p.address == peer);
    let at = SocketAddr::new(peer, entry.and_then(|p| p.port).unwrap_or(serving.config.peer_port));
    match TcpStream::connect_timeout(&at, CONNECT_TIMEOUT) {
        Ok(_) => {
            findings.ok("peer-link", at.to_string(), format!("TCP {} is open", at.port()));
            true
        }
        Err(e) => {
            let fix = format!("start `raas daemon --listen {peer}` there, and let TCP {} pass", at.port());
            findings.fail("peer-link", Code::NoDaemon, at.to_string(), format!("TCP {}: {e}", at.port()), &fix);
            false
        }
    }
}

/// The lane, tried by the daemon, if it is up.
fn lane(peer: IpAddr, raas: &Raas, findings: &mut Findings) -> Option<Box<LaneRow>> {
    match route::probe(raas, peer) {
        Ok(Route::SameHost) => {
            findings.ok("peer-lane", "same-host", "connections go through shared memory");
            None
        }
        Ok(Route::Lane { lane, round_trip }) => {
            let us = round_trip.as_secs_f64() * 1e6;
            let on = lane.as_ref().map_or_else(String::new, |lane| match lane.wire.as_deref() {
                Some(IWARP) => ", over TCP".to_owned(),
                _ => format!(", packets of {} bytes", lane.mtu_bytes),
            });
            findings.ok("peer-lane", us.round(), format!("its daemon answers over the lane after {us:.0} us{on}"));
            lane
        }
        Ok(Route::None(reason)) => {
            let code = match reason {
                Reason::PeerAuth | Reason::PeerVersion | Reason::PeerLimit | Reason::Policy | Reason::BadAddress => {
                    Code::Refused
                }
                Reason::PeerUnreachable | Reason::PeerBusy => Code::NoDaemon,
                _ => Code::Failed,
            };
            findings.fail("peer-lane", code, reason.key(), reason.to_string(), fix(reason));
            None
        }
        Err(e) => {
            let fix = "see whether this host's daemon still runs, and its log";
            findings.fail("peer-lane", Code::Failed, "error", e.to_string(), fix);
            None
        }
    }
}

fn fix(reason: Reason) -> &'static str {
    match reason {
        Reason::PeerAuth => "copy one key file to both hosts and start both daemons with it",
        Reason::PeerVersion => "install the same release on both hosts (`raas --version`: wire)",
        Reason::PeerUnreachable => "start `raas daemon` there, and let its peer_port pass",
        Reason::PeerBusy => "try again; look into the log of the daemon there",
        Reason::BadAddress => "use the address that the peer's daemon was started with (--listen), see `[[peer]]`",
        Reason::LaneFailed | Reason::TimedOut => {
            "let UDP and TCP 4791 pass in both directions; `raas stat` counts drops"
        }
        Reason::LocalLimit | Reason::PeerLimit => "raise the limit, docs/operate/configuration.md",
        _ => "docs/reasons.md explains it; look into the logs of both daemons",
    }
}

/// The port of the wire over TCP, where the configuration allows that wire.
fn tcp(peer: IpAddr, serving: &Serving, lane: Option<&LaneRow>, findings: &mut Findings) {
    let (port, policy) = (serving.config.udp_port, serving.config.wire_to(peer));
    if !policy.allows(Wire::Iwarp) {
        return;
    }
    if lane.is_some_and(|lane| lane.wire.as_deref() == Some(IWARP)) {
        return findings.ok("peer-tcp", port, format!("TCP {port} carries the lane"));
    }
    match TcpStream::connect_timeout(&SocketAddr::new(peer, port), CONNECT_TIMEOUT) {
        Ok(_) => findings.ok("peer-tcp", port, format!("TCP {port} is open")),
        // Another device, or RoCEv2 by configuration: the lane is up, and nothing is wrong.
        Err(e) if lane.is_some() && policy == WirePolicy::Auto => {
            findings.ok(
                "peer-tcp",
                port,
                format!("TCP {port}: {e}; the lane is on RoCEv2, which costs more processor time"),
            );
        }
        Err(e) => {
            let fix = format!("let TCP {port} pass in both directions, or set wire = \"roce\" on both hosts");
            findings.fail("peer-tcp", Code::NoDaemon, port, format!("TCP {port}: {e}"), &fix);
        }
    }
}

/// The RoCEv2 port and the path's MTU.
fn udp(peer: IpAddr, serving: &Serving, lane: Option<&LaneRow>, findings: &mut Findings) {
    let port = serving.config.udp_port;
    let lane_mtu = lane.map(|lane| lane.mtu_bytes);
    let path = match path_mtu::probe(serving.listen, SocketAddr::new(peer, port)) {
        Ok(path) => path,
        Err(e) => {
            let fix = "see whether a route leads there from this address: ip route get";
            findings.fail("peer-udp", Code::Failed, port, format!("UDP {port}: {e}"), fix);
            return;
        }
    };
    match (path.refused, lane_mtu) {
        (true, None) => {
            let fix = "see whether the daemon there uses the software NIC and this udp_port";
            findings.fail("peer-udp", Code::NoDaemon, port, format!("UDP {port} is closed there"), fix);
        }
        (_, Some(_)) if lane.is_some_and(|lane| lane.wire.as_deref() == Some(IWARP)) => {
            findings.ok("peer-udp", port, format!("UDP {port} is open or silent; only datagrams would use it"));
        }
        (_, Some(_)) => findings.ok("peer-udp", port, format!("UDP {port} carries the lane")),
        (false, None) => findings.ok("peer-udp", port, format!("UDP {port} is open or silent; no lane proves it")),
    }
    let Some(carries) = path.carries else {
        let fix = "raise the MTU of the path to 1500 at least";
        let detail = format!("the path takes {} bytes, less than the smallest RoCEv2 packet", path.ip_bytes);
        findings.fail("path-mtu", Code::Failed, path.ip_bytes, detail, fix);
        return;
    };
    let detail = format!("the path takes {} bytes: packets of {} bytes", path.ip_bytes, carries.bytes());
    match lane_mtu {
        Some(lane) if lane as usize > carries.bytes() => findings.fail(
            "path-mtu",
            Code::Failed,
            path.ip_bytes,
            format!("{detail}, but the lane uses {lane}"),
            &format!("set mtu = {} in the configuration of both daemons, or raise the MTU on the way", carries.bytes()),
        ),
        _ => findings.ok("path-mtu", path.ip_bytes, detail),
    }
}

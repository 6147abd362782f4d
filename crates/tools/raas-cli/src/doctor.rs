//! `raas doctor`: looks for what stands in the way of RaaS on this host and toward its peers, and says how to mend it.
//! It changes nothing; toward a peer it opens a TCP connection, has the daemon ask over the lane, and sends a few UDP
//! datagrams.

mod cluster;
mod daemon;
mod device;
mod finding;
mod kernel;
mod path_mtu;
mod peer;

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cli::DoctorArgs;
use crate::route;
use crate::run::probe::{self, Tried};
use terminal::Failure;
use terminal::out;
use transport::Raas;

use daemon::Serving;
use finding::{Code, Findings};

/// Hosts that are probed without being named, at most.
const PEERS_MAX: usize = 16;

/// Looks, prints, and fails if anything does.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let peer = |p: &String| Ok(route::target(p, args.socket.path())?.0);
    let mut peers: Vec<IpAddr> = args.peer.iter().map(peer).collect::<Result<_, Failure>>()?;
    let mut findings = Findings::default();
    kernel::look(&mut findings);
    let raas = daemon::attach(args.socket.path(), &mut findings);
    let serving = Serving::find(args, raas.as_ref())?;
    daemon::look(&serving, raas.as_ref(), &mut findings);
    device::look(&serving, &mut findings);
    cluster::look(raas.as_ref(), &mut findings);
    look_at_run(raas.as_ref(), &mut findings);
    if peers.is_empty() {
        let lanes = serving.lanes.iter().filter(|lane| lane.state == "up" || lane.connections > 0);
        let hosts: BTreeSet<IpAddr> = lanes.filter_map(|lane| lane.name.split('/').next()?.parse().ok()).collect();
        peers = hosts.into_iter().collect();
        peers.truncate(PEERS_MAX);
    }
    for peer in peers {
        peer::look(peer, &serving, raas.as_ref(), &mut findings);
    }
    if args.json {
        out::line(findings.to_json())?;
    } else {
        out::print(findings.to_text())?;
    }
    match findings.worst() {
        None => Ok(()),
        Some((code, told)) => Err(match code {
            Code::Failed => Failure::Failed(told),
            Code::NoDaemon => Failure::NoDaemon(told),
            Code::Refused => Failure::Refused(told),
        }),
    }
}

/// Whether connections of programs under `raas run` would leave kernel TCP here: in a container, say.
fn look_at_run(raas: Option<&Raas>, findings: &mut Findings) {
    let Some(raas) = raas else { return };
    match probe::upgrade(raas.session()) {
        Tried::Upgraded => {
            findings.ok("run", "upgraded", "a TCP connection to itself would be upgraded under `raas run`")
        }
        Tried::NoConnection => {
            let detail = "no TCP connection to itself can be made here: it is not known whether one would be upgraded";
            findings.warn("run", "unknown", detail, "ip link set lo up, if the loopback interface is down here");
        }
        Tried::Stays(reason) => {
            let detail = format!("under `raas run` connections would stay on kernel TCP: {reason}");
            let fix = "see the reason in docs/reasons.md, and the containers' page, docs/operate/recipes.md";
            findings.warn("run", reason.key(), detail, fix);
        }
    }
}

/// Addresses that name this host, if the daemon said so.
fn is_own(raas: Option<&Raas>, host: IpAddr) -> bool {
    raas.is_some_and(|raas| raas.session().addresses().contains(&host.to_canonical()))
}

//! How many engines the daemons of a plan have: one each in most plans, else numbers that may differ from host to host,
//! and from one daemon of a host to the next.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use plane::SpreadBy;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::{Wire, WirePolicy};

use super::pick;
use crate::content::mix;
use crate::plan::{DaemonPlan, Fault, Plan};

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x51_e9e5;

pub(super) fn draw(plan: &mut Plan) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    // The streams of TCP are one engine's here.
    let is_on_tcp = plan.hosts.iter().any(|host| host.wire != WirePolicy::Only(Wire::Roce));
    if !rng.random_bool(0.4) || is_on_tcp {
        return;
    }
    let all = if rng.random_bool(0.5) { Some(pick(&[2, 2, 2, 3, 4], rng)) } else { None };
    let mut engines = || all.unwrap_or_else(|| pick(&[1, 2, 2, 3], rng));
    for host in &mut plan.hosts {
        host.daemon.engines = engines();
    }
    spread(plan);
    for (_, fault) in &mut plan.faults {
        if let Fault::Install { daemon, .. } = fault {
            daemon.engines = engines();
        }
    }
    // Daemons that are only started again come back with another number too.
    let others =
        |host: usize| plan.faults.iter().any(|(_, f)| matches!(f, Fault::Install { host: h, .. } if *h == host));
    let restarts = plan.faults.iter().filter_map(|(at, fault)| match fault {
        Fault::Crash { host, .. } if !others(*host) => Some((*at, *host)),
        _ => None,
    });
    for (at, host) in restarts.collect::<Vec<_>>() {
        let daemon = DaemonPlan { engines: engines(), ..plan.hosts[host].daemon.clone() };
        plan.faults.push((at, Fault::Install { host, daemon }));
    }
    plan.faults.sort_by_key(|(at, _)| *at);
}

/// What is spread over the engines of each host, drawn apart from their numbers.
fn spread(plan: &mut Plan) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL + 1)));
    for host in &mut plan.hosts {
        let all = [SpreadBy::Connections, SpreadBy::Connections, SpreadBy::Programs, SpreadBy::Tenants];
        host.daemon.engines_by = pick(&all, &mut rng);
    }
}

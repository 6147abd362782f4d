//! Connections of messages that may be lost, in a quarter of the plans: processes that listen for them, and connect.
//!
//! Some rings are so long that messages leave in several pieces, of which some are lost.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{pick, us};
use crate::content::mix;
use crate::plan::{ConnectPlan, ListenPlan, Plan, UNRELIABLE_PORTS};

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x0c_3e55;
/// Of a connection of messages.
const RING_BYTES_MAX: u32 = 64 << 10;

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    if !rng.random_bool(0.25) {
        return;
    }
    let hosts = plan.hosts.len();
    plan.apps.iter_mut().for_each(|app| app.talk.copy_bytes = RING_BYTES_MAX as usize);
    let port = |host: usize| UNRELIABLE_PORTS.start + host as u16;
    for host in 0..hosts {
        let own: Vec<usize> = (0..plan.apps.len()).filter(|app| plan.apps[*app].host == host).collect();
        if own.is_empty() {
            continue;
        }
        let (backlog, ring_bytes) = (pick(&[3, 16], rng), pick(&[0, 8192, RING_BYTES_MAX], rng));
        let listen =
            ListenPlan { port: port(host), backlog, ring_bytes, accept_gap: Duration::ZERO, unlisten_at: None };
        plan.apps[pick(&own, rng)].listens.push(listen);
        for _ in 0..rng.random_range(0..=4) {
            let app = pick(&own, rng);
            let to = (host + rng.random_range(1..hosts)) % hosts;
            let at = plan.apps[app].start + us(200..=quiet_us / 2 + 200, rng);
            let ring_bytes = pick(&[4096, 16 << 10, RING_BYTES_MAX], rng);
            plan.apps[app].connects.push(ConnectPlan { at, to, port: port(to), ring_bytes, patience: None });
        }
    }
}

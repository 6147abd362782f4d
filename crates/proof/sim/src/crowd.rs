//! A plan of very many hosts: a few that all others speak with, and a few connections of each with hosts drawn from all.
//!
//! Owns what such a run is bounded by: connections, bytes and virtual time, so that a seed takes seconds. What breaks is
//! little; the many kinds of faults are for runs of few hosts (`swarm`).

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use crate::content::mix;
use crate::plan::{AppPlan, Break, DaemonPlan, Ending, Fault, HostPlan, Plan, Talk};

/// Port of each host's application.
const PORT: u16 = 100;
/// Hosts that all others connect to.
const POPULAR: usize = 3;
/// Connections of each host to others drawn from all.
const OTHERS: usize = 2;
/// Most bytes of a connection and direction.
const BYTES_MAX: u64 = 20_000;
/// All connects begin within this time, and faults come.
const BUSY_US: u64 = 2_000_000;
/// Queue pairs that break, and engines that stand still for a while.
const FAULTS: usize = 20;

impl Plan {
    /// So many hosts, at least 8.
    pub fn crowd(seed: u64, hosts: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(mix(seed ^ mix(hosts as u64)));
        let rng = &mut rng;
        let quiet_at = Time::ZERO + Duration::from_micros(2 * BUSY_US);
        let mut plan = Self { quiet_at, link_timeout: Duration::from_secs(30), ..Self::calm(seed, hosts) };
        plan.conditions.delay = Duration::from_micros(50);
        plan.hosts = (0..hosts).map(|index| host(index, hosts, rng)).collect();
        for index in 0..hosts {
            let talk = Talk {
                bytes: (1, BYTES_MAX),
                write_gap_max: Duration::from_millis(400),
                endings: vec![Ending::ReadToEnd, Ending::CloseAfterWrite, Ending::Abort, Ending::HoldOpen],
                ..Talk::exactly(0)
            };
            let mut app = AppPlan::new(index, talk).listening(PORT, hosts as u32);
            app.slots = if index < POPULAR { (2 * hosts).next_power_of_two() as u32 } else { 64 };
            let popular = rng.random_range(0..POPULAR);
            let others = std::iter::once(popular).chain((0..OTHERS).map(|_| rng.random_range(0..hosts)));
            for to in others.filter(|to| *to != index).collect::<Vec<_>>() {
                app = app.connecting(to, PORT, some_time(rng), 1, 4096);
            }
            plan.apps.push(app);
        }
        for _ in 0..FAULTS {
            let (host, peer) = (rng.random_range(POPULAR..hosts), rng.random_range(0..POPULAR));
            let fault = if rng.random_bool(0.7) {
                Fault::BreakLane { host, peer, how: Break::Silent }
            } else {
                Fault::PauseEngine { host, time: Duration::from_micros(rng.random_range(1_000..300_000)) }
            };
            plan.faults.push((some_time(rng), fault));
        }
        plan
    }
}

fn some_time(rng: &mut StdRng) -> Time {
    Time::ZERO + Duration::from_micros(rng.random_range(300..BUSY_US))
}

fn host(index: usize, hosts: usize, rng: &mut StdRng) -> HostPlan {
    let rests = [None, Some(Duration::from_millis(300)), Some(Duration::from_secs(2))];
    let plan = HostPlan {
        lanes_max: hosts as u32,
        lane_rest_after: rests[rng.random_range(0..rests.len())],
        connect_timeout: Duration::from_secs(20),
        send_bytes_max: 512,
        daemon: DaemonPlan { handshakes_max: 256, ..DaemonPlan::default() },
        ..HostPlan::default()
    };
    // On popular hosts hardly more receives than as many lanes need for certain.
    let receives = if index < POPULAR { 18 * hosts as u64 } else { 32 * hosts as u64 };
    HostPlan { srq_bytes_max: receives * u64::from(plan.send_bytes_max), ..plan }
}

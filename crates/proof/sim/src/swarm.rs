//! A plan drawn from a seed: which faults are on, and how strong; how large tables are; what applications do.
//!
//! Each kind of fault is on in a part of the seeds only, so that some runs have few and strong ones (Groce et al.,
//! "Swarm Testing", 2012). It must never use one random number for two purposes.

mod choices;
mod ciphers;
mod daemons;
mod directs;
mod engines;
mod meetings;
mod messages;
mod paths;
mod policies;
mod restarts;
mod shares;
mod silence;
mod sockets;
mod switches;
mod tenants;
mod users;
mod wires;

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use verbs::{PathMtu, Status, Time};

use crate::content::mix;
use crate::plan::{
    AppPlan, Break, ConnectPlan, Cut, Ending, Fault, HostPlan, LinkConditions, ListenPlan, Plan, StreamPlan, Talk,
};

/// First listening port of the applications.
const FIRST_PORT: u16 = 100;

/// Queue pairs broken, each once or twice: together less than a lane's connections survive.
const BREAKS_MAX: u32 = 6;

/// Fewest bytes that a queue pair may have in flight.
const SMALL_WINDOW_BYTES: u32 = 16 << 10;

fn us(range: std::ops::RangeInclusive<u64>, rng: &mut StdRng) -> Duration {
    Duration::from_micros(rng.random_range(range))
}

fn pick<T: Copy>(from: &[T], rng: &mut StdRng) -> T {
    *from.choose(rng).expect("the lists here are not empty")
}

/// A number from 1 to one of `most`.
fn up_to(most: &[u64], rng: &mut StdRng) -> u64 {
    let most = pick(most, rng);
    rng.random_range(1..=most)
}

impl Plan {
    /// The plan of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(mix(seed));
        let rng = &mut rng;
        let count = pick(&[2, 2, 2, 3, 3, 4], rng);
        // Short runs are many; long ones let timeouts of seconds pass.
        let quiet_us = pick(&[30_000, 100_000, 400_000, 2_000_000, 8_000_000, 20_000_000], rng);
        let base = host(rng);
        let hosts = (0..count).map(|_| if rng.random_bool(0.7) { base.clone() } else { host(rng) }).collect();
        let mut plan = Self {
            seed,
            hosts,
            conditions: conditions(rng),
            streams: StreamPlan::default(),
            switch: None,
            has_standby: false,
            link_timeout: us(500_000..=5_000_000, rng),
            daemon_delay_max: us(1..=pick(&[10, 200, 3000], rng), rng),
            chunk_refusals: if rng.random_bool(0.1) { rng.random_range(1..=500) } else { 0 },
            queue_delay_max: Duration::ZERO,
            apps: Vec::new(),
            users: Vec::new(),
            uids: 1,
            meetings: Vec::new(),
            has_conversations: false,
            has_upgrades: false,
            has_writers: false,
            faults: Vec::new(),
            quiet_at: Time::ZERO + Duration::from_micros(quiet_us),
        };
        if rng.random_bool(0.1) {
            tighten(&mut plan, rng);
        }
        apps(&mut plan, quiet_us, rng);
        faults(&mut plan, quiet_us, rng);
        sockets::draw(&mut plan, quiet_us);
        daemons::draw(&mut plan, quiet_us);
        messages::draw(&mut plan, quiet_us);
        wires::draw(&mut plan, quiet_us);
        ciphers::draw(&mut plan);
        tenants::draw(&mut plan);
        shares::draw(&mut plan);
        engines::draw(&mut plan);
        users::draw(&mut plan, quiet_us);
        choices::draw(&mut plan);
        switches::draw(&mut plan);
        restarts::draw(&mut plan, quiet_us);
        users::draw_loans(&mut plan);
        directs::draw(&mut plan, quiet_us);
        paths::draw(&mut plan, quiet_us);
        silence::draw(&mut plan, quiet_us);
        meetings::draw(&mut plan, quiet_us);
        policies::draw(&mut plan, quiet_us);
        plan
    }
}

fn host(rng: &mut StdRng) -> HostPlan {
    let mut host = drawn_host(rng);
    // Lanes of a third of the hosts rest. A rest is longer than anything that goes over a lane may take, or it would end
    // in the middle of each try.
    host.lane_rest_after = match host.rest_after.map(|after| after.as_micros()) {
        Some(300) => Some(Duration::from_millis(300)),
        Some(5_000) => Some(Duration::from_secs(2)),
        _ => None,
    };
    host
}

fn drawn_host(rng: &mut StdRng) -> HostPlan {
    let quantum_bytes = pick(&[4096, 8192, 16 << 10, 64 << 10], rng);
    let mtu = pick(&[PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu1024, PathMtu::Mtu4096, PathMtu::Mtu4096], rng);
    let window_packets = pick(&[4, 32, 256], rng).max(SMALL_WINDOW_BYTES / mtu.bytes() as u32);
    // A lane that carries little in a round trip must not have much in front of the answer to a connect.
    let is_slow = window_packets * (mtu.bytes() as u32) < 4 * SMALL_WINDOW_BYTES;
    let inflight = if is_slow { 256 << 10 } else { pick(&[256 << 10, 1 << 20, 2 << 20], rng) };
    let timeout_us = if is_slow { 5_000_000 } else { pick(&[1_000_000, 10_000_000], rng) };
    let lane_credits = pick(&[8, 8, 9, 12, 32, 64, 512], rng);
    let send_bytes_max = pick(&[256, 512, 1024, 4096], rng);
    // On a third of the hosts lanes want more receives than there are; as many as 8 lanes need for certain.
    let receives: u64 = if quantum_bytes == 8192 { 192 } else { 4096 };
    let ring_bytes_default = pick(&[4096, 8192, 32 << 10, 64 << 10], rng);
    HostPlan {
        lane_credits,
        srq_bytes_max: receives * u64::from(send_bytes_max),
        send_bytes_max,
        quantum_bytes,
        lane_inflight_bytes_max: inflight.max(4 * u64::from(quantum_bytes)),
        ring_bytes_default,
        ring_bytes_grown: ring_bytes_default * pick(&[1, 2, 4], rng),
        connect_timeout: us(timeout_us..=10_000_000, rng),
        mtu,
        max_gso_segments: pick(&[1, 4, 16], rng),
        window_packets,
        wake_delay_max: us(0..=pick(&[2, 50, 500], rng), rng),
        rest_after: pick(&[Some(0), Some(20), Some(300), Some(5_000), Some(1_000_000), None], rng)
            .map(Duration::from_micros),
        rest_gap_max: us(0..=pick(&[0, 2, 30, 300], rng), rng),
        ..HostPlan::default()
    }
}

/// Tables so small that they are met.
fn tighten(plan: &mut Plan, rng: &mut StdRng) {
    for host in &mut plan.hosts {
        match rng.random_range(0..4) {
            0 => host.connections_max = rng.random_range(1..=8),
            1 => host.ring_memory_per_app_max = u64::from(host.ring_bytes_default) * rng.random_range(2..=8),
            // Fewer lanes than hosts: unused ones make room.
            2 => host.lanes_max = 1,
            _ => {}
        }
    }
}

fn conditions(rng: &mut StdRng) -> LinkConditions {
    let mut share = |max: u32| if rng.random_bool(0.4) { rng.random_range(1..=max) } else { 0 };
    let (loss, duplicate, reorder, corrupt) = (share(800), share(500), share(2000), share(200));
    let bytes_per_us = if rng.random_bool(0.3) { pick(&[50, 125, 1250, 12_500], rng) } else { 0 };
    LinkConditions {
        loss,
        duplicate,
        reorder,
        late_max: us(1..=pick(&[20, 200, 3000], rng), rng),
        corrupt,
        delay: us(1..=pick(&[5, 50, 500, 10_000], rng), rng),
        bytes_per_us,
        // So that a full queue passes within an ACK timeout of 67 ms.
        queue_bytes: if bytes_per_us == 0 { 4 << 20 } else { rng.random_range(16 << 10..=bytes_per_us * 30_000) },
    }
}

// ---- applications

fn talk(rng: &mut StdRng) -> Talk {
    let most = pick(&[10, 3000, 20_000, 100_000], rng);
    let mut endings: Vec<Ending> = Ending::ALL.into_iter().filter(|_| rng.random_bool(0.4)).collect();
    if endings.is_empty() {
        endings.push(Ending::ReadToEnd);
    }
    let gap = |rng: &mut StdRng| {
        if rng.random_bool(0.5) { us(1..=pick(&[10, 300, 20_000], rng), rng) } else { Duration::ZERO }
    };
    Talk {
        bytes: (rng.random_range(0..=most), most),
        write_max: pick(&[64, 1000, 10_000, 16 << 10], rng).max(most as u32 / 200),
        read_max: pick(&[100, 4096, 16 << 10], rng).max(most as u32 / 200),
        write_gap_max: gap(rng),
        read_gap_max: gap(rng),
        endings,
        asks_verbs: false,
        copy_bytes: Talk::COPY_BYTES,
    }
}

fn apps(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    let hosts = plan.hosts.len();
    let per_host = rng.random_range(1..=3);
    let connects_max = pick(&[2, 6, 20], rng);
    let ports_of = |app: usize| FIRST_PORT + app as u16;
    let dies = rng.random_bool(0.4);
    let leaves = rng.random_bool(0.3);
    let cancels = rng.random_bool(0.3);
    let unlistens = rng.random_bool(0.2);
    let busy_us = (quiet_us * 3 / 4).max(1);
    for host in 0..hosts {
        for app in 0..per_host {
            let mut new = AppPlan::new(host, talk(rng));
            new.start = Time(rng.random_range(1_000..=200_000));
            new.respawn = rng.random_bool(0.5);
            if rng.random_bool(0.92) {
                new.listens.push(ListenPlan {
                    port: ports_of(app),
                    backlog: pick(&[1, 3, 16, 64], rng),
                    ring_bytes: if rng.random_bool(0.3) { pick(&[4096, 16 << 10], rng) } else { 0 },
                    accept_gap: if rng.random_bool(0.3) { us(1..=20_000, rng) } else { Duration::ZERO },
                    unlisten_at: (unlistens && rng.random_bool(0.5)).then(|| Time::ZERO + us(1..=busy_us, rng)),
                });
            }
            for _ in 0..rng.random_range(0..=connects_max) {
                // Now and then to this host: its daemon pairs the two processes.
                let local = rng.random_bool(0.02);
                let to = if local { host } else { (host + rng.random_range(1..hosts)) % hosts };
                new.connects.push(ConnectPlan {
                    at: new.start + if rng.random_bool(0.5) { us(0..=300, rng) } else { us(0..=busy_us, rng) },
                    to,
                    port: ports_of(rng.random_range(0..per_host)),
                    ring_bytes: if rng.random_bool(0.5) { pick(&[4096, 8192, 64 << 10], rng) } else { 0 },
                    patience: (cancels && rng.random_bool(0.3)).then(|| us(1..=pick(&[100, 2000, 100_000], rng), rng)),
                });
            }
            new.crash_after = (dies && rng.random_bool(0.5)).then(|| up_to(&[20, 200, 2000], rng) as u32 - 1);
            new.leave_at = (leaves && rng.random_bool(0.3)).then(|| Time::ZERO + us(1..=busy_us, rng));
            plan.apps.push(new);
        }
    }
}

// ---- faults

fn faults(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    let hosts = plan.hosts.len();
    let at = |us: u64| Time::ZERO + Duration::from_micros(us);
    let some = |rng: &mut StdRng, max: u32| if rng.random_bool(0.3) { rng.random_range(1..=max) } else { 0 };
    for _ in 0..some(rng, 4) {
        let (start, from) = (rng.random_range(0..quiet_us), rng.random_range(0..hosts));
        let to = (from + rng.random_range(1..hosts)) % hosts;
        let kind = pick(&[Cut::ALL, Cut::ALL, Cut::DATA, Cut::CONTROL], rng);
        let what = Cut { one_way: rng.random_bool(0.3), ..kind };
        let long = start + up_to(&[3_000, 100_000, 1_000_000, 6_000_000, 15_000_000], rng);
        plan.faults.push((at(start), Fault::Cut { from, to, what }));
        plan.faults.push((at(long), Fault::Heal { a: from, b: to }));
    }
    for _ in 0..some(rng, 2) {
        let (start, host) = (rng.random_range(0..quiet_us), rng.random_range(0..hosts));
        let down = up_to(&[1_000, 50_000, 2_000_000], rng);
        plan.faults.push((at(start), Fault::Crash { host, told: rng.random_bool(0.7) }));
        plan.faults.push((at(start + down), Fault::Restart { host }));
    }
    for _ in 0..some(rng, 5) {
        let (start, host) = (rng.random_range(0..quiet_us), rng.random_range(0..hosts));
        let time = us(1..=pick(&[100, 5_000, 400_000], rng), rng);
        let all = rng.random_bool(0.3);
        let fault = if all { Fault::PauseHost { host, time } } else { Fault::PauseEngine { host, time } };
        plan.faults.push((at(start), fault));
    }
    for _ in 0..some(rng, BREAKS_MAX) {
        let (start, host) = (rng.random_range(0..quiet_us), rng.random_range(0..hosts));
        let peer = (host + rng.random_range(1..hosts)) % hosts;
        let statuses = [Status::RetryExcErr, Status::RnrRetryExcErr, Status::RemOpErr, Status::LocQpOpErr];
        let status = Break::Status(pick(&statuses, rng));
        let how = pick(&[Break::Silent, Break::Asked, Break::RemoteKey, Break::LocalKey, status], rng);
        plan.faults.push((at(start), Fault::BreakLane { host, peer, how }));
        // Often a second time, or at the other end, while the lane is being reset.
        if rng.random_bool(0.5) {
            let again = start + up_to(&[20, 300, 3000], rng);
            let (host, peer) = if rng.random_bool(0.5) { (host, peer) } else { (peer, host) };
            plan.faults.push((at(again), Fault::BreakLane { host, peer, how: pick(&[Break::Silent, how], rng) }));
        }
    }
    if !plan.apps.is_empty() {
        for _ in 0..some(rng, 3) {
            let app = rng.random_range(0..plan.apps.len());
            plan.faults.push((at(rng.random_range(0..quiet_us)), Fault::KillApp { app }));
        }
    }
    for _ in 0..some(rng, 2) {
        plan.faults.push((at(rng.random_range(0..quiet_us)), Fault::LinkConditions(conditions(rng))));
    }
    // What breaks after the end of the faults would not be mended.
    plan.faults.retain(|(at, _)| *at < plan.quiet_at);
    plan.faults.sort_by_key(|(at, _)| *at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_killed_in_one_seed_of_eight() {
        let kills = |seed: u64| {
            let plan = Plan::from_seed(seed);
            plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::KillDaemon { .. }))
        };
        let with = (1..=800).filter(|seed| kills(*seed)).count();
        assert!((70..=130).contains(&with), "{with} of 800");
        for seed in [1, 2, 3, 7, 13, 25, 29, 31, 35, 39, 42, 55, 70, 113, 1009, 1108] {
            assert!(!kills(seed), "seed {seed}");
        }
    }

    #[test]
    fn one_seed_of_eight_has_a_switch() {
        let with = (1..=800).filter(|seed| Plan::from_seed(*seed).switch.is_some()).count();
        assert!((70..=130).contains(&with), "{with} of 800");
        // These were the first that found a planted fault (docs/proof/testing.md), without one.
        for seed in [1, 2, 3, 7, 13, 25, 29, 31, 35, 39, 42, 55, 70, 113, 1009, 1108] {
            assert!(Plan::from_seed(seed).switch.is_none(), "seed {seed}");
        }
    }
}

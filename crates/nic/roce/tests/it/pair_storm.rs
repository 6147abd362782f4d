//! Loss, duplication, reordering and damage: nothing is lost, repeated or out of order, for every operation.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)] // a test may print
use std::collections::BTreeMap;
use std::time::Duration;

use crate::pair::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use verbs::*;

const MESSAGES: u64 = 300;

/// What side 0 does, and what must come of it.
#[derive(Debug, Clone)]
enum Deed {
    Send { data: Vec<u8>, imm: Option<u32> },
    Write { at: u64, data: Vec<u8>, imm: Option<u32> },
    Read { from: u64, to: u64, data: Vec<u8> },
    Add { before: u64, to: u64 },
}

/// Regions of side 1: 0.. receives, then writes, then what is read, then the counter.
const WRITES_AT: u64 = 1 << 22;
const READS_AT: u64 = 1 << 23;
const COUNTER_AT: u64 = (1 << 23) + (1 << 20);
const SLOT: u64 = 8192;

fn storm(setup: Setup) {
    let seed = setup.seed;
    let mut world = World::new(setup);
    let wish = Wish { memory_bytes: 1 << 24, max_wr: 1000, timeout: 10, rd_atomic: 3, ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&wish, &wish]);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xabcd);
    let readable = b.fill(READS_AT, 1 << 20, seed);
    let mut deeds = Vec::new();
    let mut receives = 0;
    let mut adds = 0;
    for i in 0..MESSAGES {
        let len = if rng.random_bool(0.2) { rng.random_range(0..SLOT) } else { rng.random_range(0..300) } as usize;
        let source = i * SLOT;
        let imm = rng.random_bool(0.5).then_some(i as u32);
        let (deed, op, addr, len) = match rng.random_range(0..10) {
            0..=2 => {
                let data = a.fill(source, len, i);
                (Deed::Send { data, imm }, imm.map_or(SendOp::Send, SendOp::SendImm), source, len)
            }
            3..=6 => {
                let data = a.fill(source, len, i);
                let at = WRITES_AT + i * SLOT;
                let remote = b.remote(at);
                let op = imm.map_or(SendOp::Write(remote), |imm| SendOp::WriteImm(remote, imm));
                (Deed::Write { at, data, imm }, op, source, len)
            }
            7..=8 => {
                let offset = rng.random_range(0..(1 << 20) - SLOT);
                let data = readable[offset as usize..offset as usize + len].to_vec();
                let from = READS_AT + offset;
                (Deed::Read { from, to: source, data }, SendOp::Read(b.remote(from)), source, len)
            }
            _ => {
                adds += 1;
                let op = SendOp::FetchAdd { remote: b.remote(COUNTER_AT), add: 1 };
                (Deed::Add { before: adds - 1, to: source }, op, source, 8)
            }
        };
        if matches!(deed, Deed::Send { .. } | Deed::Write { imm: Some(_), .. }) {
            b.recv(&mut world, receives, receives * SLOT, SLOT as u32);
            receives += 1;
        }
        let flags = if rng.random_bool(0.1) { SendFlags::SIGNALED | SendFlags::FENCE } else { SendFlags::SIGNALED };
        a.try_send(&mut world, i, op, addr, len as u32, flags).expect("posted");
        deeds.push(deed);
        if rng.random_bool(0.05) {
            world.run_for(Duration::from_micros(rng.random_range(0..3000)));
        }
    }
    let sent = a.wait(&mut world, MESSAGES as usize);
    for (i, completion) in sent.iter().enumerate() {
        assert_eq!((completion.wr_id, completion.status), (i as u64, Status::Success), "seed {seed}");
    }
    let got = b.wait(&mut world, receives as usize);
    check(&a, &b, &deeds, &got, seed);
    assert_eq!(b.read(COUNTER_AT, 8), u64::to_ne_bytes(adds), "atomics ran once each, seed {seed}");
    let counters: Vec<BTreeMap<_, _>> = world.nics.iter().map(|n| n.counters().into_iter().collect()).collect();
    assert_eq!(counters[1]["served_atomic"], adds);
    if world.setup.conditions.loss > 0 {
        assert!(counters[0]["retransmits"] > 0);
    }
}

fn check(a: &End, b: &End, deeds: &[Deed], got: &[Completion], seed: u64) {
    let mut got = got.iter().enumerate();
    for (i, deed) in deeds.iter().enumerate() {
        match deed {
            Deed::Send { data, imm } => {
                let (n, completion) = got.next().expect("a completion");
                assert_eq!((completion.wr_id, completion.imm, completion.opcode), (n as u64, *imm, WcOpcode::Recv));
                assert_eq!(completion.byte_len as usize, data.len(), "deed {i}, seed {seed}");
                assert!(b.read(n as u64 * SLOT, data.len()) == *data, "SEND {i}, seed {seed}");
            }
            Deed::Write { at, data, imm } => {
                assert!(b.read(*at, data.len()) == *data, "WRITE {i}, seed {seed}");
                if imm.is_some() {
                    let (n, completion) = got.next().expect("a completion");
                    let fields = (completion.wr_id, completion.imm, completion.opcode, completion.byte_len);
                    assert_eq!(fields, (n as u64, *imm, WcOpcode::RecvWriteImm, data.len() as u32));
                }
            }
            Deed::Read { from, to, data } => {
                assert!(a.read(*to, data.len()) == *data, "READ {i} from {from}, seed {seed}");
            }
            Deed::Add { before, to } => assert_eq!(a.read(*to, 8), before.to_ne_bytes(), "add {i}, seed {seed}"),
        }
    }
}

#[test]
fn calm() {
    storm(Setup::default());
}

#[test]
fn storms() {
    for seed in 0..40 {
        let mtu = PathMtu::ALL[seed as usize % 5];
        let ipv6 = seed % 3 == 0;
        storm(Setup { seed, conditions: LinkConditions::STORM, mtu, ipv6, ..Setup::default() });
    }
}

#[test]
fn reordering_alone() {
    for seed in 100..110 {
        let conditions = LinkConditions { reorder: 200, ..LinkConditions::CALM };
        storm(Setup { seed, conditions, ..Setup::default() });
    }
}

#[test]
fn duplication_alone() {
    for seed in 200..210 {
        let conditions = LinkConditions { duplicate: 300, reorder: 50, ..LinkConditions::CALM };
        storm(Setup { seed, conditions, ..Setup::default() });
    }
}

#[test]
fn heavy_loss() {
    for seed in 300..306 {
        let conditions = LinkConditions { loss: 150, ..LinkConditions::CALM };
        storm(Setup { seed, conditions, mtu: PathMtu::Mtu256, ..Setup::default() });
    }
}

#[test]
fn runs_replay_from_their_seed() {
    let trace = || {
        let mut world = World::new(Setup { seed: 77, conditions: LinkConditions::STORM, ..Setup::default() });
        world.record = true;
        let [a, b] = connect(&mut world);
        for i in 0..50 {
            a.fill(0, 5000, i);
            b.recv(&mut world, i, 0, 8192);
            a.send(&mut world, i, SendOp::Send, 0, 5000);
        }
        a.wait(&mut world, 50);
        (world.now, world.seen.into_iter().map(|s| s.bytes).collect::<Vec<_>>())
    };
    let (first, second) = (trace(), trace());
    assert!(first == second);
    assert!(first.1.len() > 250);
}

/// Bytes per second that WRITEs reach over a path of 1 GB/s and 100 us round trip.
fn goodput(conditions: LinkConditions, seed: u64) -> f64 {
    let delay = Duration::from_micros(50);
    let mut world = World::new(Setup { seed, conditions, delay, rate: Some(1_000_000_000), ..Setup::default() });
    let [a, b] = connect(&mut world);
    const LEN: u32 = 1 << 16;
    const COUNT: u64 = 400;
    let start = world.now;
    let (mut posted, mut done) = (0, 0);
    world.run_until("the transfer", |w| {
        while posted < COUNT && posted - done < 16 {
            a.send(w, posted, SendOp::Write(b.remote(0)), 0, LEN);
            posted += 1;
        }
        done += a.poll(w).iter().map(|c| assert_eq!(c.status, Status::Success)).count() as u64;
        done == COUNT
    });
    (COUNT * u64::from(LEN)) as f64 / (world.now - start).as_secs_f64()
}

#[test]
fn one_percent_loss_does_not_collapse() {
    let calm = goodput(LinkConditions::CALM, 1);
    let lossy = goodput(LinkConditions { loss: 10, ..LinkConditions::CALM }, 1);
    println!("goodput calm {:.0} MB/s, 1% loss {:.0} MB/s", calm / 1e6, lossy / 1e6);
    assert!(calm > 0.85e9, "calm: {calm}");
    assert!(lossy > calm / 5.0, "calm {calm}, lossy {lossy}");
}

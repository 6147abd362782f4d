//! Many hosts that send to one at the same time through one port of a switch: does each get its share?
//!
//! A scenario and what is measured in it. The promises that hold in every run (order, exactly once, rest) are checked on
//! top.

use std::time::Duration;

use verbs::Time;

use crate::plan::{AppPlan, Ending, Switch, Talk};
use crate::{Plan, Trace, Violation, World};

/// Port of the first sender's receiver; each sender has a receiver of its own on the one host.
const PORT: u16 = 700;
/// When all connect. Lanes are made then.
const START: Time = Time(1_000_000);
/// Ring of each connection.
const RING_BYTES: u32 = 512 << 10;
/// Longest write and read of a program.
const TURN_BYTES: u32 = 64 << 10;
/// Between two looks at what arrived.
const LOOK: Duration = Duration::from_micros(100);
/// The bytes of all senders at this share of the link's rate, and this on top, are a hang.
const SLOWEST_SHARE: f64 = 0.001;
const PATIENCE: Duration = Duration::from_secs(30);

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub struct Incast {
    /// Seed of all chances.
    pub seed: u64,
    /// Hosts that send.
    pub senders: usize,
    /// Bytes that each of them sends.
    pub bytes: u64,
    /// What is between.
    pub switch: Switch,
    /// One way, without waiting.
    pub delay: Duration,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Shares {
    /// From the connects until each sender's last byte was read; none for one that did not finish.
    pub finished: Vec<Option<Duration>>,
    /// What each sender had sent when the first had finished, as a share of all of it.
    pub at_first: Vec<f64>,
    /// Payload that arrived from the connects to the end, as a share of what the port could carry in that time.
    pub used: f64,
    /// Packets sent, and those that a queue dropped.
    pub packets: u64,
    /// See `packets`.
    pub dropped: u64,
    /// Queue pairs that were replaced because they broke.
    pub resets: u64,
    /// Promises that did not hold.
    pub violations: Vec<Violation>,
}

impl Shares {
    /// The share of the sender that had least when the first had finished: 1 if all finish together.
    pub fn slowest(&self) -> f64 {
        self.at_first.iter().copied().fold(1.0, f64::min)
    }

    /// Jain's index at that time: 1 if all have as much, 1/n if one has all.
    pub fn fairness(&self) -> f64 {
        let (sum, squares) = self.at_first.iter().fold((0.0, 0.0), |(sum, squares), s| (sum + s, squares + s * s));
        if squares > 0.0 { sum * sum / (self.at_first.len() as f64 * squares) } else { 0.0 }
    }

    /// When the last one finished; none if one did not.
    pub fn last(&self) -> Option<Duration> {
        self.finished.iter().copied().collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// When the first one finished.
    pub fn first(&self) -> Option<Duration> {
        self.finished.iter().flatten().min().copied()
    }
}

impl Incast {
    fn plan(&self) -> Plan {
        let receiver = self.senders;
        let mut plan = Plan::calm(self.seed, self.senders + 1);
        plan.switch = Some(self.switch);
        plan.conditions.delay = self.delay;
        plan.quiet_at = START;
        for host in &mut plan.hosts {
            (host.ring_bytes_default, host.lanes_max) = (RING_BYTES, self.senders as u32);
            // Frames of 1,500 bytes, as on an Ethernet.
            host.mtu = verbs::PathMtu::Mtu1024;
        }
        for sender in 0..self.senders {
            let port = PORT + sender as u16;
            let talk = |bytes| Talk {
                write_max: TURN_BYTES,
                read_max: TURN_BYTES,
                // The connection stays, so that what arrived can be seen to the end.
                ..Talk::exactly(bytes).ending(Ending::HoldOpen)
            };
            plan.apps.push(AppPlan::new(sender, talk(self.bytes)).connecting(receiver, port, START, 1, RING_BYTES));
            plan.apps.push(AppPlan::new(receiver, talk(0)).listening(port, 1));
        }
        plan
    }

    /// Runs it to its end.
    pub fn run(&self) -> Shares {
        let mut world = World::new(self.plan(), Trace::silent());
        world.stop_sampling();
        let total = self.bytes * self.senders as u64;
        let carried = |time: Duration| self.switch.port.rate_bits_per_s as f64 / 8.0 * time.as_secs_f64();
        let limit = Duration::from_secs_f64(total as f64 / carried(Duration::from_secs(1)) / SLOWEST_SHARE) + PATIENCE;
        let mut finished = vec![None; self.senders];
        let mut at_first = vec![];
        while finished.contains(&None) && world.is_sound() && world.now() < START + limit {
            world.pass(LOOK);
            let arrived: Vec<u64> = (0..self.senders).map(|sender| arrived(&world, sender)).collect();
            for (finished, _) in finished.iter_mut().zip(&arrived).filter(|(_, bytes)| **bytes == self.bytes) {
                finished.get_or_insert(world.now() - START);
            }
            if at_first.is_empty() && finished.iter().any(Option::is_some) {
                at_first = arrived.iter().map(|bytes| *bytes as f64 / self.bytes as f64).collect();
            }
        }
        let took = world.now() - START;
        let resets = (0..=self.senders).map(|host| world.counter(host, "lane_resets")).sum();
        let (packets, dropped) = world.packets();
        world.finish();
        Shares {
            finished,
            at_first,
            used: total as f64 / carried(took),
            packets,
            dropped,
            resets,
            violations: world.into_checks().into_violations(),
        }
    }
}

/// What the receiver of a sender has read.
fn arrived(world: &World, sender: usize) -> u64 {
    world.moved(2 * sender + 1).iter().map(|(_, read)| read).sum()
}

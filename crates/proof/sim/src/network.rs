//! The network between hosts: loss, duplication, reordering, corruption, delay, bandwidth, cuts.
//!
//! Owns the fate of each packet. It must never look into one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use netmodel::{Bottleneck, Passage};
use rand::RngExt;
use rand::rngs::StdRng;
use verbs::{Time, Wire};

use crate::address::PATHS;
use crate::plan::{Cut, LinkConditions, Switch};

/// Bytes of a packet on an Ethernet beside its UDP payload: headers of Ethernet, IPv4 and UDP; preamble, check sum, gap.
const FRAMING_BYTES: usize = 14 + 20 + 8 + 24;

/// What becomes of one copy of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) at: Time,
    /// The bit that is turned over.
    pub(crate) corrupt: Option<u32>,
}

/// The network.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) conditions: LinkConditions,
    rng: StdRng,
    /// Directed.
    paths: BTreeMap<((usize, usize), usize), Bottleneck>,
    switch: Option<Switch>,
    /// Of each host that has sent, and at each port that has been sent to.
    transmitters: [BTreeMap<usize, Bottleneck>; 2],
    data_cut: BTreeSet<(usize, usize)>,
    control_cut: BTreeSet<(usize, usize)>,
    /// Paths that carry nothing, by the hosts between which they are.
    down: BTreeSet<((usize, usize), usize)>,
    /// Wires that carry nothing, by the hosts between which they are.
    silent: Vec<((usize, usize), Wire)>,
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    /// Packets that found a long queue at a port of the switch.
    pub(crate) marked: u64,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Network {
    pub(crate) fn new(conditions: LinkConditions, switch: Option<Switch>, rng: StdRng) -> Self {
        Self {
            conditions,
            rng,
            paths: BTreeMap::new(),
            switch,
            transmitters: Default::default(),
            data_cut: BTreeSet::new(),
            control_cut: BTreeSet::new(),
            down: BTreeSet::new(),
            silent: Vec::new(),
            packets: 0,
            lost: 0,
            marked: 0,
        }
    }

    // ---- packets

    fn chance(&mut self, of_ten_thousand: u32) -> bool {
        of_ten_thousand > 0 && self.rng.random_range(0..10_000) < of_ten_thousand
    }

    /// Whether packets arrive at a switch, and go on from there.
    pub(crate) fn has_switch(&self) -> bool {
        self.switch.is_some()
    }

    /// A packet that arrived at the switch goes on to its host: when it arrives there, and whether it was marked because the
    /// queue is long; `None` if the queue is full.
    pub(crate) fn forward(&mut self, now: Time, to: usize, bytes: usize) -> Option<(Time, bool)> {
        let Some(switch) = self.switch else { return Some((now, false)) };
        let port = self.transmitters[1].entry(to).or_insert_with(|| Bottleneck::new(switch.port));
        match port.offer(now, bytes + FRAMING_BYTES) {
            Passage::Sent { at, mark } => {
                self.marked += u64::from(mark);
                Some((at, mark))
            }
            Passage::Full => {
                self.lost += 1;
                None
            }
        }
    }

    /// A packet of `bytes` leaves one host for another over a path: no, one or two copies arrive, at `to` or at the
    /// switch before it.
    pub(crate) fn send(
        &mut self,
        now: Time,
        (from, to): (usize, usize),
        path: usize,
        bytes: usize,
    ) -> [Option<Delivery>; 2] {
        self.packets += 1;
        let conditions = self.conditions;
        let lost = self.is_wire_cut((from, to), path, Wire::Roce) || self.chance(conditions.loss);
        let Some(sent) = (!lost).then(|| self.pass(now, (from, to), path, bytes)).flatten() else {
            self.lost += 1;
            return [None; 2];
        };
        let first = self.copy(sent, bytes);
        let second = self.chance(conditions.duplicate).then(|| self.copy(sent, bytes));
        [Some(first), second]
    }

    fn copy(&mut self, sent: Time, bytes: usize) -> Delivery {
        let conditions = self.conditions;
        let mut at = sent + conditions.delay;
        if self.chance(conditions.reorder) {
            let late = conditions.late_max.as_nanos() as u64;
            at = at + Duration::from_nanos(self.rng.random_range(0..=late));
        }
        let corrupt = self.chance(conditions.corrupt).then(|| self.rng.random_range(0..bytes.max(1) as u32 * 8));
        Delivery { at, corrupt }
    }

    /// When the last bit of a packet is on the path; `None` if a queue is full.
    fn pass(&mut self, now: Time, (from, to): (usize, usize), path: usize, bytes: usize) -> Option<Time> {
        let sent = |passage| match passage {
            Passage::Sent { at, .. } => Some(at),
            Passage::Full => None,
        };
        let shape = self.conditions.path();
        let path = self.paths.entry(((from, to), path)).or_insert_with(|| Bottleneck::new(shape));
        path.set_shape(shape);
        let at = sent(path.offer(now, bytes))?;
        let Some(switch) = self.switch else { return Some(at) };
        let host = self.transmitters[0].entry(from).or_insert_with(|| Bottleneck::new(switch.host));
        sent(host.offer(at, bytes + FRAMING_BYTES))
    }

    // ---- cuts

    pub(crate) fn cut(&mut self, from: usize, to: usize, what: Cut) {
        let ways = if what.one_way { vec![(from, to)] } else { vec![(from, to), (to, from)] };
        for way in ways {
            if what.data {
                self.data_cut.insert(way);
            }
            if what.control {
                self.control_cut.insert(way);
            }
        }
    }

    pub(crate) fn heal(&mut self, a: usize, b: usize) {
        for way in [(a, b), (b, a)] {
            self.data_cut.remove(&way);
            self.control_cut.remove(&way);
        }
    }

    /// Pairs of which any way is cut.
    pub(crate) fn cut_pairs(&self) -> BTreeSet<(usize, usize)> {
        self.data_cut.iter().chain(&self.control_cut).map(|&(a, b)| pair(a, b)).collect()
    }

    /// One of the paths between two hosts goes down, or comes up again.
    pub(crate) fn set_path(&mut self, a: usize, b: usize, path: usize, is_up: bool) {
        if is_up {
            self.down.remove(&(pair(a, b), path));
        } else {
            self.down.insert((pair(a, b), path));
        }
    }

    /// The paths that are down.
    pub(crate) fn paths_down(&self) -> Vec<((usize, usize), usize)> {
        self.down.iter().copied().collect()
    }

    /// One of the wires between two hosts falls silent, or carries bytes again.
    pub(crate) fn set_wire(&mut self, a: usize, b: usize, wire: Wire, is_up: bool) {
        let of = (pair(a, b), wire);
        self.silent.retain(|silent| *silent != of);
        if !is_up {
            self.silent.push(of);
        }
    }

    /// The wires that are silent.
    pub(crate) fn silent_wires(&self) -> Vec<((usize, usize), Wire)> {
        self.silent.clone()
    }

    /// Whether what goes over a wire from one host to another vanishes on a path.
    pub(crate) fn is_wire_cut(&self, (from, to): (usize, usize), path: usize, wire: Wire) -> bool {
        self.is_data_cut(from, to, path) || self.silent.contains(&(pair(from, to), wire))
    }

    /// Whether everything passes between two hosts, on all paths.
    pub(crate) fn is_whole(&self, a: usize, b: usize) -> bool {
        let is_silent = self.silent.iter().any(|(of, _)| *of == pair(a, b));
        !is_silent
            && (0..PATHS).all(|path| {
                !self.is_control_cut(a, b, path) && !self.is_data_cut(a, b, path) && !self.is_data_cut(b, a, path)
            })
    }

    /// Whether packets from one host to another vanish on a path.
    pub(crate) fn is_data_cut(&self, from: usize, to: usize, path: usize) -> bool {
        self.data_cut.contains(&(from, to)) || self.down.contains(&(pair(from, to), path))
    }

    /// Whether TCP has to send a segment of a stream again, and waits for its timer before it does.
    pub(crate) fn stream_fate(&mut self) -> (bool, bool) {
        let lost = self.chance(self.conditions.loss);
        (lost, lost && self.rng.random_range(0..4) == 0)
    }

    /// Whether two hosts' control link passes nothing on a path, in one direction or both.
    pub(crate) fn is_control_cut(&self, a: usize, b: usize, path: usize) -> bool {
        let is_cut = self.control_cut.contains(&(a, b)) || self.control_cut.contains(&(b, a));
        is_cut || self.down.contains(&(pair(a, b), path))
    }

    /// Time of a message on a control link that works.
    pub(crate) fn link_delay(&mut self) -> Duration {
        let base = self.conditions.delay.as_nanos() as u64 * 2 + 20_000;
        // A lost segment of TCP comes again after its timeout.
        let again = if self.chance(self.conditions.loss) { 200_000_000 } else { 0 };
        Duration::from_nanos(base + self.rng.random_range(0..base) + again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn network(conditions: LinkConditions) -> Network {
        Network::new(conditions, None, StdRng::seed_from_u64(1))
    }

    #[test]
    fn those_who_send_to_one_host_share_the_port_of_its_switch() {
        // A byte in a microsecond; two packets may wait.
        let switch = Switch::of_rate(8_000_000, 2);
        let mut n = Network::new(LinkConditions::default(), Some(switch), StdRng::seed_from_u64(1));
        let bytes = 1000 - FRAMING_BYTES;
        for from in 0..3 {
            let [first, _] = n.send(Time(0), (from, 3), 0, bytes);
            assert_eq!(first.map(|d| d.at.as_nanos()), Some(1_005_000), "each host has a transmitter of its own");
        }
        let at_port = |n: &mut Network, to| n.forward(Time(1_005_000), to, bytes).map(|(at, _)| at.as_nanos());
        assert_eq!([at_port(&mut n, 3), at_port(&mut n, 3)], [Some(2_005_000), Some(3_005_000)]);
        assert_eq!((at_port(&mut n, 3), n.lost), (None, 1));
        assert_eq!(at_port(&mut n, 0), Some(2_005_000), "another host has another port");
    }

    #[test]
    fn a_good_network_passes_everything_after_the_delay() {
        let mut n = network(LinkConditions::default());
        for i in 0..100 {
            let [first, second] = n.send(Time(i), (0, 1), 0, 1000);
            assert_eq!(first, Some(Delivery { at: Time(i + 5000), corrupt: None }));
            assert_eq!(second, None);
        }
        assert_eq!((n.packets, n.lost), (100, 0));
    }

    #[test]
    fn a_narrow_path_queues_then_drops() {
        let mut n = network(LinkConditions { bytes_per_us: 1, queue_bytes: 3000, ..LinkConditions::default() });
        let at = |d: [Option<Delivery>; 2]| d[0].map(|d| d.at.as_nanos());
        assert_eq!(at(n.send(Time(0), (0, 1), 0, 1000)), Some(1_005_000));
        assert_eq!(at(n.send(Time(0), (0, 1), 0, 1000)), Some(2_005_000));
        assert_eq!(at(n.send(Time(0), (0, 1), 0, 1000)), Some(3_005_000));
        assert_eq!(at(n.send(Time(0), (0, 1), 0, 1000)), None);
        assert_eq!(at(n.send(Time(0), (1, 0), 0, 1000)), Some(1_005_000), "the other direction is another path");
        assert_eq!(n.lost, 1);
        assert_eq!(at(n.send(Time(1_000_000), (0, 1), 0, 1000)), Some(4_005_000));
    }

    #[test]
    fn cuts_have_directions_and_heal() {
        let mut n = network(LinkConditions::default());
        n.cut(0, 1, Cut { one_way: true, ..Cut::DATA });
        assert_eq!(n.send(Time(9), (0, 1), 0, 10)[0], None);
        assert!(n.send(Time(9), (1, 0), 0, 10)[0].is_some());
        assert!(!n.is_control_cut(0, 1, 0));
        n.cut(1, 2, Cut { one_way: true, ..Cut::CONTROL });
        assert!(n.is_control_cut(2, 1, 0) && n.send(Time(9), (1, 2), 0, 10)[0].is_some());
        n.heal(1, 0);
        n.heal(2, 1);
        assert!(n.send(Time(9), (0, 1), 0, 10)[0].is_some() && n.cut_pairs().is_empty());
    }

    #[test]
    fn a_path_that_is_down_takes_nothing_of_the_other_one() {
        let mut n = network(LinkConditions::default());
        n.set_path(1, 0, 0, false);
        assert_eq!(n.send(Time(9), (0, 1), 0, 10)[0], None);
        assert!(n.is_control_cut(0, 1, 0) && n.is_data_cut(1, 0, 0) && !n.is_whole(0, 1));
        assert!(!n.is_control_cut(0, 1, 1) && !n.is_data_cut(0, 1, 1) && n.is_whole(0, 2));
        n.set_path(0, 1, 0, true);
        assert!(n.send(Time(9), (0, 1), 0, 10)[0].is_some() && n.paths_down().is_empty() && n.is_whole(0, 1));
    }
}

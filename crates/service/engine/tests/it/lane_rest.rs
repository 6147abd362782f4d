//! Lanes that rest, and wake: by each cause, at both ends at once, at any moment; nothing is lost or doubled.

use std::time::Duration;

use control::Reason;
use engine::{AppId, Event};
use shm::app_flag;

use crate::world::{World, addr};

/// After so long without use a lane rests in these tests.
const AFTER: Duration = Duration::from_secs(60);
const RING: u32 = 16_384;

/// Two hosts with one connection, whose lane may rest after `after`.
struct Pair {
    w: World,
    apps: [AppId; 2],
    slots: [u32; 2],
}

impl Pair {
    fn new(seed: u64, after: Duration) -> Self {
        Self::with(seed, [Some(after); 2])
    }

    fn with(seed: u64, after: [Option<Duration>; 2]) -> Self {
        let of = |c: &engine::EngineConfig| after[usize::from(c.addresses[0] == addr(1))];
        let mut w = World::with(2, seed, |c| c.engine.lane_rest_after = of(&c.engine));
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let (sa, sb) = w.pair(a, b, 7, RING);
        Self { w, apps: [a, b], slots: [sa, sb] }
    }

    fn send(&mut self, host: usize, bytes: u64) {
        self.w.tell(host, self.apps[host], self.slots[host], |c| c.to_send += bytes);
    }

    fn received(&mut self, host: usize) -> u64 {
        let (app, slot) = (self.apps[host], self.slots[host]);
        self.w.app(host, app).conns[&slot].received
    }

    fn until_received(&mut self, host: usize, bytes: u64) {
        let (app, slot) = (self.apps[host], self.slots[host]);
        self.w.until("bytes", |w| w.app(host, app).conns[&slot].received >= bytes);
    }

    fn states(&self) -> [String; 2] {
        [0, 1].map(|host| self.w.hosts[host].engine.lanes()[0].state.clone())
    }

    fn assert_resting(&self) {
        assert_eq!(self.states(), ["resting", "resting"]);
        for host in [0, 1] {
            let totals = self.w.hosts[host].engine.totals();
            assert_eq!(totals.rc_qps, 0);
            assert_eq!(self.w.hosts[host].engine.lanes()[0].granted, 0);
        }
    }

    fn rest(&mut self) {
        self.w.pass(AFTER * 2);
        self.w.settle();
        self.assert_resting();
    }

    /// Everything that was sent arrived once, the connection lives, and nothing was taken for a failure.
    fn finish(mut self, bytes: [u64; 2]) {
        for host in [0, 1] {
            self.until_received(1 - host, bytes[host]);
        }
        for host in [0, 1] {
            assert_eq!(self.received(1 - host), bytes[host]);
            self.w.tell(host, self.apps[host], self.slots[host], |c| c.fin_after = true);
        }
        let Self { mut w, apps: [a, b], slots: [sa, sb] } = self;
        w.until("both ends", |w| w.app(0, a).conns[&sa].eof && w.app(1, b).conns[&sb].eof);
        assert_eq!((w.app(0, a).conns[&sa].reset, w.app(1, b).conns[&sb].reset), (None, None));
        w.tell(0, a, sa, |c| c.give_back(0));
        w.tell(1, b, sb, |c| c.give_back(0));
        w.settle();
        w.assert_clean();
        w.assert_empty();
    }
}

#[test]
fn a_lane_that_nobody_uses_rests_and_a_write_at_either_end_wakes_it() {
    let mut p = Pair::new(300, AFTER);
    p.send(0, 10_000);
    p.until_received(1, 10_000);
    assert_eq!(p.states(), ["up", "up"]);
    let mrs = p.w.hosts[0].engine.totals().mrs;
    p.rest();
    assert!(p.w.hosts[0].engine.totals().mrs < mrs, "the memory of frames is given back");
    // At rest nothing is to be done, for as long as it lasts.
    let before = p.w.steps;
    p.w.pass(AFTER * 10);
    p.assert_resting();
    let done = p.w.steps - before;
    assert!(done < 100, "{done} steps at rest");
    for (i, host) in [1, 0, 1].into_iter().enumerate() {
        let already = p.received(1 - host);
        p.send(host, 100);
        let (begin, woken) = (p.w.now, Duration::from_millis(5));
        p.until_received(1 - host, already + 100);
        let took = p.w.now.saturating_since(begin);
        assert!(took < woken, "write {i} waited for {took:?}");
        p.w.settle();
        assert_eq!(p.states(), ["up", "up"]);
        p.rest();
    }
    assert_eq!(p.w.counter(0, "lane_resets") + p.w.counter(1, "lane_resets"), 0, "a rest is no failure");
    assert!(p.w.counter(0, "lane_rests") >= 4);
    p.finish([10_100, 200]);
}

#[test]
fn a_lane_that_is_used_now_and_then_stays_up() {
    let mut p = Pair::new(301, AFTER);
    for i in 1..=10 {
        p.send(i % 2, 10);
        p.w.pass(AFTER / 2);
        assert_eq!(p.states(), ["up", "up"]);
    }
    p.finish([50, 50]);
}

#[test]
fn whatever_ends_a_connection_wakes_its_lane() {
    // In order, by a reset, by death, and by a connect that finds nobody.
    for cause in 0..4 {
        let mut p = Pair::new(310 + cause, AFTER);
        p.send(0, 100);
        p.until_received(1, 100);
        p.rest();
        let (a, b, sa, sb) = (p.apps[0], p.apps[1], p.slots[0], p.slots[1]);
        match cause {
            0 => {
                p.w.tell(0, a, sa, |c| c.fin_after = true);
                p.w.until("the end", |w| w.app(1, b).conns[&sb].eof);
            }
            1 => {
                p.w.tell(0, a, sa, |c| c.give_back(app_flag::ABORT));
                p.w.until("the reset", |w| w.app(1, b).conns[&sb].reset.is_some());
            }
            2 => {
                p.w.kill(0, a);
                p.w.until("the death", |w| w.app(1, b).conns[&sb].reset.is_some());
            }
            _ => {
                assert_eq!(p.w.connect_wait(0, a, (addr(1), 99).into(), RING), Err(Reason::NoListener));
                p.rest();
                let new = p.w.connect_wait(1, b, (addr(0), 99).into(), RING);
                assert_eq!(new, Err(Reason::NoListener));
            }
        }
        p.w.settle();
        assert_eq!(p.states(), ["up", "up"]);
        p.w.assert_clean();
    }
}

#[test]
fn both_ends_rest_and_wake_at_any_moment_and_nothing_is_lost() {
    let after = Duration::from_millis(100);
    for seed in 0..40 {
        let mut p = Pair::new(400 + seed, after);
        if seed % 3 == 0 {
            (p.w.conditions.loss, p.w.conditions.reorder) = (20, 20);
        }
        let mut sent = [0, 0];
        for round in 0..40 {
            let rests = |w: &World| w.counter(0, "lane_rests") + w.counter(1, "lane_rests");
            let before = rests(&p.w);
            p.w.until("a rest", |w| rests(w) > before);
            // What is written next meets each step of the rest of both ends.
            p.w.pass(Duration::from_micros((round * 37 + seed * 13) % 600));
            for host in [0, 1] {
                if !(round + host as u64 + seed).is_multiple_of(3) {
                    let bytes = 1 + (round * 977) % 30_000;
                    p.send(host, bytes);
                    sent[host] += bytes;
                }
            }
        }
        let rests = p.w.counter(0, "lane_rests");
        p.finish(sent);
        assert!(rests > 3, "seed {seed}: the lane rested {rests} times");
    }
}

#[test]
fn a_peer_that_never_rests_of_itself_does_not_end_the_rest() {
    let mut p = Pair::with(322, [Some(AFTER), None]);
    p.send(0, 100);
    p.send(1, 100);
    p.until_received(1, 100);
    p.until_received(0, 100);
    // Of what it sent last it may not know whether it arrived: then the lane comes up again once.
    p.w.pass(AFTER * 4);
    p.w.settle();
    p.assert_resting();
    assert!(p.w.counter(1, "lane_rests") <= 2);
    p.finish([100, 100]);
}

#[test]
fn a_connection_that_ended_before_the_rest_is_freed_during_it() {
    let mut p = Pair::new(321, AFTER);
    for host in [0, 1] {
        p.w.tell(host, p.apps[host], p.slots[host], |c| (c.to_send, c.fin_after) = (100, true));
    }
    let (a, b, sa, sb) = (p.apps[0], p.apps[1], p.slots[0], p.slots[1]);
    p.w.until("both ends", |w| w.app(0, a).conns[&sa].eof && w.app(1, b).conns[&sb].eof);
    p.w.tell(1, b, sb, |c| c.give_back(0));
    p.rest();
    p.w.tell(0, a, sa, |c| c.give_back(0));
    p.w.settle();
    p.w.assert_clean();
    p.w.assert_empty();
}

#[test]
fn a_lane_that_rests_ends_with_its_link() {
    let mut p = Pair::new(320, AFTER);
    p.send(0, 100);
    p.until_received(1, 100);
    p.rest();
    p.w.break_link(0, 1, Reason::PeerLost);
    let (a, sa) = (p.apps[0], p.slots[0]);
    p.w.until("told", |w| w.app(0, a).conns[&sa].reset.is_some());
    assert_eq!(p.w.app(0, a).conns[&sa].reset, Some(Reason::PeerLost));
    p.w.assert_clean();
}

#[test]
fn a_queue_pair_that_broke_when_the_peer_went_to_rest_is_wished_for_again() {
    let mut p = Pair::new(340, AFTER);
    p.send(0, 100);
    p.until_received(1, 100);
    p.w.settle();
    let (now, host) = (p.w.now, &mut p.w.hosts[1]);
    assert!(host.engine.force_lane_error(&mut host.nic, addr(0)));
    let mut events = Vec::new();
    for _ in 0..5 {
        host.engine.run(now, &mut host.nic);
        events.extend(std::iter::from_fn(|| host.engine.poll_event()));
    }
    assert!(events.iter().any(|e| matches!(e, Event::LaneReset { .. })), "{events:?}");
    // For the daemon the lane rests before it hears that, so it takes it for a word about an older round.
    host.engine.lane_rest(now, &mut host.nic, addr(0));
    let said: Vec<Event> = std::iter::from_fn(|| host.engine.poll_event()).collect();
    assert!(said.iter().any(|e| matches!(e, Event::PeerWanted { peer, .. } if *peer == addr(0))), "{said:?}");
}

#[test]
fn queue_pairs_that_break_because_the_peer_goes_to_rest_are_no_faults_of_the_lane() {
    let mut p = Pair::with(341, [Some(Duration::from_millis(100)), None]);
    // More than a lane may have faults in a minute.
    for round in 1..=20 {
        p.send(1, 10);
        p.until_received(0, 10 * round);
        // Asked by the other end.
        let rests = p.w.counter(1, "lane_rests");
        p.w.until("a rest", |w| w.counter(1, "lane_rests") > rests);
        // What is on its way then meets a queue pair that does not exist; over TCP the device is told so at once.
        let host = &mut p.w.hosts[0];
        assert!(host.engine.force_lane_error(&mut host.nic, addr(1)), "round {round}");
        p.w.settle();
    }
    assert_eq!((p.w.counter(0, "lane_resets"), p.w.counter(0, "lane_rests")), (0, 20));
    assert_eq!(p.w.hosts[0].lane_failures, Vec::<String>::new());
    p.w.assert_clean();
}

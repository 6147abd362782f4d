//! Random life on three hosts, from a seed: connections come and go, readers stall, applications die, lanes break,
//! packets get lost. At the end everything is closed, and nothing may be left.

use std::time::Duration;

use control::Reason;
use engine::AppId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shm::app_flag;

use crate::world::{LinkConditions, World, addr};

struct Life {
    w: World,
    rng: StdRng,
    apps: Vec<(usize, AppId)>,
    next_port: u16,
    ports: Vec<(usize, u16)>,
    breaks: bool,
    lanes_broken: bool,
}

impl Life {
    fn new(seed: u64, breaks: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let credits = rng.random_range(8..40);
        let memory = rng.random_range(1..20u64) << 18;
        let mut w = World::with(3, seed, |c| {
            c.engine.lane_credits = credits;
            c.engine.quantum_bytes = 8192;
            c.engine.ring_memory_per_app_max = memory;
            c.admission.backlog_max = 5;
        });
        w.conditions =
            LinkConditions { loss: rng.random_range(0..30), duplicate: 10, reorder: rng.random_range(0..60) };
        let mut life = Self { w, rng, apps: Vec::new(), next_port: 1, ports: Vec::new(), breaks, lanes_broken: false };
        (0..3).for_each(|h| life.birth(h));
        life
    }

    fn birth(&mut self, host: usize) {
        let app = self.w.attach(host, 64);
        self.apps.push((host, app));
        let auto = self.rng.random_bool(0.7);
        self.w.app(host, app).auto_accept = auto;
        self.next_port += 1;
        self.w.hosts[host].listen(app, self.next_port, 4, 0).unwrap();
        self.ports.push((host, self.next_port));
    }

    fn one_app(&mut self) -> Option<(usize, AppId)> {
        (!self.apps.is_empty()).then(|| self.apps[self.rng.random_range(0..self.apps.len())])
    }

    fn one_conn(&mut self) -> Option<(usize, AppId, u32)> {
        let (host, app) = self.one_app()?;
        let open: Vec<u32> = self.w.app(host, app).conns.iter().filter(|c| !c.1.closed).map(|c| *c.0).collect();
        (!open.is_empty()).then(|| (host, app, open[self.rng.random_range(0..open.len())]))
    }

    fn act(&mut self) {
        match self.rng.random_range(0..100) {
            0..25 => {
                let (Some((host, app)), at) = (self.one_app(), self.rng.random_range(0..self.ports.len())) else {
                    return;
                };
                let (to, port) = self.ports[at];
                if to != host {
                    let ring = 4096 << self.rng.random_range(0..4);
                    self.w.connect(host, app, (addr(to), port).into(), ring);
                }
            }
            25..60 => {
                let Some((host, app, slot)) = self.one_conn() else { return };
                let bytes = self.rng.random_range(0..60_000);
                let stall = self.rng.random_bool(0.1);
                self.w.tell(host, app, slot, |c| {
                    if !c.fin_said {
                        c.to_send += bytes;
                    }
                    c.read_limit = if stall { c.received } else { u64::MAX };
                });
            }
            60..75 => {
                let Some((host, app, slot)) = self.one_conn() else { return };
                self.w.tell(host, app, slot, |c| (c.fin_after, c.close_when_done) = (true, true));
            }
            75..88 => {
                let Some((host, app, slot)) = self.one_conn() else { return };
                let more = if self.rng.random_bool(0.5) { app_flag::ABORT } else { 0 };
                self.w.tell(host, app, slot, |c| c.give_back(more));
            }
            88..91 => {
                let Some((host, app, slot)) = self.one_conn() else { return };
                self.w.tell(host, app, slot, |c| {
                    c.read_limit = c.received;
                    c.words.app_flags.fetch_or(app_flag::STOP, std::sync::atomic::Ordering::Release);
                });
            }
            91..95 => {
                let Some((host, app)) = self.one_app() else { return };
                for (_, port, id) in self.w.app(host, app).incoming.clone() {
                    self.w.hosts[host].accepted(app, port, id);
                }
            }
            95 => {
                let Some((host, app)) = self.one_app() else { return };
                self.apps.retain(|a| *a != (host, app));
                self.w.kill(host, app);
                self.birth(host);
            }
            96..98 if self.breaks => {
                let (a, b) = [(0, 1), (1, 2), (0, 2)][self.rng.random_range(0..3)];
                self.w.break_link(a, b, Reason::PeerLost);
                self.lanes_broken = true;
            }
            98 => {
                let Some((host, app)) = self.one_app() else { return };
                let some: Vec<u64> = (0..3).map(|_| self.rng.random_range(0..200)).collect();
                let (now, h) = (self.w.now, &mut self.w.hosts[host]);
                some.iter().for_each(|r| h.engine.cancel_connect(now, &mut h.nic, app, *r));
            }
            _ => self.w.app_sleeps(self.apps[0]),
        }
        let wait = self.rng.random_range(0..400);
        self.w.pass(Duration::from_micros(wait));
    }

    fn end(&mut self) {
        self.w.pass(Duration::from_secs(11));
        // Half of the applications close everything, the others die.
        for (i, (host, app)) in self.apps.clone().into_iter().enumerate() {
            if i % 2 == 0 {
                self.w.kill(host, app);
                continue;
            }
            let slots: Vec<u32> = self.w.app(host, app).conns.iter().filter(|c| !c.1.closed).map(|c| *c.0).collect();
            for slot in slots {
                self.w.tell(host, app, slot, |c| c.give_back(0));
            }
        }
        self.w.pass(Duration::from_secs(130));
        self.w.assert_empty();
        self.w.assert_clean();
        for (i, h) in self.w.hosts.iter().enumerate() {
            let totals = h.engine.totals();
            let lanes = h.engine.lanes().iter().filter(|l| l.state == "up").count() as u64;
            let granted: u64 = h.engine.lanes().iter().filter(|l| l.state == "up").map(|l| l.granted).sum();
            assert!(granted <= totals.srq_free, "host {i}: {granted} granted of {}", totals.srq_free);
            assert_eq!(u64::from(totals.rc_qps), lanes);
            let alive = h.engine.apps().len();
            assert!(alive <= h.apps.len(), "host {i}: {alive} applications known, {} alive", h.apps.len());
        }
    }
}

/// Says whether a lane was broken.
fn live(seed: u64, breaks: bool, acts: usize) -> bool {
    let mut life = Life::new(seed, breaks);
    (0..acts).for_each(|_| life.act());
    life.end();
    let moved: u64 = life.w.hosts.iter().flat_map(|h| h.engine.lanes()).map(|l| l.rx_bytes).sum();
    assert!(moved > 100_000, "seed {seed}: hardly anything happened ({moved} bytes)");
    life.lanes_broken
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("ENGINE_SOAK_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    1000..1000 + count
}

#[test]
fn life_with_steady_lanes() {
    assert_eq!(seeds().filter(|seed| live(*seed, false, 400)).count(), 0);
}

#[test]
fn life_with_breaking_lanes() {
    assert!(seeds().filter(|seed| live(*seed, true, 400)).count() > 0);
}

#[test]
fn the_same_seed_gives_the_same_life() {
    let run = || {
        let mut life = Life::new(7, true);
        (0..200).for_each(|_| life.act());
        let w = &life.w;
        (w.now, w.steps, w.hosts.iter().map(|h| h.engine.totals().counters.clone()).collect::<Vec<_>>())
    };
    assert_eq!(run(), run());
}

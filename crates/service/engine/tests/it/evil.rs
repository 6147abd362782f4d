//! A peer daemon that breaks the rules: a bare NIC that sends what it likes to an engine.
//! Here are the peer, and its lies about frames and the lane itself; those about one mechanism are beside each other below.

use std::net::SocketAddr;
use std::time::Duration;

use control::{ChunkKind, Kind, Reason};
use engine::{AppId, Attach, Engine, EngineConfig, Event, TenantPlace};
use plane::{AdmissionConfig, ConnectRequest, ConnectionOver, Listen};
use proptest::prelude::*;
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use shm::EnginePage;
use verbs::*;

mod bytes;
mod credits;
mod operations;
mod queue_pair;
mod streams;
mod unreliable;

use crate::apps::SimApp;
use crate::late::Late;
use crate::world::desk::Desk;
use crate::world::{addr, offered};
use queue_pair::{Second, join, queue_pair, their_offer};

const FRAMES_AT: u64 = 0;
const GRANT: u32 = 64;

struct Evil {
    now: Time,
    nic: Late,
    engine: Engine,
    app: SimApp,
    app_id: AppId,
    desk: Desk,
    evil: Nic,
    second: Option<Second>,
    evil_qpn: Qpn,
    evil_srq: SrqId,
    evil_cq: CqId,
    region: Region,
    lkey: Lkey,
    rkey: u32,
    incarnation: u32,
    sequence: u64,
    failures: Vec<String>,
    /// Acknowledgements to the engine get lost.
    drop_acks: bool,
    /// The engine's thread does not run.
    engine_hangs: bool,
    opened: Vec<u32>,
    /// The engine's UC endpoint.
    offered: Option<Vec<u8>>,
}

fn nic(host: usize) -> Nic {
    let config = NicConfig {
        local: SocketAddr::new(addr(host), 4791),
        standby: Vec::new(),
        mtu: PathMtu::Mtu1024,
        limits: NicLimits::default(),
        rx_budget_bytes: u32::MAX,
        capabilities: verbs::Capabilities::ROCE,
        name: "sim".into(),
        max_gso_segments: 1,
        id_mode: Ipv4IdMode::Zero,
    };
    Nic::new(config, [host as u8; 32])
}

impl Evil {
    /// Host 0 has an engine with one application that listens on port 7; host 1 is evil. The lane is up if `ready`.
    fn new(ready: bool, credits: u32) -> Self {
        Self::with(ready, |c| c.lane_credits = credits)
    }

    fn with(ready: bool, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let (mut n, mut evil) = (Late::new(nic(0)), nic(1));
        let page = EnginePage::format(Region::anonymous(EnginePage::BYTES as usize).unwrap(), 1).unwrap();
        let mut config = EngineConfig::new(vec![addr(0)]);
        change(&mut config);
        let mut engine = Engine::new(config, &mut n, page.clone(), [9; 32]).unwrap();
        let app = SimApp::new(64, 0, page.engine_sleep(0));
        let session = app.session.clone();
        let app_id = engine
            .attach(Attach {
                pid: 1,
                uid: 1,
                name: "good".into(),
                session,
                connect_to: None,
                tenant: TenantPlace::default(),
            })
            .unwrap();
        let mut desk = Desk::new(AdmissionConfig::new(vec![addr(0)]));
        let client = desk.attach(1);
        desk.on_attached(client, app_id);
        desk.listen(app_id, Listen { port: 7, backlog: 2000, ring_bytes: 0, kind: Kind::Stream }).unwrap();

        let evil_cq = evil.create_cq(1000).unwrap();
        let evil_srq = evil.create_srq(&SrqInit { max_wr: 1000, max_sge: 1, limit: 0 }).unwrap();
        let evil_qpn = queue_pair(&mut evil, evil_cq, evil_srq);
        let region = Region::anonymous(1 << 20).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = evil.reg_mr(&region, 0, 1 << 20, access).unwrap();
        let offer = engine.lane_offer(&mut n, addr(1)).unwrap();
        join(&mut evil, evil_qpn, &offer);
        let theirs = their_offer(evil_qpn, 41);
        engine.lane_accept(&mut n, addr(1), &theirs).unwrap();
        let mut e = Self {
            now: Time(1),
            nic: n,
            engine,
            app,
            app_id,
            desk,
            evil,
            second: None,
            evil_qpn,
            evil_srq,
            evil_cq,
            region,
            lkey: mr.lkey,
            rkey: mr.rkey.0,
            incarnation: 41,
            sequence: 0,
            failures: Vec::new(),
            drop_acks: false,
            engine_hangs: false,
            opened: Vec::new(),
            offered: None,
        };
        (0..GRANT).for_each(|i| e.post_recv(i));
        if ready {
            e.engine.lane_ready(e.now, &mut e.nic, addr(1));
        }
        e
    }

    fn post_recv(&mut self, i: u32) {
        let sges = [Sge { addr: (1 << 19) + u64::from(i) * 4096, len: 4096, lkey: self.lkey }];
        self.evil.post_srq_recv(self.evil_srq, &[RecvWr { wr_id: i.into(), sges: &sges }]).unwrap();
    }

    fn post(&mut self, op: SendOp, len: u32) {
        let sges = [Sge { addr: FRAMES_AT, len, lkey: self.lkey }];
        let wr = SendWr { wr_id: 0, op, payload: Payload::Sges(&sges), flags: SendFlags::SIGNALED, dest: None };
        // A queue pair that the engine's failure took down takes no more.
        let _ = self.evil.post_send(self.evil_qpn, &[wr]);
        self.exchange();
    }

    fn send(&mut self, bytes: &[u8]) {
        self.region.write(FRAMES_AT, bytes).unwrap();
        self.post(SendOp::Send, bytes.len() as u32);
    }

    fn header(&mut self, records: u16, credits: u64) -> Vec<u8> {
        self.sequence += 1;
        let mut f = vec![1, 0];
        f.extend(records.to_be_bytes());
        f.extend(self.incarnation.to_be_bytes());
        f.extend(self.sequence.to_be_bytes());
        f.extend(credits.to_be_bytes());
        f
    }

    /// A frame with one record.
    fn record(&mut self, kind: u8, route: u32, body: &[u8]) {
        let mut f = self.header(1, 0);
        f.extend(record(kind, route, body));
        self.send(&f);
    }

    fn open_body(&self, ring_bytes: u32, port: u16) -> Vec<u8> {
        self.growing_body(ring_bytes, ring_bytes, port)
    }

    fn growing_body(&self, ring_bytes: u32, grown_bytes: u32, port: u16) -> Vec<u8> {
        let mut b = Vec::new();
        b.extend(ring_bytes.to_be_bytes());
        b.extend(self.rkey.to_be_bytes());
        b.extend(0x1000u64.to_be_bytes());
        b.extend(port.to_be_bytes());
        b.extend(4000u16.to_be_bytes());
        b.extend([0; 4]);
        b.extend([0; 10]);
        b.extend([0xff, 0xff, 10, 0, 0, 1]);
        b.extend(grown_bytes.to_be_bytes());
        b.extend([0; 4]);
        b
    }

    /// Opens a connection as a good peer would: the engine's route and ring.
    fn open(&mut self) -> (u32, RemoteAddr) {
        self.open_with(4096)
    }

    fn open_with(&mut self, ring_bytes: u32) -> (u32, RemoteAddr) {
        self.open_growing(ring_bytes, ring_bytes)
    }

    fn open_growing(&mut self, ring_bytes: u32, grown_bytes: u32) -> (u32, RemoteAddr) {
        let body = self.growing_body(ring_bytes, grown_bytes, 7);
        self.record(1, 0x0010_0005, &body);
        let ack = self.received().into_iter().find(|f| f[24] == 2).expect("an OpenAck");
        let word = |at: usize| u32::from_be_bytes(ack[at..at + 4].try_into().unwrap());
        assert_eq!(word(28), 0x0010_0005);
        let remote_addr = u64::from_be_bytes(ack[48..56].try_into().unwrap());
        (word(32), RemoteAddr { addr: remote_addr, rkey: Rkey(word(40)) })
    }

    /// Frames that came from the engine.
    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        self.evil.poll_cq(self.evil_cq, &mut out, 1000).unwrap();
        let recvs = out.iter().filter(|c| c.opcode == WcOpcode::Recv && c.status == Status::Success);
        let frames: Vec<_> = recvs
            .map(|c| {
                let mut f = vec![0; c.byte_len as usize];
                self.region.read((1 << 19) + c.wr_id * 4096, &mut f).unwrap();
                (c.wr_id, f)
            })
            .collect();
        frames
            .into_iter()
            .map(|(i, f)| {
                self.post_recv(i as u32);
                f
            })
            .collect()
    }

    /// Lets both sides work for a while.
    fn exchange(&mut self) {
        let mut buf = Vec::new();
        let peers = [0, 1, 2].map(|host| SocketAddr::new(addr(host), 4791));
        for _ in 0..12 {
            self.now = self.now + Duration::from_micros(10);
            self.nic.handle_timeout(self.now);
            self.evil.handle_timeout(self.now);
            if !self.engine_hangs {
                self.engine.run(self.now, &mut self.nic);
                self.events();
                self.app.work();
            }
            while let Some(sent) = self.nic.poll_transmit(self.now, &mut buf) {
                let second = self.second.as_mut().filter(|_| sent.destination == peers[2]);
                second.map_or(&mut self.evil, |s| &mut s.nic).handle_datagram(self.now, peers[0], &buf, 0);
            }
            if let Some(second) = &mut self.second {
                second.nic.handle_timeout(self.now);
                while second.nic.poll_transmit(self.now, &mut buf).is_some() {
                    self.nic.handle_datagram(self.now, peers[2], &buf, 0);
                }
            }
            while self.evil.poll_transmit(self.now, &mut buf).is_some() {
                // RC ACKNOWLEDGE is opcode 17 (IBTA table 38).
                if self.drop_acks && buf[0] == 17 {
                    continue;
                }
                self.nic.handle_datagram(self.now, peers[1], &buf, 0);
            }
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::ChunksWanted { app, size, rings } => {
                    for kind in [ChunkKind::Tx, ChunkKind::Rx] {
                        let region = Region::anonymous(size.grown as usize * rings as usize).unwrap();
                        let n = self.app.next_chunk;
                        self.app.next_chunk += 1;
                        self.app.chunks.insert(n, region.clone());
                        self.engine.add_chunk(&mut self.nic, app, n, kind, size, region).unwrap();
                    }
                }
                Event::Incoming { connection, .. } => {
                    let slot = self.app.adopt(connection, false);
                    self.app.conns.get_mut(&slot).unwrap().read_limit = 0;
                    self.opened.push(slot);
                }
                Event::LaneFailed { detail, .. } | Event::LaneReset { detail, .. } => self.failures.push(detail),
                Event::Connected { .. } => {}
                Event::ConnectRequest { open, from, to_port, kind, ring_bytes } => {
                    let answer =
                        self.desk.on_connect_request(&ConnectRequest { engine: 0, from, to_port, kind, ring_bytes });
                    self.engine.admit(self.now, &mut self.nic, open, answer);
                }
                Event::ConnectionOver { app, connection, peer, port } => {
                    self.desk.on_connection_over(app, ConnectionOver { engine: 0, connection, peer, port });
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// The lane failed, once, for this reason; the application was told; the engine is whole.
    fn assert_failed(&mut self, why: &str) {
        self.exchange();
        assert_eq!(self.failures.len(), 1, "{:?} ({why} expected)", self.failures);
        assert!(self.failures[0].contains(why), "{:?} instead of {why}", self.failures);
        for slot in &self.opened {
            assert!(self.app.conns[slot].reset.is_some());
        }
        let totals = self.engine.totals();
        assert_eq!(totals.rc_qps, 0);
        assert_eq!(totals.counters.iter().find(|c| c.0 == "violations").unwrap().1, 1);
        assert_eq!(self.nic.counters_detail().rnr_naks_sent, 0);
        // A new lane can be made at once, with its whole grant posted.
        let offer = self.engine.lane_offer(&mut self.nic, addr(1)).unwrap();
        assert!(self.engine.totals().srq_free >= offer.credits.into());
    }

    fn assert_fine(&mut self) {
        self.exchange();
        assert_eq!(self.failures, Vec::<String>::new());
    }
}

fn record(kind: u8, route: u32, body: &[u8]) -> Vec<u8> {
    let mut r = vec![kind, 0];
    r.extend((8 + body.len() as u16).to_be_bytes());
    r.extend(route.to_be_bytes());
    r.extend(body);
    r
}

fn reason(code: u32) -> [u8; 8] {
    (u64::from(code) << 32).to_be_bytes()
}

#[test]
fn malformed_frames_fail_the_lane() {
    type Act = fn(&mut Evil);
    let cases: [(&str, Act); 7] = [
        ("ends within header", |e| e.send(&[])),
        ("ends within header", |e| e.send(&[1; 23])),
        ("version 9", |e| e.send(&[9; 24])),
        ("incarnation", |e| {
            e.incarnation = 40;
            e.record(6, 1, &[]);
        }),
        ("expected 1", |e| {
            e.sequence = 1;
            e.record(6, 1, &[]);
        }),
        ("expected 2", |e| {
            e.record(6, 1, &[]);
            e.sequence = 2;
            e.record(6, 1, &[]);
        }),
        ("unknown kind", |e| e.record(77, 1, &[])),
    ];
    for (why, act) in cases {
        let mut e = Evil::new(true, 64);
        act(&mut e);
        e.assert_failed(why);
    }
}

#[test]
fn a_frame_that_was_handled_is_not_handled_again() {
    let mut e = Evil::new(true, 64);
    e.record(6, 1, &[]);
    e.sequence = 0;
    // Of an unknown kind: it would fail the lane.
    e.record(77, 1, &[]);
    e.assert_fine();
    let stale = e.engine.totals().counters.iter().find(|c| c.0 == "stale_frames").unwrap().1;
    assert_eq!(stale, 2, "the record for a connection that is over, and the frame");
}

#[test]
fn a_frame_longer_than_a_receive_fails_the_lane_at_the_device() {
    let mut e = Evil::new(true, 64);
    e.send(&[1; 5000]);
    e.exchange();
    assert_eq!(e.failures.len(), 1, "{:?}", e.failures);
}

#[test]
fn credits_out_of_nothing_fail_the_lane() {
    let mut e = Evil::new(true, 64);
    let f = e.header(0, 65_536);
    e.send(&f);
    e.assert_failed("credit total");

    // Messages beyond the grant, while nothing was given back.
    let mut e = Evil::new(false, 8);
    for _ in 0..8 {
        e.record(6, 1, &[]);
        e.assert_fine();
    }
    e.record(6, 1, &[]);
    e.assert_failed("without a credit");
}

#[test]
fn an_application_of_a_failed_lane_can_leave() {
    let mut e = Evil::new(true, 64);
    e.open();
    e.send(&[0; 24]);
    e.assert_failed("version 0");
    e.engine.detach(e.now, &mut e.nic, e.app_id, Reason::Closed);
    e.engine.run(e.now, &mut e.nic);
    let mut gone = false;
    while let Some(event) = e.engine.poll_event() {
        gone |= matches!(event, Event::AppGone { .. });
    }
    assert!(gone);
}

#[test]
fn receives_are_posted_before_they_are_granted_again() {
    let mut e = Evil::new(true, 64);
    e.engine_hangs = true;
    let free = e.engine.totals().srq_free;
    (0..8).for_each(|_| e.record(6, 1, &[]));
    let offer = e.engine.lane_offer(&mut e.nic, addr(1)).unwrap();
    assert_eq!(e.engine.totals().srq_free, free);
    e.engine.run(e.now, &mut e.nic);
    assert_eq!(e.engine.totals().rc_qps, 1, "what came on the old queue pair does not touch the new one");
    let lane = &e.engine.lanes()[0];
    let qpn = offered(&offer).qpn;
    assert_eq!((lane.qpn, lane.granted), (Some(qpn.0), offer.credits.into()));
}

#[test]
fn a_late_completion_gives_its_receive_back() {
    let mut e = Evil::new(true, 64);
    (e.engine_hangs, e.nic.holds_back) = (true, true);
    (0..8).for_each(|_| e.record(6, 1, &[]));
    // The queue pair goes, and what it received has not been told.
    let offer = e.engine.lane_offer(&mut e.nic, addr(1)).unwrap();
    e.nic.holds_back = false;
    e.engine.run(e.now, &mut e.nic);
    let refused = e.engine.totals().counters.iter().find(|c| c.0 == "device_refusals").unwrap().1;
    assert_eq!(refused, 0, "each entry is one of the engine's");
    // Every entry of the grant is there for the next lane.
    e.evil_qpn = queue_pair(&mut e.evil, e.evil_cq, e.evil_srq);
    join(&mut e.evil, e.evil_qpn, &offer);
    e.engine.lane_accept(&mut e.nic, addr(1), &their_offer(e.evil_qpn, 42)).unwrap();
    (e.incarnation, e.sequence) = (42, 0);
    (0..offer.credits).for_each(|_| e.record(6, 1, &[]));
    let counters = e.nic.counters_detail();
    assert_eq!((counters.rnr_naks_sent, counters.served_send), (0, 8 + 8));
    e.assert_fine();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever comes in frames and immediates: no panic, no RNR NAK, and at most one failure of the lane.
    #[test]
    fn nothing_that_a_peer_sends_brings_the_engine_down(
        steps in proptest::collection::vec((0u8..10, any::<u32>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..60)), 1..30),
    ) {
        let mut e = Evil::new(true, 16);
        let (route, at) = e.open();
        for (what, n, wide, bytes) in steps {
            let near = route.wrapping_add(n % 3);
            match what {
                0 => e.send(&bytes),
                1 => e.post(SendOp::WriteImm(at, near), n % 5000),
                2 => e.post(SendOp::SendImm(n), (bytes.len() as u32).min(60)),
                3 => e.record((n % 20) as u8, if n % 2 == 0 { near } else { 0 }, &bytes),
                4 => { let body = e.open_body(4096 << (n % 4), 7); e.record(1, n, &body); }
                5 => e.record(4, near, &(wide % 5000).to_be_bytes()),
                6 => e.record(5, near, &(wide % 2).to_be_bytes()),
                7 => e.record(6, near, &[]),
                8 => e.record(7, near, &reason(n)),
                9 if n % 3 == 0 => e.record(8 + (n & 1) as u8, 0, &reason((wide % 20) as u32)),
                _ => { let f = e.header(0, wide % 20); e.send(&f); }
            }
        }
        e.exchange();
        prop_assert!(e.failures.len() <= 1);
        prop_assert_eq!(e.nic.counters_detail().rnr_naks_sent, 0);
    }
}

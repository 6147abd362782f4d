//! What the engine itself costs: two engines in one thread on a device that only copies.
//!
//! `cargo run --release -p engine --example speed`. Prints nanoseconds per message and per idle round; the copies of
//! payload into, between and out of rings are part of them, packets are not. With arguments `SIZE [COUNT]` it runs one
//! load.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)] // it measures and prints
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Instant;

use control::{ChunkKind, Connection, Kind, Path};
use engine::{Admission, AppId, Attach, Dial, Engine, EngineConfig, Event, TenantPlace};
use shm::{Doorbell, EnginePage, RingMemory, RingReader, RingWriter, Session};
use verbs::*;

/// A device whose other end is reached by a copy.
struct Copying {
    attr: DeviceAttr,
    regions: Vec<Option<Region>>,
    srq: VecDeque<(u64, Sge)>,
    cq: VecDeque<Completion>,
    posted: VecDeque<(u64, SendOp, Sge, SendFlags)>,
    next_qpn: u32,
}

impl Copying {
    fn new(addr: IpAddr) -> Self {
        let attr = DeviceAttr {
            name: "copying".into(),
            gid: Gid::from(addr),
            udp_port: ROCE_UDP_PORT,
            mtu: PathMtu::Mtu4096,
            max_msg_bytes: 1 << 30,
            max_inline_bytes: 0,
            max_qp_wr: 4096,
            max_srq_wr: 1 << 20,
            max_cqe: 1 << 20,
            max_sge: 1,
            max_rd_atomic: 1,
            max_qp: 1000,
            max_mr: 1 << 20,
            rx_budget_bytes: u32::MAX,
            capabilities: verbs::Capabilities::ROCE,
        };
        let (srq, cq, posted) = Default::default();
        Self { attr, regions: Vec::new(), srq, cq, posted, next_qpn: 1 }
    }

    fn region(&self, key: u32) -> &Region {
        self.regions[key as usize].as_ref().expect("registered")
    }

    /// Executes what `self` posted on `peer`.
    fn execute(&mut self, peer: &mut Self, buf: &mut [u8]) -> bool {
        let any = !self.posted.is_empty();
        while let Some((wr_id, op, sge, flags)) = self.posted.pop_front() {
            let bytes = &mut buf[..sge.len as usize];
            self.region(sge.lkey.0).read(sge.addr, bytes).expect("in bounds");
            let (entry, place) = peer.srq.pop_front().expect("credits");
            let done = |wr_id, opcode, imm| Completion {
                wr_id,
                status: Status::Success,
                opcode,
                byte_len: sge.len,
                qpn: Qpn(1),
                imm,
                src_qpn: None,
                placed: Placed::Untold,
            };
            let received = match op {
                SendOp::WriteImm(to, imm) => {
                    peer.region(to.rkey.0).write(to.addr, bytes).expect("in bounds");
                    done(entry, WcOpcode::RecvWriteImm, Some(imm))
                }
                _ => {
                    peer.region(place.lkey.0).write(place.addr, bytes).expect("in bounds");
                    done(entry, WcOpcode::Recv, None)
                }
            };
            peer.cq.push_back(received);
            if flags.contains(SendFlags::SIGNALED) {
                self.cq.push_back(done(wr_id, WcOpcode::Send, None));
            }
        }
        any
    }
}

fn unsupported<T>(what: &'static str) -> Result<T, VerbsError> {
    Err(VerbsError::Unsupported { device: "copying".into(), what })
}

impl Provider for Copying {
    fn device(&self) -> &DeviceAttr {
        &self.attr
    }
    fn create_cq(&mut self, _: u32) -> Result<CqId, VerbsError> {
        Ok(CqId(0))
    }
    fn destroy_cq(&mut self, _: CqId) -> Result<(), VerbsError> {
        Ok(())
    }
    fn create_srq(&mut self, _: &SrqInit) -> Result<SrqId, VerbsError> {
        Ok(SrqId(0))
    }
    fn destroy_srq(&mut self, _: SrqId) -> Result<(), VerbsError> {
        Ok(())
    }
    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        // Nothing is sent through the one for datagrams.
        if init.qp_type == QpType::Ud {
            return Ok(Qpn(1000));
        }
        self.next_qpn += 1;
        Ok(Qpn(self.next_qpn - 1))
    }
    fn modify_qp(&mut self, _: Qpn, _: &QpModify) -> Result<(), VerbsError> {
        Ok(())
    }
    fn query_qp(&self, _: Qpn) -> Result<QpStatus, VerbsError> {
        Ok(QpStatus {
            qp_type: QpType::Rc,
            state: QpState::Reset,
            sq_outstanding: 0,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            dest_qpn: None,
        })
    }
    fn destroy_qp(&mut self, _: Qpn) -> Result<(), VerbsError> {
        Ok(())
    }
    fn create_ah(&mut self, _: &AddressVector) -> Result<AhId, VerbsError> {
        Ok(AhId(1))
    }
    fn destroy_ah(&mut self, _: AhId) -> Result<(), VerbsError> {
        unsupported("destroy_ah")
    }
    fn reg_mr(&mut self, region: &Region, _: u64, len: u64, _: Access) -> Result<Mr, VerbsError> {
        self.regions.push(Some(region.clone()));
        let n = self.regions.len() as u32 - 1;
        Ok(Mr { id: MrId(n), lkey: Lkey(n), rkey: Rkey(n), len })
    }
    fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError> {
        self.regions[mr.0 as usize] = None;
        Ok(())
    }
    fn post_send(&mut self, _: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        for wr in wrs {
            let Payload::Sges(sges) = wr.payload else { continue };
            self.posted.push_back((wr.wr_id, wr.op, sges[0], wr.flags));
        }
        Ok(())
    }
    fn post_recv(&mut self, _: Qpn, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        Ok(())
    }
    fn post_srq_recv(&mut self, _: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.srq.extend(wrs.iter().map(|wr| (wr.wr_id, wr.sges[0])));
        Ok(())
    }
    fn poll_cq(&mut self, _: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        let n = max.min(self.cq.len());
        out.extend(self.cq.drain(..n));
        Ok(n)
    }
    fn req_notify_cq(&mut self, _: CqId, _: bool) -> Result<(), VerbsError> {
        Ok(())
    }
    fn poll_event(&mut self) -> Option<AsyncEvent> {
        None
    }
}

struct Host {
    nic: Copying,
    engine: Engine,
    app: AppId,
    session: Session,
    a2e: Doorbell,
    chunks: Vec<Region>,
    conns: Vec<(u32, RingReader, RingWriter)>,
    /// Connections of the other host.
    admitted: u64,
}

impl Host {
    fn new(addr: IpAddr, slots: u32) -> Self {
        let mut nic = Copying::new(addr);
        let page = Region::anonymous(EnginePage::BYTES as usize).expect("memory");
        let page = EnginePage::format(page, 1).expect("page");
        let mut engine = Engine::new(EngineConfig::new(vec![addr]), &mut nic, page, [1; 32]).expect("engine");
        let region = Region::anonymous(Session::bytes(slots) as usize).expect("memory");
        let session = Session::format(region, slots, 1).expect("session");
        let attach = Attach {
            pid: 1,
            uid: 1,
            name: "app".into(),
            session: session.clone(),
            connect_to: None,
            tenant: TenantPlace::default(),
        };
        let app = engine.attach(attach).expect("attached");
        Self { nic, engine, app, a2e: session.a2e(0), session, chunks: Vec::new(), conns: Vec::new(), admitted: 0 }
    }

    fn run(&mut self) -> bool {
        let mut worked = self.engine.run(Time(1), &mut self.nic);
        while let Some(event) = self.engine.poll_event() {
            worked = true;
            match event {
                Event::ChunksWanted { app, size, rings } => {
                    for kind in [ChunkKind::Tx, ChunkKind::Rx] {
                        let region = Region::anonymous(size.grown as usize * rings as usize).expect("memory");
                        let number = self.chunks.len() as u32;
                        self.chunks.push(region.clone());
                        self.engine.add_chunk(&mut self.nic, app, number, kind, size, region).expect("chunk");
                    }
                }
                Event::Connected { result, .. } => self.adopt(&result.expect("connected")),
                Event::Incoming { connection, app, port } => {
                    self.engine.accepted(app, port, connection.id);
                    self.adopt(&connection);
                }
                Event::ConnectRequest { open, from, to_port: port, ring_bytes, .. } => {
                    self.admitted += 1;
                    let (app, connection, kind) = (self.app, self.admitted, Kind::Stream);
                    let answer = Ok(Admission { app, connection, ring_bytes, kind, from, port });
                    self.engine.admit(Time(1), &mut self.nic, open, answer);
                }
                other => println!("{other:?}"),
            }
        }
        worked
    }

    fn adopt(&mut self, c: &Connection) {
        let Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes, grown_bytes } = c.path
        else {
            return;
        };
        let ring = |chunk: u32, offset| RingMemory {
            region: self.chunks[chunk as usize].clone(),
            offset,
            bytes: grown_bytes.into(),
        };
        let w = self.session.slot(slot);
        let (first, rx, tx) =
            (ring_bytes.into(), (w.rx_tail, w.rx_head, w.rx_grown_at), (w.tx_tail, w.tx_head, w.tx_grown_at));
        let reader = RingReader::growing(ring(rx_chunk, rx_offset), first, rx, 0).expect("ring");
        let writer = RingWriter::growing_when_told(ring(tx_chunk, tx_offset), first, tx, 0).expect("ring");
        w.app_generation.store(generation, Ordering::Release);
        self.conns.push((slot, reader, writer));
    }
}

fn both(a: &mut Host, b: &mut Host, buf: &mut [u8]) -> bool {
    let mut worked = a.run();
    worked |= a.nic.execute(&mut b.nic, buf);
    worked |= b.run();
    worked | b.nic.execute(&mut a.nic, buf)
}

fn connect(connections: u32, ring_bytes: u32) -> (Host, Host) {
    let (ia, ib) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let slots = connections.next_power_of_two().clamp(64, 65536);
    let (mut a, mut b) = (Host::new(ia, slots), Host::new(ib, slots));
    let oa = a.engine.lane_offer(&mut a.nic, ib).expect("offer");
    let ob = b.engine.lane_offer(&mut b.nic, ia).expect("offer");
    a.engine.lane_accept(&mut a.nic, ib, &ob).expect("accepted");
    b.engine.lane_accept(&mut b.nic, ia, &oa).expect("accepted");
    a.engine.lane_ready(Time(1), &mut a.nic, ib);
    b.engine.lane_ready(Time(1), &mut b.nic, ia);
    let mut buf = vec![0; 1 << 20];
    let to = SocketAddr::new(ib, 7);
    for i in 0..connections {
        let local = SocketAddr::new(ia, 40_000);
        let dial = Dial { connection: i.into(), to, local, ring_bytes, kind: Kind::Stream };
        a.engine.connect(Time(1), &mut a.nic, a.app, i.into(), dial);
        if i % 1000 == 999 {
            while both(&mut a, &mut b, &mut buf) {}
        }
    }
    while both(&mut a, &mut b, &mut buf) {}
    assert_eq!((a.conns.len(), b.conns.len()), (connections as usize, connections as usize));
    (a, b)
}

/// Every connection has one message of `size` in flight at a time, one way.
fn rate(connections: u32, size: usize, messages: u64) {
    let (mut a, mut b) = connect(connections, 65536);
    let mut buf = vec![0; 1 << 20];
    let message = vec![7; size];
    let start = Instant::now();
    let mut sent = 0;
    while sent < messages {
        for (slot, _, writer) in &mut a.conns {
            sent += u64::from(writer.write(&message).expect("good engine") == size);
            a.a2e.ring(*slot);
        }
        both(&mut a, &mut b, &mut buf);
        for (slot, reader, _) in &mut b.conns {
            while reader.read(&mut buf[..65536]).expect("good engine") > 0 {
                b.a2e.ring(*slot);
            }
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / sent as f64;
    println!("{connections:>6} connections, messages of {size:>6} bytes: {ns:>8.0} ns per message");
}

/// What a round costs when one of many connections is busy.
fn one_of_many(connections: u32) {
    let (mut a, mut b) = connect(connections, 4096);
    let mut buf = vec![0; 1 << 20];
    let rounds = 400_000u32;
    let start = Instant::now();
    for _ in 0..rounds {
        a.run();
    }
    let idle = start.elapsed() / rounds;
    let mut message = |i: u32| {
        let at = (i as usize * 7919) % a.conns.len();
        let (slot, _, writer) = &mut a.conns[at];
        writer.write(&[1; 16]).expect("good engine");
        a.a2e.ring(*slot);
        both(&mut a, &mut b, &mut buf);
        let (slot, reader, _) = &mut b.conns[at];
        reader.read(&mut buf[..4096]).expect("good engine");
        b.a2e.ring(*slot);
    };
    // Pages come into being when they are first touched.
    (0..connections).for_each(&mut message);
    let start = Instant::now();
    (0..rounds).for_each(&mut message);
    let busy = start.elapsed() / rounds;
    println!("{connections:>6} connections: idle round {idle:?}, a message on one of them {busy:?}");
}

fn main() {
    let argument = |place| std::env::args().nth(place).and_then(|s| s.parse().ok());
    if let Some(size) = argument(1) {
        let count = argument(2).map_or(2_000_000, |count| count as u64);
        return rate(1, size, count);
    }
    for (connections, size) in [(1, 64), (1, 4096), (1, 60_000), (1000, 64), (1000, 4096), (1000, 60_000)] {
        rate(connections, size, if size > 10_000 { 300_000 } else { 2_000_000 });
    }
    for connections in [1, 1000, 65_536] {
        one_of_many(connections);
    }
}

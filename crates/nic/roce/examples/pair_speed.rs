//! How much CPU time two NICs take for a message, both ends in one thread and no socket between them.
//!
//! `cargo run --release -p roce --example pair_speed`

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)] // it measures and prints
use std::net::SocketAddr;
use std::time::Instant;

use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use verbs::*;

const ROOM: usize = 4 << 20;

struct Pair {
    nics: [Nic; 2],
    addresses: [SocketAddr; 2],
    qpns: [Qpn; 2],
    cqs: [CqId; 2],
    mrs: [Mr; 2],
    buf: Vec<u8>,
    done: Vec<Completion>,
}

impl Pair {
    fn new(mtu: PathMtu) -> Result<Self, Box<dyn std::error::Error>> {
        let addresses = ["10.0.0.1:4791".parse()?, "10.0.0.2:4791".parse()?];
        let nic = |side: usize| {
            let config = NicConfig {
                local: addresses[side],
                standby: Vec::new(),
                mtu,
                limits: NicLimits::default(),
                rx_budget_bytes: u32::MAX,
                capabilities: verbs::Capabilities::ROCE,
                name: "nic".into(),
                max_gso_segments: 64,
                id_mode: Ipv4IdMode::SegmentIndex,
            };
            Nic::new(config, [side as u8; 32])
        };
        let mut nics = [nic(0), nic(1)];
        let (mut qpns, mut cqs, mut mrs) = (Vec::new(), Vec::new(), Vec::new());
        for nic in &mut nics {
            let cq = nic.create_cq(8192)?;
            let init = QpInit {
                pd: verbs::PdId::default(),
                qp_type: QpType::Rc,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                max_send_wr: 1024,
                max_recv_wr: 4096,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_bytes: 64,
                sq_sig_all: true,
            };
            qpns.push(nic.create_qp(&init)?);
            cqs.push(cq);
            mrs.push(nic.reg_mr(&Region::anonymous(ROOM)?, 0, ROOM as u64, Access::all())?);
        }
        for side in 0..2 {
            let rtr = RtrAttr {
                dest_qpn: qpns[1 - side],
                rq_psn: Psn::new(0),
                av: AddressVector::new(Gid::from(addresses[1 - side].ip())),
                mtu,
                max_dest_rd_atomic: 16,
                min_rnr_timer: 12,
                source_port: None,
            };
            let rts = RtsAttr {
                sq_psn: Psn::new(0),
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: 16,
                peer_rx_budget_bytes: u32::MAX,
                peer: verbs::Capabilities::empty(),
            };
            let nic = &mut nics[side];
            nic.modify_qp(qpns[side], &QpModify::Init { access: Access::all(), qkey: Qkey(0) })?;
            nic.modify_qp(qpns[side], &QpModify::Rtr(rtr))?;
            nic.modify_qp(qpns[side], &QpModify::Rts(rts))?;
        }
        let (qpns, cqs, mrs) = ([qpns[0], qpns[1]], [cqs[0], cqs[1]], [mrs[0], mrs[1]]);
        Ok(Self { nics, addresses, qpns, cqs, mrs, buf: Vec::new(), done: Vec::new() })
    }

    fn turn(&mut self, now: Time) {
        for side in 0..2 {
            while let Some(transmit) = self.nics[side].poll_transmit(now, &mut self.buf) {
                let stride = transmit.segment_bytes.map_or(self.buf.len(), usize::from);
                self.nics[1 - side].handle_batch(now, self.addresses[side], &self.buf, stride);
            }
        }
    }

    fn run(
        &mut self,
        name: &str,
        make: fn(RemoteAddr) -> SendOp,
        len: u32,
        total: u64,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let op = make(RemoteAddr { addr: 0, rkey: self.mrs[1].rkey });
        let wants_receive = matches!(op, SendOp::Send | SendOp::SendImm(_) | SendOp::WriteImm(..));
        let sges = [Sge { addr: 0, len, lkey: self.mrs[0].lkey }];
        let receive = [Sge { addr: 0, len, lkey: self.mrs[1].lkey }];
        let (mut posted, mut finished, mut received) = (0, 0, 0);
        let (start, cpu_start) = (Instant::now(), cpu_seconds()?);
        while finished < total {
            while posted < total && posted - finished < 256 && posted - received < 1024 {
                if wants_receive {
                    self.nics[1].post_recv(self.qpns[1], &[RecvWr { wr_id: posted, sges: &receive }])?;
                } else {
                    received += 1;
                }
                let payload = Payload::Sges(&sges);
                let wr = SendWr { wr_id: posted, op, payload, flags: SendFlags::empty(), dest: None };
                self.nics[0].post_send(self.qpns[0], &[wr])?;
                posted += 1;
            }
            self.turn(Time(start.elapsed().as_nanos() as u64));
            self.done.clear();
            finished += self.nics[0].poll_cq(self.cqs[0], &mut self.done, 1024)? as u64;
            received += self.nics[1].poll_cq(self.cqs[1], &mut self.done, 1024)? as u64;
            if let Some(bad) = self.done.iter().find(|c| c.status != Status::Success) {
                return Err(format!("{bad:?}").into());
            }
        }
        let took = (cpu_seconds()? - cpu_start).max(1e-9);
        let (rate, each) = (total as f64 * f64::from(len) / took / 1e9, took * 1e9 / total as f64);
        println!("{name:>12} {len:>8} B  {rate:7.2} GB/s  {each:10.0} ns each");
        Ok(())
    }
}

/// CPU time of this thread: wall time would measure the neighbours, too.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos: u64 = text.split_whitespace().next().ok_or("schedstat is empty")?.parse()?;
    Ok(nanos as f64 / 1e9)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |place| std::env::args().nth(place).and_then(|s| s.parse::<u64>().ok());
    if let (Some(len), Some(count)) = (argument(1), argument(2)) {
        let len = u32::try_from(len)?;
        return Pair::new(PathMtu::Mtu1024)?.run("WRITE_IMM", |r| SendOp::WriteImm(r, 1), len, count);
    }
    for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
        println!("path MTU {}", mtu.bytes());
        let mut pair = Pair::new(mtu)?;
        pair.run("WRITE", SendOp::Write, 1 << 20, 4_000)?;
        pair.run("WRITE", SendOp::Write, 1 << 16, 40_000)?;
        pair.run("READ", SendOp::Read, 1 << 20, 4_000)?;
        pair.run("WRITE_IMM", |r| SendOp::WriteImm(r, 1), 4096, 400_000)?;
        pair.run("WRITE_IMM", |r| SendOp::WriteImm(r, 1), 64, 2_000_000)?;
        pair.run("SEND", |_| SendOp::Send, 64, 2_000_000)?;
        pair.run("FETCH_ADD", |remote| SendOp::FetchAdd { remote, add: 1 }, 8, 1_000_000)?;
    }
    Ok(())
}

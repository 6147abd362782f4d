//! The software NIC without anything above it, with one queue pair for each connection: what sharing one queue pair is
//! measured against. Messages are copied into registered memory, written with an immediate to the other side's slot of
//! that connection, and copied out there. One process on each side, all queue pairs on one completion queue and one
//! shared receive queue.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::control::Control;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use softnic::{SoftNic, SoftNicConfig};
use verbs::{
    Access, AddressVector, Completion, CqId, Mr, PathMtu, Payload, Provider, Psn, Qkey, QpInit, QpModify, QpType, Qpn,
    RecvWr, Region, RemoteAddr, Rkey, RtrAttr, RtsAttr, SendFlags, SendOp, SendWr, Sge, SrqId, SrqInit, Status,
};

/// UDP port; another one than the daemons use.
const UDP_PORT: u16 = 14_791;
/// Messages in flight: as many bytes as a daemon keeps on its lane.
const WINDOW: u64 = 128;
/// Receives that are posted.
const RECEIVES: u32 = 1024;
/// Send queue of one queue pair.
const SENDS: u32 = 256;
/// Local ACK timeout, 67 ms.
const ACK_TIMEOUT: u8 = 14;
/// Fruitless polls, each with a yield, before a side sleeps.
const YIELDS: u32 = 100;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Nothing takes longer unless it hangs.
const STALL_MAX: Duration = Duration::from_secs(20);
/// Completions taken at once.
const BATCH: usize = 64;

/// The side with `--to` is the client.
#[derive(Debug, Args)]
pub(crate) struct Cli {
    /// Own address; the server's TCP port for control is any, printed as `ready ADDRESS`.
    #[arg(long)]
    address: IpAddr,
    /// The server's control address.
    #[arg(long)]
    to: Option<SocketAddr>,
    #[arg(long, default_value_t = 1)]
    connections: u32,
    #[arg(long, default_value_t = 16 << 10)]
    size: u32,
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// What a side sends to the other about itself.
#[derive(Debug, Serialize, Deserialize)]
struct Card {
    size: u32,
    gid: IpAddr,
    udp_port: u16,
    rkey: u32,
    mtu: usize,
    rx_budget_bytes: u32,
    capabilities: u32,
    qpns: Vec<u32>,
}

/// One side.
struct End {
    nic: SoftNic,
    cq: CqId,
    srq: SrqId,
    region: Region,
    mr: Mr,
    size: u32,
    qpns: Vec<Qpn>,
    done: Vec<Completion>,
    idle: u32,
    active: Instant,
}

impl End {
    fn open(address: IpAddr, connections: u32, size: u32) -> Result<Self> {
        let mut nic = SoftNic::open(SoftNicConfig {
            udp_port: UDP_PORT,
            progress: softnic::Progress::Inline,
            ..SoftNicConfig::new(address)
        })?;
        let cq = nic.create_cq(4 * RECEIVES)?;
        let srq = nic.create_srq(&SrqInit { max_wr: RECEIVES, max_sge: 1, limit: 0 })?;
        let bytes = u64::from(size) * u64::from(connections);
        let region = Region::anonymous(usize::try_from(bytes.next_multiple_of(4096))?)?;
        let mr = nic.reg_mr(&region, 0, bytes, Access::all())?;
        let init = QpInit {
            pd: verbs::PdId::default(),
            qp_type: QpType::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: Some(srq),
            max_send_wr: SENDS,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            sq_sig_all: true,
        };
        let qpns = (0..connections).map(|_| nic.create_qp(&init)).collect::<Result<Vec<_>, _>>()?;
        let mut end = Self { nic, cq, srq, region, mr, size, qpns, done: vec![], idle: 0, active: Instant::now() };
        end.post_receives(RECEIVES)?;
        Ok(end)
    }

    fn card(&self, address: IpAddr) -> Card {
        let device = self.nic.device();
        Card {
            size: self.size,
            gid: address,
            udp_port: UDP_PORT,
            rkey: self.mr.rkey.0,
            mtu: device.mtu.bytes(),
            rx_budget_bytes: device.rx_budget_bytes,
            capabilities: device.capabilities.bits(),
            qpns: self.qpns.iter().map(|qpn| qpn.0).collect(),
        }
    }

    /// Connects each queue pair to the one with the same place in the peer's list.
    fn connect(&mut self, peer: &Card) -> Result<()> {
        ensure!(peer.qpns.len() == self.qpns.len(), "the sides have different numbers of connections");
        let mtu = PathMtu::from_bytes(peer.mtu).context("the peer's path MTU is none")?.min(self.nic.device().mtu);
        // What the peer's socket buffers is shared by all.
        let share = (peer.rx_budget_bytes / u32::try_from(peer.qpns.len()).unwrap_or(1)).max(64 << 10);
        for (&qpn, &peer_qpn) in self.qpns.iter().zip(&peer.qpns) {
            let av = AddressVector { udp_port: peer.udp_port, ..AddressVector::new(peer.gid.into()) };
            let rtr = RtrAttr {
                dest_qpn: Qpn(peer_qpn),
                rq_psn: Psn::new(1),
                av,
                mtu,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 1,
                source_port: None,
            };
            let rts = RtsAttr {
                sq_psn: Psn::new(1),
                timeout: ACK_TIMEOUT,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: 1,
                peer_rx_budget_bytes: share,
                peer: verbs::Capabilities::from_bits_truncate(peer.capabilities),
            };
            self.nic.modify_qp(qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) })?;
            self.nic.modify_qp(qpn, &QpModify::Rtr(rtr))?;
            self.nic.modify_qp(qpn, &QpModify::Rts(rts))?;
        }
        Ok(())
    }

    fn post_receives(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            // A WRITE takes a receive for its immediate alone.
            self.nic.post_srq_recv(self.srq, &[RecvWr { wr_id: 0, sges: &[] }])?;
        }
        Ok(())
    }

    fn slot(&self, index: usize) -> u64 {
        index as u64 * u64::from(self.size)
    }

    /// Completions, or a yield or sleep where there is none.
    fn poll(&mut self) -> Result<usize> {
        self.done.clear();
        let asleep = self.idle > YIELDS;
        if asleep {
            self.nic.req_notify_cq(self.cq, false)?;
        }
        let count = self.nic.poll_cq(self.cq, &mut self.done, BATCH)?;
        if let Some(failed) = self.done.iter().find(|c| c.status != Status::Success) {
            bail!("failed completion: {failed:?}");
        }
        if count > 0 {
            self.idle = 0;
            self.active = Instant::now();
            return Ok(count);
        }
        self.idle += 1;
        if asleep {
            let mut fds = vec![];
            self.nic.wait_fds(&mut fds);
            let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let most = self.nic.deadline().unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() }))?;
            self.nic.progress();
            ensure!(self.active.elapsed() < STALL_MAX, "nothing happened for {STALL_MAX:?}");
        } else {
            std::thread::yield_now();
        }
        Ok(0)
    }
}

fn serve(cli: &Cli) -> Result<()> {
    let listener = TcpListener::bind((cli.address, 0))?;
    println!("ready {}", listener.local_addr()?);
    let mut control = Control::new(listener.accept()?.0)?;
    let peer: Card = control.recv()?;
    let mut end = End::open(cli.address, u32::try_from(peer.qpns.len())?, peer.size)?;
    end.connect(&peer)?;
    control.send(&end.card(cli.address))?;
    let mut message = vec![0; peer.size as usize];
    let (mut received, mut expected) = (0_u64, None::<u64>);
    end.active = Instant::now();
    while expected.is_none_or(|expected| received < expected) {
        let count = end.poll()?;
        for place in 0..count {
            let slot = end.done.get(place).and_then(|c| c.imm).context("a message without immediate")?;
            end.region.read(end.slot(slot as usize), &mut message)?;
        }
        received += count as u64;
        end.post_receives(u32::try_from(count)?)?;
        if count == 0 && expected.is_none() && control.has_more()? {
            expected = Some(control.recv()?);
        }
    }
    control.send(&received)?;
    // Until the client has its last acknowledgement and closes.
    while !control.has_more()? {
        end.poll()?;
    }
    Ok(())
}

fn run(cli: &Cli, to: SocketAddr) -> Result<()> {
    let mut control = Control::new(TcpStream::connect_timeout(&to, STALL_MAX)?)?;
    let mut end = End::open(cli.address, cli.connections, cli.size)?;
    control.send(&end.card(cli.address))?;
    let peer: Card = control.recv()?;
    end.connect(&peer)?;
    let message = vec![0x5a; cli.size as usize];
    let duration = Duration::from_secs_f64(cli.seconds);
    let begin = Instant::now();
    end.active = begin;
    let (mut posted, mut done, mut turn) = (0_u64, 0_u64, 0_usize);
    while begin.elapsed() < duration || done < posted {
        while begin.elapsed() < duration && posted - done < WINDOW {
            let addr = end.slot(turn);
            end.region.write(addr, &message)?;
            let sges = [Sge { addr, len: cli.size, lkey: end.mr.lkey }];
            let op = SendOp::WriteImm(RemoteAddr { addr, rkey: Rkey(peer.rkey) }, u32::try_from(turn)?);
            let wr = SendWr { wr_id: 0, op, payload: Payload::Sges(&sges), flags: SendFlags::SIGNALED, dest: None };
            end.nic.post_send(end.qpns[turn], &[wr])?;
            turn = (turn + 1) % end.qpns.len();
            posted += 1;
        }
        done += end.poll()? as u64;
    }
    control.send(&posted)?;
    let received: u64 = control.recv()?;
    ensure!(received == posted, "{received} of {posted} messages arrived");
    let seconds = begin.elapsed().as_secs_f64();
    let gbit_per_s = posted as f64 * f64::from(cli.size) * 8.0 / 1e9 / seconds;
    println!("{}", serde_json::json!({ "connections": cli.connections, "gbit_per_s": gbit_per_s, "messages": posted }));
    Ok(())
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.to {
        Some(to) => run(&cli, to),
        None => serve(&cli),
    }
}

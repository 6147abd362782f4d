//! Tests of the port that need its inside: the fallback without segmentation, and how long an owner may sleep.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use roce::{Ipv4IdMode, NicConfig, NicLimits};
use verbs::*;

use super::*;
use crate::socket::GSO_SEGMENTS_MAX;

const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: u32 = 300_000;

struct End {
    port: Port,
    cq: CqId,
    qpn: Qpn,
    region: Region,
    mr: Mr,
}

fn open(seed: u8) -> End {
    let socket = Socket::bind(LO, 0, 0, 4 << 20).unwrap();
    let config = NicConfig {
        local: socket.local(),
        standby: Vec::new(),
        mtu: PathMtu::Mtu1024,
        limits: NicLimits::default(),
        rx_budget_bytes: u32::MAX,
        capabilities: verbs::Capabilities::ROCE,
        name: "test".into(),
        max_gso_segments: GSO_SEGMENTS_MAX,
        id_mode: Ipv4IdMode::SegmentIndex,
    };
    let mut nic = Nic::new(config, [seed; 32]);
    let cq = nic.create_cq(64).unwrap();
    let init = QpInit {
        pd: verbs::PdId::default(),
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_bytes: 0,
        sq_sig_all: true,
    };
    let qpn = nic.create_qp(&init).unwrap();
    let region = Region::anonymous(BYTES as usize).unwrap();
    let mr = nic.reg_mr(&region, 0, BYTES.into(), Access::all()).unwrap();
    let sealing = (wires::Secrets::new([8; 32]), PathMtu::Mtu1024);
    End {
        port: Port::new((nic, None), sealing, Sockets::new(socket, Vec::new()), None, Clock::start()),
        cq,
        qpn,
        region,
        mr,
    }
}

fn connect(end: &mut End, peer_qpn: Qpn, peer: SocketAddr) {
    let psn = Psn::new(9);
    let av = AddressVector { udp_port: peer.port(), ..AddressVector::new(peer.ip().into()) };
    let init = QpModify::Init { access: Access::all(), qkey: Qkey(0) };
    let mtu = PathMtu::Mtu1024;
    let rtr = RtrAttr {
        dest_qpn: peer_qpn,
        rq_psn: psn,
        av,
        mtu,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        source_port: None,
    };
    let rts = RtsAttr {
        sq_psn: psn,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        peer_rx_budget_bytes: u32::MAX,
        peer: verbs::Capabilities::empty(),
    };
    for to in [init, QpModify::Rtr(rtr), QpModify::Rts(rts)] {
        end.port.nic.modify_qp(end.qpn, &to).unwrap();
    }
}

#[test]
fn what_the_kernel_cannot_segment_leaves_packet_by_packet_with_right_icrcs() {
    let (mut a, mut b) = (open(1), open(2));
    connect(&mut a, b.qpn, b.port.socket().local());
    connect(&mut b, a.qpn, a.port.socket().local());
    // As after the kernel refused the first batch.
    a.port.sockets.first.offload_failed = true;
    let data: Vec<u8> = (0..BYTES).map(|i| (i % 253) as u8).collect();
    a.region.write(0, &data).unwrap();
    let sges = [Sge { addr: 0, len: BYTES, lkey: a.mr.lkey }];
    let op = SendOp::Write(RemoteAddr { addr: 0, rkey: b.mr.rkey });
    let wr = SendWr { wr_id: 1, op, payload: Payload::Sges(&sges), flags: SendFlags::SIGNALED, dest: None };
    a.port.nic.post_send(a.qpn, &[wr]).unwrap();
    let begin = Instant::now();
    let mut done = Vec::new();
    while done.is_empty() {
        for end in [&mut a, &mut b] {
            let now = end.port.now();
            end.port.progress(now);
        }
        a.port.nic.poll_cq(a.cq, &mut done, 1).unwrap();
        assert!(begin.elapsed() < PATIENCE, "{:?} {:?}", a.port.nic.counters_detail(), b.port.nic.counters_detail());
    }
    assert_eq!(done[0].status, Status::Success);
    let mut arrived = vec![0; BYTES as usize];
    b.region.read(0, &mut arrived).unwrap();
    assert!(arrived == data);
    let mut counters = Vec::new();
    a.port.append_counters(&mut counters);
    let of = |name: &str| counters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
    assert_eq!(of("gso_batches"), Some(0));
    assert!(of("gso_batches_resigned") > Some(0));
    let seen = b.port.nic.counters_detail();
    assert_eq!((seen.drop_bad_icrc, seen.icrc_id_recovered), (0, 0));
}

#[test]
fn a_port_with_output_or_news_does_not_let_its_owner_sleep() {
    let (mut a, b) = (open(3), open(4));
    let now = a.port.now();
    assert_eq!(a.port.sleep_bound(now), None);
    connect(&mut a, b.qpn, b.port.socket().local());
    let sges = [Sge { addr: 0, len: 8, lkey: a.mr.lkey }];
    let wr =
        SendWr { wr_id: 1, op: SendOp::Send, payload: Payload::Sges(&sges), flags: SendFlags::SIGNALED, dest: None };
    a.port.nic.post_send(a.qpn, &[wr]).unwrap();
    assert!(a.port.has_output());
    assert_eq!(a.port.sleep_bound(now), Some(Duration::ZERO));
    assert!(a.port.transmit(now));
    // Sent and not answered: a timer runs.
    assert!(a.port.sleep_bound(now).is_some_and(|bound| bound > Duration::ZERO));
    a.port.nic.req_notify_cq(a.cq, false).unwrap();
    a.port.nic.modify_qp(a.qpn, &QpModify::Err).unwrap();
    a.port.transmit(now);
    assert_eq!(a.port.sleep_bound(now), Some(Duration::ZERO), "the flushed completion is news");
    assert!(a.port.take_notify());
    assert_ne!(a.port.sleep_bound(now), Some(Duration::ZERO));
}

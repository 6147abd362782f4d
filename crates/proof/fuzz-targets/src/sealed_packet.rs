//! Sealed packets: bytes of somebody without the keys, and bytes that the peer itself sealed.
//!
//! Promises: nothing panics; what the peer did not seal is refused, by its opener and by a NIC, and changes neither; a
//! true packet is taken behind all of that, once; whatever the peer sealed, the NIC sends nothing in the clear.

use std::net::SocketAddr;

use records::{PACKET_NUMBER_BYTES, PacketKeys, Purpose, Secret, TAG_BYTES};
use roce::wire::{SEALED_OPCODE, sealed_bth, sealed_head};
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use verbs::{
    Access, AddressVector, Capabilities, Gid, PathMtu, Provider, Psn, Qkey, QpInit, QpModify, QpState, QpType, Qpn,
    RtrAttr, RtsAttr, Time,
};

use crate::input::Input;

/// Packets of one input, and bytes of one.
const PACKETS_MAX: usize = 32;
const PACKET_BYTES_MAX: usize = 512;

fn keys(own: u8, peer: u8) -> PacketKeys {
    PacketKeys::new(&Secret([own; 32]), &Secret([peer; 32]), Purpose::Connection).expect("two secrets")
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 4791))
}

/// A connected NIC whose packets are sealed, and its QP.
fn sealed_nic() -> (Nic, Qpn) {
    let config = NicConfig {
        local: address(1),
        standby: Vec::new(),
        mtu: PathMtu::Mtu256,
        limits: NicLimits::default(),
        rx_budget_bytes: u32::MAX,
        capabilities: Capabilities::SOFTWARE_NIC,
        name: "fuzzed".into(),
        max_gso_segments: 4,
        id_mode: Ipv4IdMode::SegmentIndex,
    };
    let mut nic = Nic::new(config, [7; 32]);
    let cq = nic.create_cq(64).expect("a CQ");
    let qpn = nic.create_qp(&QpInit::new(QpType::Rc, cq, 16)).expect("a QP");
    nic.modify_qp(qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) }).expect("Init");
    nic.seal_qp(qpn, keys(1, 2), Qpn(5)).expect("in Init");
    let rtr = RtrAttr::new(Qpn(5), AddressVector::new(Gid::from(address(2).ip())));
    nic.modify_qp(qpn, &QpModify::Rtr(RtrAttr { mtu: PathMtu::Mtu256, ..rtr })).expect("RTR");
    nic.modify_qp(qpn, &QpModify::Rts(RtsAttr::default())).expect("RTS");
    (nic, qpn)
}

/// A packet of the peer with those bytes in it.
fn sealed(peer: &mut PacketKeys, to: Qpn, body: &[u8]) -> Vec<u8> {
    let head = sealed_head(to, Psn::new(0));
    let mut packet = [&head, &[0; PACKET_NUMBER_BYTES][..], body, &[0; TAG_BYTES]].concat();
    assert!(peer.sealer.seal(&mut packet));
    packet
}

/// The target.
pub(crate) fn sealed_packet(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let ((mut nic, qpn), mut peer, mut opener) = (sealed_nic(), keys(2, 1), keys(1, 2).opener);
    let (from, mut body, mut out) = (address(2), Vec::new(), Vec::new());
    for _ in 0..PACKETS_MAX {
        if input.is_empty() {
            return;
        }
        let (kind, len) = (input.byte(), usize::from(input.word()) % PACKET_BYTES_MAX);
        let content = input.bytes(len).to_vec();
        let plain = content.clone();
        let opened = nic.counters_detail().rx_sealed;
        // The peer may bring its own QP down.
        let is_up = |nic: &Nic| nic.query_qp(qpn).is_ok_and(|status| status.state == QpState::Rts);
        let was_up = is_up(&nic);
        let is_true = kind % 3 == 2;
        let packet = match kind % 3 {
            // Whatever somebody throws at the port.
            0 => content,
            // A true packet that was changed on the way.
            1 => {
                let mut packet = sealed(&mut peer, qpn, &content);
                let at = usize::from(kind / 3) * packet.len() / 86;
                packet[at] ^= 1 << (kind % 8);
                packet
            }
            _ => sealed(&mut peer, qpn, &content),
        };
        assert_eq!(opener.open(&packet, &mut body).is_ok(), is_true, "{packet:02x?}");
        nic.handle_datagram(Time(1), from, &packet, 0);
        assert_eq!(nic.counters_detail().rx_sealed - opened, u64::from(is_true && was_up));
        if is_true {
            assert_eq!(body, plain, "another body");
            assert!(opener.open(&packet, &mut body).is_err(), "it came twice");
            let (before, is_up) = (nic.counters_detail().drop_replayed, is_up(&nic));
            nic.handle_datagram(Time(1), from, &packet, 0);
            assert_eq!(nic.counters_detail().drop_replayed - before, u64::from(is_up));
        }
        while nic.poll_transmit(Time(2), &mut out).is_some() {
            assert_eq!(sealed_bth(&out).map(|bth| bth.opcode), Some(SEALED_OPCODE), "it leaves in the clear");
        }
    }
}

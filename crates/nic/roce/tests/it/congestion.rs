//! Marks of congestion and notifications of them (annex A17.9).

use std::time::Duration;

use crate::script::*;
use roce::NicLimits;
use roce::wire::*;
use verbs::*;

/// Delivers a WRITE that a switch has marked.
fn marked(s: &mut Script, psn: u32) {
    let reth = Reth { addr: 0, rkey: s.mr.rkey, dma_len: 8 };
    let header = Header::new(&s.bth(Opcode::WriteOnly, psn, false)).with_reth(reth);
    let mut bytes = [header.as_bytes(), &[7; 8]].concat();
    bytes.extend(s.to_nic.icrc(&bytes, 0));
    let stride = bytes.len();
    s.nic.handle_marked(s.now, s.peer, &bytes, stride);
}

#[test]
fn literal_bytes_of_a_notification() {
    let mut s = Script::new();
    marked(&mut s, 100);
    let packets = s.packets();
    let mut expected = vec![0x81, 0x40, 0xff, 0xff, 0x40, 0x11, 0x22, 0x33, 0, 0, 0, 0];
    expected.extend([0; 16]);
    assert_eq!(packets.len(), 1);
    assert_eq!((packets[0][..28].to_vec(), packets[0].len()), (expected, 32));
}

#[test]
fn marks_are_told_once_in_fifty_microseconds_and_of_good_packets_alone() {
    let mut s = Script::new();
    let told = |s: &mut Script| s.packets().iter().filter(|bytes| bytes[0] == 0x81).count();
    (100..110).for_each(|psn| marked(&mut s, psn));
    assert_eq!(told(&mut s), 1);
    s.wait(Duration::from_micros(49));
    marked(&mut s, 110);
    assert_eq!(told(&mut s), 0);
    s.wait(Duration::from_micros(1));
    marked(&mut s, 111);
    assert_eq!((told(&mut s), s.nic.counters_detail().notifications_sent), (1, 2));
    s.wait(Duration::from_millis(1));
    let stranger = [0; 64];
    s.nic.handle_marked(s.now, s.peer, &stranger, 64);
    assert_eq!(told(&mut s), 0);
}

#[test]
fn a_notification_shrinks_the_window_and_time_opens_it() {
    // 128 packets of 256 bytes, each with its charge.
    let limits = NicLimits { window_packets: 1_000, window_bytes: 128 * 384, ..NicLimits::default() };
    let mut s = Script::with_limits(limits);
    let flight = |s: &mut Script| {
        s.post(SendOp::Write(s.remote()), 65_536);
        let mut flights = Vec::new();
        loop {
            let psns = s.psns();
            let Some(last) = psns.last() else { break };
            s.acknowledge(*last, Syndrome::Ack(31));
            flights.push(psns.len());
        }
        assert_eq!(s.statuses(), [Status::Success]);
        flights
    };
    assert_eq!(flight(&mut s), [64, 128, 64], "it opens");
    assert_eq!(flight(&mut s), [128, 128]);
    s.deliver(Header::congestion_notification(s.qpn), &[]);
    assert_eq!(flight(&mut s), [64; 4]);
    s.wait(Duration::from_micros(60));
    s.deliver(Header::congestion_notification(s.qpn), &[]);
    assert_eq!(flight(&mut s)[0], 32);
    assert_eq!(s.nic.counters_detail().notifications_received, 2);
    s.wait(Duration::from_secs(1));
    assert_eq!(flight(&mut s), [128, 128]);
}

#[test]
fn packets_of_connections_may_be_marked_if_the_device_honours_it() {
    for (capabilities, class, expected) in
        [(Capabilities::ROCE, 0xb8, 0xb8), (Capabilities::SOFTWARE_NIC, 0, 2), (Capabilities::SOFTWARE_NIC, 0xbb, 0xba)]
    {
        let mut s = Script::with_capabilities(capabilities, class);
        s.post(SendOp::Write(s.remote()), 8);
        let transmit = s.nic.poll_transmit(s.now, &mut Vec::new()).expect("a packet");
        assert_eq!(transmit.traffic_class, expected);
    }
}

//! Bytes that an immediate claims, and bytes that the device placed.

use super::*;

/// Where a good peer would put the first bytes of a connection, and some more.
fn beyond(at: RemoteAddr, bytes: u64) -> RemoteAddr {
    RemoteAddr { addr: at.addr + bytes, ..at }
}

#[test]
fn bytes_that_did_not_arrive_in_their_place_are_never_delivered() {
    // In the immediate, units of 4,096 bytes that plain WRITEs are said to have brought.
    const UNIT: u32 = 1 << 27;
    type Act = fn(&mut Evil, u32, RemoteAddr);
    let cases: [(&str, Act); 9] = [
        ("nothing came before", |e, route, at| e.post(SendOp::WriteImm(at, route | UNIT), 0)),
        ("its own bytes are less than all", |e, route, at| e.post(SendOp::WriteImm(at, route | UNIT), 16)),
        ("a part of the unit", |e, route, at| {
            e.post(SendOp::Write(at), 4092);
            e.post(SendOp::WriteImm(at, route | UNIT), 0);
        }),
        ("a gap in the unit", |e, route, at| {
            e.post(SendOp::Write(at), 2000);
            e.post(SendOp::Write(beyond(at, 2004)), 4096 - 2004);
            e.post(SendOp::WriteImm(at, route | UNIT), 0);
        }),
        ("a part of the unit twice", |e, route, at| {
            e.post(SendOp::Write(at), 2048);
            e.post(SendOp::Write(at), 2048);
            e.post(SendOp::WriteImm(at, route | UNIT), 0);
        }),
        ("told with the message before", |e, route, at| {
            e.post(SendOp::Write(at), 4096);
            e.record(6, 1, &[]);
            e.post(SendOp::WriteImm(at, route | UNIT), 0);
        }),
        ("behind its place", |e, route, at| e.post(SendOp::WriteImm(beyond(at, 64), route), 100)),
        ("before its place", |e, route, at| {
            e.post(SendOp::WriteImm(at, route), 100);
            e.post(SendOp::WriteImm(at, route), 100);
        }),
        ("no byte of those that the message before had", |e, route, at| {
            e.post(SendOp::Write(at), 4096);
            e.post(SendOp::WriteImm(at, route), 0);
        }),
    ];
    for (what, act) in cases {
        let mut e = Evil::new(true, 64);
        let (route, at) = e.open_with(16_384);
        act(&mut e, route, at);
        e.assert_failed("the device says that what arrived was placed");
        let arrived = e.app.conns[&e.opened[0]].words.rx_tail.load(std::sync::atomic::Ordering::Acquire);
        let most = if what == "before its place" { 100 } else { 0 };
        assert!(arrived <= most, "{what}: the application may read {arrived} bytes");
    }
}

#[test]
fn bytes_of_plain_writes_are_delivered_with_the_immediate_that_counts_them() {
    let mut e = Evil::new(true, 64);
    let (route, at) = e.open();
    e.post(SendOp::Write(at), 2048);
    e.post(SendOp::Write(beyond(at, 2048)), 2048);
    assert_eq!(e.engine.connections()[0].rx_bytes, 0);
    e.post(SendOp::WriteImm(at, route | 1 << 27), 0);
    e.assert_fine();
    assert_eq!(e.engine.connections()[0].rx_bytes, 4096);
}

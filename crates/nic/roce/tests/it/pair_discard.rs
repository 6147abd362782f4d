//! Pages given back while a peer writes: never bytes that no completion has reported.

use crate::pair::*;
use verbs::*;

const AT: u64 = 8192;
const LEN: u64 = 8192;

/// Two connected ends; the second has its memory filled, so that a hole shows.
fn connected() -> (World, End, End) {
    let mut world = World::new(Setup { mtu: PathMtu::Mtu1024, ..Setup::default() });
    let [a, b] = connect(&mut world);
    b.fill(0, 65536, 3);
    (world, a, b)
}

fn discard(world: &mut World, end: &End, at: u64) -> bool {
    world.nics[end.side].try_discard(end.mr.id, at, LEN, Some(end.qpn)).unwrap()
}

#[test]
fn zeroes_pages_and_places_what_comes_later() {
    let (mut world, a, b) = connected();
    assert!(!world.nics[1].pins_memory());
    let around = (b.read(AT - 16, 16), b.read(AT + LEN, 16));
    assert!(discard(&mut world, &b, AT));
    assert_eq!(b.read(AT, LEN as usize), vec![0; LEN as usize]);
    assert_eq!((b.read(AT - 16, 16), b.read(AT + LEN, 16)), around);
    let data = a.fill(0, 3000, 5);
    b.recv(&mut world, 7, 0, 0);
    a.send(&mut world, 9, SendOp::WriteImm(b.remote(AT), 1), 0, 3000);
    b.wait_ok(&mut world);
    assert_eq!(b.read(AT, 3000), data);
}

#[test]
fn a_half_placed_message_is_kept() {
    let (mut world, a, b) = connected();
    b.recv(&mut world, 7, 0, 0);
    let mut packets = 0;
    world.filter = Some(Box::new(move |seen| {
        packets += usize::from(seen.from == 0);
        seen.from == 1 || packets <= 2
    }));
    let data = a.fill(0, 5000, 6);
    a.send(&mut world, 9, SendOp::WriteImm(b.remote(AT), 1), 0, 5000);
    world.run_for(std::time::Duration::from_micros(200));
    assert_eq!(b.read(AT, 2048), data[..2048], "two packets are there");
    assert!(!discard(&mut world, &b, AT), "they are under way");
    assert!(discard(&mut world, &b, AT + LEN), "not elsewhere");
    world.filter = None;
    b.wait_ok(&mut world);
    assert_eq!(b.read(AT, 5000), data);
    assert!(discard(&mut world, &b, AT));
}

#[test]
fn a_plain_write_is_kept_until_a_completion_follows() {
    let (mut world, a, b) = connected();
    let data = a.fill(0, 4000, 6);
    a.send(&mut world, 8, SendOp::Write(b.remote(AT)), 0, 3000);
    a.wait_ok(&mut world);
    assert!(!discard(&mut world, &b, AT), "nothing told of it");
    b.recv(&mut world, 7, 0, 0);
    a.send(&mut world, 9, SendOp::WriteImm(b.remote(AT + 3000), 1), 3000, 1000);
    a.wait_ok(&mut world);
    assert!(!discard(&mut world, &b, AT), "the completion waits in the CQ");
    assert_eq!(b.read(AT, 4000), data);
    b.wait_ok(&mut world);
    assert!(discard(&mut world, &b, AT));
}

#[test]
fn what_does_not_exist_is_refused() {
    let (mut world, _, b) = connected();
    let nic = &mut world.nics[1];
    assert!(nic.try_discard(MrId(b.mr.id.0 ^ 1 << 20), AT, LEN, None).is_err());
    assert!(nic.try_discard(b.mr.id, b.mr.len - 1, 2, None).is_err());
    assert!(nic.try_discard(b.mr.id, u64::MAX, 2, None).is_err());
    assert!(nic.try_discard(b.mr.id, AT, LEN, Some(Qpn(b.qpn.0 ^ 1 << 10))).is_err());
}

//! Contexts of one device: each has a socket of its own, and bytes go from one to the other.

use crate::rig::{End, config, connected, pattern, run};
use softnic::{OpenError, SoftNicConfig, SoftNicDevice};
use verbs::{Device as _, SendOp};

#[test]
fn contexts_of_one_device_carry_bytes_to_each_other() {
    let mut device = SoftNicDevice::new(config("127.0.0.1"));
    let ends = [device.open().unwrap(), device.open().unwrap()].map(End::of);
    let ports = ends.each_ref().map(|end| end.nic.local_address().port());
    assert_ne!(ports[0], ports[1]);
    let [a, b] = ends;
    let (mut a, mut b) = connected(a, b);
    let data = pattern(11, 100_001);
    a.fill(0, &data);
    b.post_recv(1, 0, 200_000);
    a.post(2, SendOp::Send, 0, 100_001);
    run(&mut a, &mut b, 1, 1);
    assert!(b.bytes(0, data.len()) == data);
}

/// The two ports are found by looking for two neighbours that are free; whoever takes one of them meanwhile only makes
/// the test look again.
#[test]
fn contexts_follow_each_other_from_the_first_port_on() {
    for _ in 0..100 {
        let mut any = SoftNicDevice::new(config("127.0.0.1"));
        let taken = any.open().unwrap();
        let second = taken.local_address().port();
        let mut device = SoftNicDevice::new(SoftNicConfig { udp_port: second - 1, ..config("127.0.0.1") });
        let Ok(first) = device.open() else { continue };
        assert_eq!(first.local_address().port(), second - 1);
        for _ in 0..2 {
            let refused = device.open().unwrap_err();
            assert!(matches!(refused, OpenError::AddressInUse(address) if address.port() == second), "{refused}");
        }
        drop(taken);
        // The number that could not be opened is the next one's.
        match device.open() {
            Ok(context) => return assert_eq!(context.local_address().port(), second),
            Err(OpenError::AddressInUse(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no two free ports beside each other in 100 tries");
}

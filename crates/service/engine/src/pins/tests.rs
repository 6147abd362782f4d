//! The four ways of registering, each with its counter, and the bounds.

use super::*;
use crate::table::Key as _;
use std::net::SocketAddr;
use verbs::PathMtu;

const A: u32 = 1;
const B: u32 = 2;

fn nic() -> roce::Nic {
    let config = roce::NicConfig {
        local: SocketAddr::from(([10, 0, 0, 1], 4791)),
        standby: Vec::new(),
        mtu: PathMtu::Mtu1024,
        limits: roce::NicLimits::default(),
        rx_budget_bytes: u32::MAX,
        capabilities: verbs::Capabilities::ROCE,
        name: "nic".into(),
        max_gso_segments: 1,
        id_mode: roce::Ipv4IdMode::Zero,
    };
    roce::Nic::new(config, [1; 32])
}

fn app(bits: u32) -> AppId {
    AppId::from_bits(bits)
}

fn memory(bytes: u64) -> Region {
    Region::anonymous(bytes as usize).unwrap()
}

fn at(ms: u64) -> Time {
    Time(1 + ms * 1_000_000)
}

fn attach(pins: &mut Pins, nic: &mut roce::Nic, whose: u32, region: &Region) -> Result<PinId, VerbsError> {
    pins.attach(nic, app(whose), None, region, Access::LOCAL_WRITE)
}

#[test]
fn memory_that_is_used_again_is_registered_once() {
    let (mut pins, mut nic) = (Pins::new(true, PinLimits::default()), nic());
    let region = memory(PIECE_BYTES);
    for round in 0..50 {
        let id = attach(&mut pins, &mut nic, A, &region.clone()).unwrap();
        assert!(pins.cover(id, 0, 1000).is_ok());
        pins.detach(at(round * 10), id);
        pins.run(at(round * 10 + 5), &mut nic, true);
    }
    assert_eq!((pins.counters().hits, pins.registered().0, pins.counters().deferred), (49, 1, 0));
    // Other memory, another application, or other rights are not the same.
    let others = [
        pins.attach(&mut nic, app(A), None, &memory(PIECE_BYTES), Access::LOCAL_WRITE).unwrap(),
        pins.attach(&mut nic, app(B), None, &region, Access::LOCAL_WRITE).unwrap(),
        pins.attach(&mut nic, app(A), None, &region, Access::empty()).unwrap(),
    ];
    assert_eq!((pins.counters().hits, pins.registered().0), (49, 4));
    assert_eq!(others.into_iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
}

/// However long ago nobody used it.
#[test]
fn memory_that_is_used_again_is_not_given_up() {
    let (mut pins, mut nic) = (Pins::new(true, PinLimits::default()), nic());
    let region = memory(4096);
    let first = attach(&mut pins, &mut nic, A, &region).unwrap();
    pins.detach(at(0), first);
    let again = attach(&mut pins, &mut nic, A, &region).unwrap();
    assert_eq!(pins.deadline(), None, "nobody waits for its end");
    pins.run(at(5000), &mut nic, true);
    assert!(again == first && pins.cover(again, 0, 4096).is_ok());
    // Nor to make room for other memory.
    pins.limits.bytes_max = 4096;
    assert!(attach(&mut pins, &mut nic, A, &memory(4096)).is_err());
    assert!(pins.cover(again, 0, 4096).is_ok());
}

#[test]
fn pieces_are_registered_while_those_before_them_are_used() {
    let (mut pins, mut nic) = (Pins::new(true, PinLimits::default()), nic());
    let region = memory(3 * PIECE_BYTES + 5);
    let id = attach(&mut pins, &mut nic, A, &region).unwrap();
    let last = 3 * PIECE_BYTES;
    assert_eq!(pins.cover(id, 0, PIECE_BYTES as u32).unwrap().len(), 1, "the first can be used at once");
    assert_eq!(pins.cover(id, last, 5), Err(Uncovered::NotYet));
    assert_eq!(pins.deadline(), Some(Time::ZERO), "the rest does not wait for other news");
    for round in 1..=3 {
        assert!(pins.run(at(round), &mut nic, false));
    }
    assert!(!pins.run(at(4), &mut nic, false));
    assert_eq!((pins.counters().pipelined, pins.registered().0), (3, 4));
    let parts = pins.cover(id, PIECE_BYTES - 3, 3 + PIECE_BYTES as u32 + 2).unwrap();
    assert_eq!(
        parts.iter().map(|p| (p.addr, u64::from(p.bytes))).collect::<Vec<_>>(),
        [(PIECE_BYTES - 3, 3), (0, PIECE_BYTES), (0, 2)]
    );
    assert_eq!(pins.cover(id, last, 5).map(|p| p.len()), Ok(1));
    assert_eq!(pins.cover(id, last, 6), Err(Uncovered::Never), "beyond the memory");
    assert_eq!(pins.cover(id, u64::MAX, 6), Err(Uncovered::Never));
}

#[test]
fn registrations_are_given_up_later_in_batches_and_in_calm_rounds() {
    let (mut pins, mut nic) = (Pins::new(true, PinLimits::default()), nic());
    let ids: Vec<_> = (0..20).map(|_| attach(&mut pins, &mut nic, A, &memory(4096)).unwrap()).collect();
    for id in &ids {
        pins.detach(at(0), *id);
    }
    pins.run(at(999), &mut nic, true);
    assert_eq!((pins.registered().0, pins.deadline()), (20, Some(at(1000))), "they are kept for a second");
    pins.run(at(1000), &mut nic, false);
    assert_eq!(pins.registered().0, 20, "a round with other work is left alone");
    pins.run(at(1000), &mut nic, true);
    assert_eq!(pins.registered().0, 20 - BATCH as u32);
    pins.run(at(1001), &mut nic, true);
    let c = pins.counters();
    assert_eq!((pins.registered(), c.deferred, c.batches), ((0, 0), 20, 2));
    assert_eq!(pins.deadline(), None);
    // Many are given up by a busy engine too.
    let ids: Vec<_> = (0..UNUSED_MAX).map(|_| attach(&mut pins, &mut nic, A, &memory(4096)).unwrap()).collect();
    ids.into_iter().for_each(|id| pins.detach(at(2000), id));
    pins.run(at(9000), &mut nic, false);
    assert_eq!(pins.registered().0 as usize, UNUSED_MAX - BATCH);
}

#[test]
fn a_device_that_pins_nothing_registers_the_whole_and_keeps_nothing() {
    let (mut pins, mut nic) = (Pins::new(false, PinLimits::default()), nic());
    let region = memory(3 * PIECE_BYTES);
    let id = attach(&mut pins, &mut nic, A, &region).unwrap();
    assert_eq!(pins.cover(id, 0, 3 * PIECE_BYTES as u32).unwrap().len(), 1);
    pins.detach(at(5), id);
    pins.run(at(5), &mut nic, true);
    let c = pins.counters();
    assert_eq!((c.unpinned, c.pipelined, c.hits, pins.registered()), (1, 0, 0, (0, 0)));
}

#[test]
fn what_is_pinned_is_bounded_for_each_application_and_for_all() {
    let limits = PinLimits { app_bytes_max: 8192, bytes_max: 12_288, piece_bytes: 0 };
    let (mut pins, mut nic) = (Pins::new(true, limits), nic());
    let (first, second) = (memory(4096), memory(4096));
    let a = attach(&mut pins, &mut nic, A, &first).unwrap();
    let b = attach(&mut pins, &mut nic, A, &second).unwrap();
    let full = attach(&mut pins, &mut nic, A, &memory(4096)).unwrap_err();
    assert_eq!(full, VerbsError::Full { what: "registered memory of an application", limit: 8192 });
    attach(&mut pins, &mut nic, B, &memory(4096)).unwrap();
    let full = attach(&mut pins, &mut nic, B, &memory(4096)).unwrap_err();
    assert_eq!(full, VerbsError::Full { what: "registered memory of applications", limit: 12_288 });
    assert_eq!(pins.counters().refused, 2);
    // What nobody uses makes room at once: of the application itself where its own bound is met.
    pins.detach(at(1), a);
    attach(&mut pins, &mut nic, B, &memory(4096)).unwrap();
    assert_eq!((pins.counters().evicted, pins.registered()), (1, (3, 12_288)));
    assert_eq!(pins.cover(a, 0, 1), Err(Uncovered::Never));
    assert!(pins.cover(b, 0, 1).is_ok());
    pins.detach(at(2), b);
    pins.forget(app(A));
    pins.run(at(3), &mut nic, true);
    assert_eq!(pins.registered().1, 8192, "nothing of an application that is gone is kept");
}

/// The bound of a tenant holds for all of its programs together, and what none of them uses makes room.
#[test]
fn what_is_pinned_is_bounded_for_each_tenant() {
    let (mut pins, mut nic) = (Pins::new(true, PinLimits::default()), nic());
    let tenant = TenantPins { apps: vec![app(A), app(B)], bytes_max: 8192, limit: 20_000 };
    let mut attach = |pins: &mut Pins, whose: u32, tenant: Option<&TenantPins>| {
        pins.attach(&mut nic, app(whose), tenant, &memory(4096), Access::LOCAL_WRITE)
    };
    let first = attach(&mut pins, A, Some(&tenant)).unwrap();
    attach(&mut pins, B, Some(&tenant)).unwrap();
    for whose in [A, B] {
        let full = attach(&mut pins, whose, Some(&tenant)).unwrap_err();
        assert_eq!(full, VerbsError::Full { what: TENANT_PINNED, limit: 20_000 });
    }
    let other = attach(&mut pins, 3, None).unwrap();
    pins.detach(at(1), other);
    assert!(attach(&mut pins, B, Some(&tenant)).is_err(), "memory of another tenant makes no room");
    pins.detach(at(1), first);
    attach(&mut pins, B, Some(&tenant)).unwrap();
    assert_eq!((pins.bytes_of(app(A)), pins.bytes_of(app(B)), pins.counters().evicted), (0, 8192, 1));
}

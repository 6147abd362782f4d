//! Keys, bounds and access rights of the table.

use super::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

const OWN: PdId = PdId(0);

fn table() -> (MrTable, Region, StdRng) {
    (MrTable::new(4), Region::anonymous(4096).expect("memory"), StdRng::from_seed([7; 32]))
}

fn all() -> Access {
    Access::all()
}

#[test]
fn bounds_rights_and_keys() {
    let (mut mrs, region, mut rng) = table();
    let mr = mrs.register(&MrInit::new(&region, 1024, 100, all()), &mut rng).expect("registered");
    let ro = mrs.register(&MrInit::new(&region, 0, 4096, Access::REMOTE_READ), &mut rng).expect("registered");
    mrs.of(OWN).write_remote(mr.rkey, 90, b"0123456789").expect("last bytes");
    assert_eq!(mrs.of(OWN).write_remote(mr.rkey, 91, b"0123456789"), Err(KeyFault::Bounds));
    assert_eq!(mrs.of(OWN).write_remote(mr.rkey, u64::MAX, b"x"), Err(KeyFault::Bounds));
    assert_eq!(mrs.of(OWN).write_remote(ro.rkey, 0, b"x"), Err(KeyFault::Rights));
    assert_eq!(mrs.of(OWN).atomic_remote(ro.rkey, 0, AtomicOp::FetchAdd { add: 1 }), Err(KeyFault::Rights));
    let mut seen = [0; 10];
    mrs.of(OWN).read_remote(ro.rkey, 1024 + 90, &mut seen).expect("offset of the registration");
    assert_eq!(&seen, b"0123456789");
    for bit in 0..32 {
        assert_eq!(
            mrs.of(OWN).check_remote(Rkey(mr.rkey.0 ^ 1 << bit), 0, 1, Access::empty()),
            Err(KeyFault::Key),
            "bit {bit}"
        );
    }
    mrs.deregister(mr.id).expect("is there");
    assert!(mrs.deregister(mr.id).is_err());
    assert_eq!(mrs.of(OWN).read_remote(mr.rkey, 0, &mut seen), Err(KeyFault::Key));
}

#[test]
fn table_is_bounded_and_keys_change() {
    let (mut mrs, region, mut rng) = table();
    let mut keys = std::collections::BTreeSet::new();
    let mut live = Vec::new();
    for _ in 0..4 {
        live.push(mrs.register(&MrInit::new(&region, 0, 8, all()), &mut rng).expect("room"));
    }
    assert!(matches!(
        mrs.register(&MrInit::new(&region, 0, 8, all()), &mut rng),
        Err(VerbsError::Full { limit: 4, .. })
    ));
    for _ in 0..1000 {
        let mr = live.remove(0);
        keys.insert(mr.rkey.0);
        mrs.deregister(mr.id).expect("is there");
        let next = mrs.register(&MrInit::new(&region, 0, 8, all()), &mut rng).expect("room");
        assert_ne!(next.rkey, mr.rkey);
        assert_ne!(next.rkey.0 >> 16, 0);
        live.push(next);
    }
    assert!(keys.len() > 900, "keys repeat: {}", keys.len());
    assert!(mrs.register(&MrInit::new(&region, 4096, 1, all()), &mut rng).is_err());
    assert!(mrs.register(&MrInit::new(&region, 0, 0, all()), &mut rng).is_err());
    assert!(mrs.register(&MrInit::new(&region, u64::MAX, 2, all()), &mut rng).is_err());
}

#[test]
fn lists_are_walked_across_entries() {
    let (mut mrs, region, mut rng) = table();
    let mr = mrs.register(&MrInit::new(&region, 0, 4096, all()), &mut rng).expect("registered");
    let sge = |addr, len| Sge { addr, len, lkey: mr.lkey };
    let list = [sge(0, 3), sge(100, 0), sge(200, 5), sge(300, 2)];
    mrs.of(OWN).scatter(&list, 0, b"abcdefghij").expect("fits");
    let mut out = [0; 6];
    mrs.of(OWN).gather(&list, 2, &mut out).expect("inside");
    assert_eq!(&out, b"cdefgh");
    let mut raw = [0; 5];
    region.read(200, &mut raw).expect("inside");
    assert_eq!(&raw, b"defgh");
    assert_eq!(mrs.of(OWN).scatter(&list, 1, b"abcdefghij"), Err(KeyFault::Bounds));
    assert_eq!(mrs.of(OWN).gather(&[sge(4090, 7)], 0, &mut [0; 7]), Err(KeyFault::Bounds));
    assert_eq!(mrs.of(OWN).gather(&[sge(u64::MAX, 7)], 1, &mut [0; 2]), Err(KeyFault::Bounds));
    assert_eq!(mrs.of(OWN).check_scatter(&[sge(4096, 1)]), Err(KeyFault::Bounds));
    mrs.of(OWN).check_scatter(&list).expect("all writable");
}

#[test]
fn atomics() {
    let (mut mrs, region, mut rng) = table();
    let mr = mrs.register(&MrInit::new(&region, 8, 16, all()), &mut rng).expect("registered");
    let add = |add| AtomicOp::FetchAdd { add };
    assert_eq!(mrs.of(OWN).atomic_remote(mr.rkey, 0, add(5)), Ok(0));
    assert_eq!(mrs.of(OWN).atomic_remote(mr.rkey, 0, add(u64::MAX)), Ok(5));
    assert_eq!(mrs.of(OWN).atomic_remote(mr.rkey, 0, AtomicOp::CompareSwap { compare: 4, swap: 9 }), Ok(4));
    assert_eq!(mrs.of(OWN).atomic_remote(mr.rkey, 0, AtomicOp::CompareSwap { compare: 4, swap: 1 }), Ok(9));
    assert_eq!(mrs.of(OWN).atomic_remote(mr.rkey, 0, add(0)), Ok(9));
    assert_eq!(mrs.of(OWN).atomic_remote(mr.rkey, 4, add(0)), Err(KeyFault::Bounds), "unaligned");
    assert_eq!(mrs.of(OWN).atomic_remote(mr.rkey, 16, add(0)), Err(KeyFault::Bounds), "outside");
}

#[test]
fn addresses_run_from_the_iova_and_domains_are_apart() {
    let (mut mrs, region, mut rng) = table();
    let (pd, iova) = (PdId(7), 0x7fff_0000_1000);
    let init = MrInit { pd, iova, ..MrInit::new(&region, 1024, 100, all()) };
    let mr = mrs.register(&init, &mut rng).expect("registered");
    mrs.of(pd).write_remote(mr.rkey, iova + 90, b"0123456789").expect("last bytes");
    let mut seen = [0; 10];
    region.read(1024 + 90, &mut seen).expect("inside");
    assert_eq!(&seen, b"0123456789");
    for outside in [iova + 91, iova - 1, 0, 90, u64::MAX] {
        assert_eq!(mrs.of(pd).write_remote(mr.rkey, outside, &seen), Err(KeyFault::Bounds), "{outside:#x}");
    }
    assert_eq!(mrs.of(OWN).write_remote(mr.rkey, iova, b"x"), Err(KeyFault::Key), "another domain");
    assert!(mrs.has_of(pd) && !mrs.has_of(OWN));
    let wraps = MrInit { iova: u64::MAX - 98, ..init };
    assert!(matches!(mrs.register(&wraps, &mut rng), Err(VerbsError::OutOfRange { .. })));
    mrs.register(&MrInit { iova: u64::MAX - 100, ..init }, &mut rng).expect("to the last address but one");
    mrs.deregister(mr.id).expect("is there");
    assert!(mrs.has_of(pd), "the second one is left");
}

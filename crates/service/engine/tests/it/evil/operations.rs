//! Lies about operations on regions, and about kernels.

use control::RegionAccess;
use verbs::Region;

use super::Evil;
use crate::world::addr;

/// What a peer asks for in a region that it has not open, or that it may not, fails its lane alone.
#[test]
fn operations_on_what_the_peer_may_not_touch_fail_its_lane() {
    let execute = |opcode: u8, offset: u64| {
        let mut body = vec![0, 0, 0, 1, opcode, 0, 0, 0];
        body.extend(offset.to_be_bytes());
        body.extend([0; 16]);
        body
    };
    let cases: [(&str, RegionAccess, bool, u8, u64); 6] = [
        ("has not open", RegionAccess::ALL, false, 5, 0),
        ("has 4096 bytes", RegionAccess::ALL, true, 5, 4096),
        ("not a multiple of 8", RegionAccess::ALL, true, 5, 4),
        ("which allows read", RegionAccess::READ, true, 5, 0),
        ("which allows read", RegionAccess::READ, true, 3, 0),
        ("of which there is none", RegionAccess::ALL, true, 2, 0),
    ];
    for (what, access, is_open, opcode, offset) in cases {
        let mut e = Evil::new(true, 64);
        let memory = Region::anonymous(4096).unwrap();
        e.engine.register_region(&mut e.nic, 1, 1, memory.clone(), access).unwrap();
        let other = e.engine.grant_region(&mut e.nic, 1, addr(9)).unwrap();
        if is_open {
            e.engine.grant_region(&mut e.nic, 1, addr(1)).unwrap();
        }
        e.record(13, other.rkey, &execute(opcode, offset));
        assert_eq!(e.failures.len(), 1, "{what}");
        assert!(e.failures[0].contains(what), "{:?}", e.failures);
        assert_eq!(memory.word64(0).unwrap().load(std::sync::atomic::Ordering::SeqCst), 0);
    }
    // A kernel, likewise; and one that names what only its program should have.
    let run = |access: u8, others: u8| vec![0, 0, 0, 1, 0, 0, 0, 1, access, others, 0, 0, 0, 0, 0, 99, 1, 0, 0, 0];
    let full = RegionAccess::ALL | RegionAccess::EXECUTE;
    for (what, access, is_open, body) in [
        ("has not open", full, false, run(15, 0)),
        ("which allows read", RegionAccess::ALL, true, run(15, 0)),
        ("which allows read", full, true, run(1, 0)),
        ("has not open", full, true, run(15, 1)),
        ("says 28 bytes", full, true, run(15, 2)),
    ] {
        let mut e = Evil::new(true, 64);
        e.engine.register_region(&mut e.nic, 1, 1, Region::anonymous(4096).unwrap(), access).unwrap();
        let key = e.engine.grant_region(&mut e.nic, 1, addr(9)).unwrap().rkey;
        if is_open {
            e.engine.grant_region(&mut e.nic, 1, addr(1)).unwrap();
        }
        e.record(18, key, &body);
        assert_eq!(e.failures.len(), 1, "{what}");
        assert!(e.failures[0].contains(what), "{what}: {:?}", e.failures);
    }
    let mut e = Evil::new(true, 64);
    e.record(19, 77, &[0; 16]);
    // An answer to what was asked long ago is none to anything now.
    e.record(14, 77, &[0; 16]);
    e.assert_fine();
}

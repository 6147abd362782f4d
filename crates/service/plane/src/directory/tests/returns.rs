//! Regions that their owners bring back from a daemon before this one.

use super::*;

/// As a program says it, which knows nothing of users.
const LINE: RegionLine = RegionLine { id: 44, uid: 99, revokes: 7 };

fn bring(desk: &mut Desk, by: Party, spec: RegionSpec, epoch: u64) -> Result<OpenedRegion, RegionRefusal> {
    desk.directory.handle_return(by, 1, (spec, epoch, LINE), desk.tenant.clone());
    desk.answer(by)
}

#[test]
fn nobody_has_it_before_its_owner_has_copied() {
    let mut desk = desk();
    let (owner, reader) = (party(1, 5), party(2, 5));
    let made = bring(&mut desk, owner, spec("a", 100), 6).unwrap();
    assert_eq!(made.info.line, RegionLine { uid: 5, ..LINE }, "the same region, of the user that the daemon knows");
    assert_eq!((made.info.epoch, made.info.access), (7, RegionAccess::ALL | RegionAccess::EXECUTE));
    assert!(desk.is_live(&made));
    desk.directory.handle_open(reader, 1, wish("a"));
    desk.directory.handle_revoke(T0, owner, 10, ("a", KEY), None);
    let busy = Reply::RegionRevoked { request: 10, result: Err(RegionRefusal::Busy) };
    assert_eq!(desk.settle(), [(1, busy, None)]);
    assert_eq!(desk.directory.begin_run(owner.client, &[made.open]), Err(RegionRefusal::Busy));
    // What others say of it, or of another epoch, means nothing.
    desk.directory.handle_moved(reader.client, made.open, 7);
    desk.directory.handle_moved(owner.client, made.open, 6);
    assert!(desk.settle().is_empty() && desk.directory.deadline().is_some());
    desk.directory.handle_moved(owner.client, made.open, 7);
    let opened = desk.answer(reader).unwrap();
    assert_eq!((opened.info.epoch, desk.directory.deadline()), (7, None));
    desk.directory.handle_left(reader.client);
    desk.directory.handle_left(owner.client);
    desk.is_empty();
}

#[test]
fn an_owner_that_does_not_copy_or_dies_loses_it() {
    let mut desk = desk();
    let (owner, reader) = (party(1, 5), party(2, 5));
    for dies in [false, true] {
        let made = bring(&mut desk, owner, RegionSpec { outlives: true, ..spec("a", 100) }, 1).unwrap();
        desk.directory.handle_open(reader, 1, wish("a"));
        if dies {
            desk.directory.handle_left(owner.client);
        } else {
            desk.directory.handle_timeout(T0 + Duration::from_secs(3600));
        }
        let replies = desk.settle();
        let ended = Reply::RegionEnded { open: made.open, why: RegionRefusal::OwnerGone };
        assert_eq!(replies.iter().any(|(to, reply, _)| *to == 1 && *reply == ended), !dies);
        let refused = Reply::RegionOpened { request: 1, result: Err(RegionRefusal::OwnerGone) };
        assert!(replies.contains(&(2, refused, None)), "half of a copy is nobody's: {replies:?}");
        desk.is_empty();
    }
}

/// What the owner says of it is judged as what is said of a new one.
#[test]
fn a_region_that_is_brought_back_has_no_more_rights_than_a_new_one() {
    let mut desk = Desk::new(DirectoryConfig { bytes_per_user_max: 500, owner_uid: 77, ..DirectoryConfig::default() });
    let (owner, other) = (party(1, 5), party(2, 6));
    for bytes in [0, REGION_BYTES_MAX + 1, u64::MAX] {
        let refused = bring(&mut desk, owner, spec("a", bytes), 1).unwrap_err();
        assert_eq!(refused, RegionRefusal::BadSize { bytes, max: REGION_BYTES_MAX });
    }
    let refused = bring(&mut desk, owner, spec("a", 501), 1).unwrap_err();
    assert_eq!(refused, RegionRefusal::Quota { asked: 501, used: 0, max: 500 });
    assert!(matches!(bring(&mut desk, owner, spec("", 8), 1), Err(RegionRefusal::BadName { .. })));
    // The name was taken meanwhile; it came back already; it is another user's.
    desk.create(other, spec("a", 8)).unwrap();
    assert_eq!(bring(&mut desk, owner, spec("a", 8), 1), Err(RegionRefusal::NameTaken { uid: None }));
    let made = bring(&mut desk, owner, spec("b", 8), 1).unwrap();
    assert_eq!(bring(&mut desk, owner, spec("b", 8), 1), Err(RegionRefusal::NameTaken { uid: Some(5) }));
    assert_eq!(bring(&mut desk, other, spec("b", 8), 1), Err(RegionRefusal::NameTaken { uid: None }));
    // It is the user's who brings it, whatever it was.
    desk.directory.handle_moved(owner.client, made.open, 2);
    let refused = desk.open(other, wish("b")).unwrap_err();
    assert_eq!(refused, RegionRefusal::OtherUser { uid: 5 });
    // There is no memory for it.
    desk.fails = true;
    assert!(matches!(bring(&mut desk, owner, spec("c", 8), 1), Err(RegionRefusal::NoMemory { .. })));
    for party in [owner, other] {
        desk.directory.handle_left(party.client);
    }
    desk.settle();
    desk.is_empty();
}

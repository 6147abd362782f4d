//! Regions that nobody owns, over the end of their daemon.

use super::*;

/// What the directory had kept since the last look.
fn kept(desk: &mut Desk) -> Vec<KeptRegion> {
    desk.settle();
    std::mem::take(&mut desk.kept)
}

#[test]
fn one_that_stays_is_kept_when_its_owner_leaves_it_and_no_other() {
    let mut desk = desk();
    let owner = party(1, 5);
    let stays = RegionSpec { outlives: true, ..spec("stays", 100) };
    desk.create(owner, stays.clone()).unwrap();
    let deleted = desk.create(owner, RegionSpec { outlives: true, ..spec("deleted", 100) }).unwrap();
    desk.create(owner, spec("goes", 100)).unwrap();
    assert_eq!(kept(&mut desk), [], "its owner has it in hand");
    desk.directory.handle_revoke(T0, owner, 4, ("stays", KEY), Some(OTHER_KEY));
    desk.settle();
    desk.directory.handle_close(owner.client, deleted.open, true);
    desk.directory.handle_moved(owner.client, 1, 2);
    desk.settle();
    desk.directory.handle_left(owner.client);
    let line = Some(RegionLine { id: 1, uid: 5, revokes: 1 });
    let spec = RegionSpec { key: OTHER_KEY, ..stays };
    let expected = KeptRegion { spec, uid: 5, tenant: crate::OTHERS.into(), epoch: 2, line };
    assert_eq!(kept(&mut desk), [expected]);
}

#[test]
fn the_next_directory_goes_on_with_it_in_the_next_epoch() {
    let mut desk = desk();
    // What it says of its user is not taken from there.
    let line = RegionLine { id: 77, uid: 6, revokes: 3 };
    let of_before = KeptRegion {
        spec: RegionSpec { outlives: true, ..spec("a", 100) },
        uid: 5,
        tenant: "some".into(),
        epoch: 6,
        line: Some(line),
    };
    let line = RegionLine { uid: 5, ..line };
    desk.directory.adopt(of_before.clone()).unwrap();
    assert_eq!(
        kept(&mut desk),
        [KeptRegion { epoch: 7, line: Some(line), ..of_before.clone() }],
        "for the daemon after this one"
    );
    let taken = |uid| RegionRefusal::NameTaken { uid };
    assert_eq!(desk.directory.adopt(of_before.clone()), Err(taken(Some(5))));
    assert_eq!(desk.create(party(1, 6), spec("a", 8)), Err(taken(None)));
    assert_eq!(desk.directory.bytes_of_tenant("some"), 100);
    assert_eq!(desk.open(party(2, 6), wish("a")), Err(RegionRefusal::OtherUser { uid: 5 }));
    assert_eq!(desk.open(party(2, 5), RegionWish { key: OTHER_KEY, ..wish("a") }), Err(RegionRefusal::WrongKey));
    let opened = desk.open(party(2, 5), wish("a")).unwrap();
    assert_eq!((opened.info.epoch, opened.info.line), (7, line));
    assert!(desk.is_live(&opened));
    desk.directory.handle_left(ClientId(2));
    desk.directory.handle_revoke(T0, party(3, 5), 4, ("a", KEY), None);
    desk.settle();
    assert_eq!(desk.dropped.len(), 1);
    desk.is_empty();
}

#[test]
fn what_cannot_be_or_does_not_fit_is_not_taken_over() {
    let mut desk = Desk::new(DirectoryConfig { bytes_per_user_max: 500, owner_uid: 77, ..DirectoryConfig::default() });
    let good = KeptRegion {
        spec: RegionSpec { outlives: true, ..spec("a", 100) },
        uid: 5,
        tenant: crate::OTHERS.into(),
        epoch: 1,
        line: None,
    };
    let with = |spec: RegionSpec| KeptRegion { spec, ..good.clone() };
    let long = "n".repeat(REGION_NAME_BYTES_MAX + 1);
    for wrong in [
        with(RegionSpec { bytes: 0, ..good.spec.clone() }),
        with(RegionSpec { bytes: REGION_BYTES_MAX + 1, ..good.spec.clone() }),
        with(RegionSpec { bytes: 501, ..good.spec.clone() }),
        with(RegionSpec { name: long, ..good.spec.clone() }),
        with(RegionSpec { outlives: false, ..good.spec.clone() }),
        KeptRegion { epoch: 0, ..good.clone() },
        KeptRegion { epoch: control::REGION_EPOCH_MAX, ..good.clone() },
    ] {
        desk.directory.adopt(wrong.clone()).expect_err(&format!("{wrong:?}"));
        desk.is_empty();
    }
}

//! Owners of regions that outlived the programs that made them.

use super::*;

fn left_behind(name: &str) -> RegionSpec {
    RegionSpec { outlives: true, ..spec(name, 64) }
}

impl Desk {
    fn adopt(&mut self, by: Party, spec: &RegionSpec) -> Result<OpenedRegion, RegionRefusal> {
        self.directory.handle_adopt(by, 1, spec);
        self.answer(by)
    }
}

#[test]
fn the_next_program_owns_what_the_one_before_left() {
    let mut desk = desk();
    let spec = left_behind("a");
    let made = desk.create(party(1, 5), spec.clone()).unwrap();
    assert_eq!(desk.adopt(party(2, 5), &spec), Err(RegionRefusal::Owned { pid: 101 }));
    let reader = desk.open(party(3, 5), wish("a")).unwrap();
    desk.directory.handle_left(ClientId(1));
    desk.settle();
    assert_eq!(desk.kept.len(), 1, "it is kept for the next daemon");
    let adopted = desk.adopt(party(2, 5), &spec).unwrap();
    assert!(desk.kept.is_empty(), "its owner brings it now");
    assert_eq!(adopted.info.line, made.info.line);
    assert!(adopted.info.access.contains(RegionAccess::ALL | RegionAccess::EXECUTE));
    assert!(desk.is_live(&reader) && desk.is_live(&adopted), "nothing was moved");
    assert_eq!(desk.directory.owned_by(ClientId(2), adopted.open), Ok(adopted.info.region));
    assert_eq!(desk.adopt(party(4, 5), &spec), Err(RegionRefusal::Owned { pid: 102 }));
    // It is left behind once more, and then given up.
    desk.directory.handle_close(ClientId(2), adopted.open, false);
    desk.settle();
    assert_eq!(desk.kept.len(), 1);
    let last = desk.adopt(party(4, 5), &spec).unwrap();
    desk.directory.handle_close(ClientId(4), last.open, true);
    desk.directory.handle_left(ClientId(3));
    desk.settle();
    desk.is_empty();
}

#[test]
fn nobody_else_gets_it() {
    let mut desk = desk();
    let spec = left_behind("a");
    assert_eq!(desk.adopt(party(2, 5), &spec), Err(RegionRefusal::Unknown));
    desk.create(party(1, 5), spec.clone()).unwrap();
    desk.directory.handle_left(ClientId(1));
    desk.settle();
    assert_eq!(desk.adopt(party(2, 6), &spec), Err(RegionRefusal::OtherUser { uid: 5 }));
    let other_key = RegionSpec { key: OTHER_KEY, ..spec.clone() };
    assert_eq!(desk.adopt(party(2, 5), &other_key), Err(RegionRefusal::WrongKey));
    assert_eq!(desk.adopt(party(2, 6), &other_key), Err(RegionRefusal::Unknown));
    for other in [
        RegionSpec { bytes: 65, ..spec.clone() },
        RegionSpec { access: RegionAccess::READ, ..spec.clone() },
        RegionSpec { single_writer: true, ..spec.clone() },
        RegionSpec { other_users: true, ..spec.clone() },
        RegionSpec { outlives: false, ..spec.clone() },
        RegionSpec { huge_pages: true, ..spec.clone() },
    ] {
        assert_eq!(desk.adopt(party(2, 5), &other), Err(RegionRefusal::OtherSettings), "{other:?}");
    }
    assert!(desk.adopt(party(2, 0), &spec).is_ok(), "root acts for everybody");
}

//! Handles to another host's regions. The test plays the engine and the owner's daemon.

use control::{RegionAccess, RegionKey};

use super::*;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const PROGRAM: ClientId = ClientId(1);

/// Asks the owner's daemon for a region; the number of the handle.
fn ask(foreign: &mut Foreign) -> u64 {
    let wish = RegionWish { name: "a".into(), key: RegionKey::new([7; 16]), access: RegionAccess::READ, lease: None };
    foreign.handle_open(Party { client: PROGRAM, pid: 1, uid: 5 }, 3, PEER, wish, false);
    assert_eq!(actions(foreign), [ForeignAction::Path { client: PROGRAM, request: 3, host: PEER }]);
    assert!(foreign.on_path(PROGRAM, 3, Ok(())));
    let [ForeignAction::Tell { message: RegionMessage::Open { open, .. }, .. }] = actions(foreign)[..] else {
        panic!("the owner's daemon was not asked");
    };
    open
}

fn actions(foreign: &mut Foreign) -> Vec<ForeignAction> {
    std::iter::from_fn(|| foreign.poll_action()).collect()
}

const LINE: RegionLine = RegionLine { id: 3, uid: 5, revokes: 0 };

fn grant() -> RegionGrant {
    RegionGrant { region: 8, epoch: 1, bytes: 64, access: RegionAccess::READ, rkey: 9, addr: 0, last_term: 0 }
}

fn closed(open: u64) -> ForeignAction {
    ForeignAction::Tell { peer: PEER, message: RegionMessage::Closed { open } }
}

#[test]
fn a_program_that_leaves_keeps_no_place_whatever_the_owner_answers() {
    let mut foreign = Foreign::new(DirectoryConfig { handles_per_app_max: 4, ..DirectoryConfig::default() });
    // A host that answers nothing must not fill the table with wishes of programs that are gone.
    for _ in 0..100 {
        let open = ask(&mut foreign);
        foreign.handle_left(PROGRAM);
        assert_eq!(actions(&mut foreign), [closed(open)]);
        assert_eq!(foreign.count(), 0);
        assert!(foreign.handle_peer(PEER, RegionMessage::Opened { open, result: Ok((grant(), LINE)) }));
        assert_eq!(actions(&mut foreign), []);
    }
}

#[test]
fn a_handle_is_closed_at_the_owner_when_nothing_of_it_is_in_flight() {
    let mut foreign = Foreign::new(DirectoryConfig { handles_per_app_max: 1, ..DirectoryConfig::default() });
    let open = ask(&mut foreign);
    assert!(foreign.handle_peer(PEER, RegionMessage::Opened { open, result: Ok((grant(), LINE)) }));
    assert_eq!(
        actions(&mut foreign),
        [ForeignAction::Open { open, client: PROGRAM, peer: PEER, grant: grant(), lane: None }]
    );
    // The program leaves while the engine opens it.
    foreign.handle_left(PROGRAM);
    foreign.on_opened(open, Ok(77));
    assert_eq!(actions(&mut foreign), [ForeignAction::Close { client: PROGRAM, handle: 77 }]);
    assert_eq!(foreign.count(), 1);
    foreign.on_closed(PEER, 77);
    assert_eq!((actions(&mut foreign), foreign.count()), (vec![closed(open)], 0));
}

#[test]
fn all_programs_of_a_user_share_its_handles() {
    let mut foreign = Foreign::new(DirectoryConfig { handles_per_user_max: 2, ..DirectoryConfig::default() });
    let open = |foreign: &mut Foreign, client: u64, uid: u32| {
        let wish =
            RegionWish { name: "a".into(), key: RegionKey::new([7; 16]), access: RegionAccess::READ, lease: None };
        foreign.handle_open(Party { client: ClientId(client), pid: 1, uid }, 3, PEER, wish, false);
        matches!(actions(foreign)[..], [ForeignAction::Path { .. }])
    };
    assert_eq!([1, 2, 3].map(|client| open(&mut foreign, client, 5)), [true, true, false]);
    assert!(open(&mut foreign, 4, 6) && (0..5).all(|_| open(&mut foreign, 5, 0)));
    foreign.handle_left(ClientId(1));
    actions(&mut foreign);
    assert!(open(&mut foreign, 3, 5));
}

/// The least of many times, which load does not change, of what one program does while another one has so many handles.
#[allow(clippy::disallowed_types)] // it measures
fn least_time(handles: u64) -> std::time::Duration {
    let mut foreign = Foreign::new(DirectoryConfig::default());
    let granted = |foreign: &mut Foreign, client: u64, request: u64| {
        let (party, name) = (Party { client: ClientId(client), pid: 1, uid: client as u32 }, "a".into());
        let wish = RegionWish { name, key: RegionKey::new([7; 16]), access: RegionAccess::READ, lease: None };
        foreign.handle_open(party, request, PEER, wish, false);
        assert!(foreign.on_path(party.client, request, Ok(())));
        let Some(ForeignAction::Tell { message: RegionMessage::Open { open, .. }, .. }) = actions(foreign).pop() else {
            panic!("the owner's daemon was not asked");
        };
        // Each is of a region of its own.
        let grant = RegionGrant { region: open, ..grant() };
        assert!(foreign.handle_peer(PEER, RegionMessage::Opened { open, result: Ok((grant, LINE)) }));
        foreign.on_opened(open, Ok(u32::try_from(client * 4096 + request).unwrap()));
        actions(foreign);
        open
    };
    (0..handles).for_each(|n| _ = granted(&mut foreign, 10 + n / 4096, n % 4096));
    let turn = |n: u32| {
        let start = std::time::Instant::now();
        let region = granted(&mut foreign, 1, 3);
        let why = RegionRefusal::Unknown;
        assert!(foreign.handle_peer(PEER, RegionMessage::Stop { region, epoch: 1, why }));
        foreign.on_closed(PEER, 4096 + 3);
        foreign.handle_left(PROGRAM);
        actions(&mut foreign);
        assert_eq!(foreign.count() as u64, handles, "turn {n}");
        start.elapsed()
    };
    (0..30).map(turn).min().unwrap()
}

#[test]
fn what_others_have_open_makes_nothing_longer() {
    let (few, many) = (least_time(10), least_time(40_000));
    assert!(many < 30 * few, "{few:?} beside 10 handles, {many:?} beside 40,000");
}

/// Else one user has all of what another host gives to this one.
#[test]
fn a_user_has_a_quarter_of_what_another_host_gives() {
    let mut foreign = Foreign::new(DirectoryConfig::default());
    let open = |foreign: &mut Foreign, n: u64, uid: u32, peer: IpAddr| {
        let wish =
            RegionWish { name: "a".into(), key: RegionKey::new([7; 16]), access: RegionAccess::READ, lease: None };
        foreign.handle_open(Party { client: ClientId(n / 4000), pid: 1, uid }, n, peer, wish, false);
        matches!(actions(foreign)[..], [ForeignAction::Path { .. }])
    };
    let other = IpAddr::from([10, 0, 0, 3]);
    assert_eq!((0..20_000).filter(|n| open(&mut foreign, *n, 5, PEER)).count(), 16_384);
    assert!(
        open(&mut foreign, 40_000, 5, other)
            && open(&mut foreign, 44_000, 6, PEER)
            && open(&mut foreign, 48_000, 0, PEER)
    );
    foreign.handle_left(ClientId(0));
    actions(&mut foreign);
    assert!(open(&mut foreign, 52_000, 5, PEER));
}

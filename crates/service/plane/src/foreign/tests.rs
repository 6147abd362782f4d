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
    assert_eq!(actions(&mut foreign), [ForeignAction::Close { client: PROGRAM, handle: 77, is_fenced: false }]);
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

// ---- the lane of a program's writers

/// The program wants to write a region, by a lane that it may have to be given first.
fn take_over(foreign: &mut Foreign, request: u64) {
    let wish = TakeOver { name: "a".into(), key: RegionKey::new([7; 16]), term: request };
    foreign.handle_take_over(Party { client: PROGRAM, pid: 1, uid: 5 }, request, PEER, wish);
    assert_eq!(actions(foreign), [ForeignAction::Path { client: PROGRAM, request, host: PEER }]);
    assert!(foreign.on_path(PROGRAM, request, Ok(())));
}

/// The number of the handle that the owner's daemon is asked for, and its lane.
fn told(foreign: &mut Foreign) -> (u64, u32) {
    match actions(foreign)[..] {
        [ForeignAction::Tell { message: RegionMessage::TakeOver { open, lane, .. }, .. }] => (open, lane),
        ref other => panic!("the owner's daemon was not asked: {other:?}"),
    }
}

/// A first handle, of region 8, on this lane; and as the engine calls it.
fn first_writer(foreign: &mut Foreign, lane: u32) -> (u64, u32) {
    take_over(foreign, 1);
    let [ForeignAction::Lease { open, .. }] = actions(foreign)[..] else { panic!("no lane was asked for") };
    foreign.on_lane_number(open, Some(lane));
    assert_eq!(told(foreign), (open, lane));
    granted(foreign, open);
    (open, open as u32)
}

/// The owner's daemon and the engine let a handle be, each of a region of its own.
fn granted(foreign: &mut Foreign, open: u64) {
    let grant = RegionGrant { region: open, ..grant() };
    assert!(foreign.handle_peer(PEER, RegionMessage::Opened { open, result: Ok((grant, LINE)) }));
    assert!(matches!(actions(foreign)[..], [ForeignAction::Open { .. }]));
    foreign.on_opened(open, Ok(open as u32));
    assert!(matches!(actions(foreign)[..], [ForeignAction::Send { .. }]));
}

fn end_lane(lane: u32) -> ForeignAction {
    ForeignAction::EndLane { peer: PEER, lane }
}

#[test]
fn a_program_has_one_lane_for_all_that_it_writes_at_a_host() {
    let config = DirectoryConfig { leased_lanes_max: 1, leased_lanes_per_user_max: 1, ..DirectoryConfig::default() };
    let mut foreign = Foreign::new(config);
    let first = first_writer(&mut foreign, 70_000);
    let rest: Vec<u64> = (2..100)
        .map(|request| {
            take_over(&mut foreign, request);
            let (open, lane) = told(&mut foreign);
            assert_eq!(lane, 70_000);
            granted(&mut foreign, open);
            open
        })
        .collect();
    // The lane stays while one is left, and its number is nobody's when none is.
    for open in rest {
        foreign.handle_close(PROGRAM, open);
        foreign.on_closed(PEER, open as u32);
        let closing = ForeignAction::Close { client: PROGRAM, handle: open as u32, is_fenced: false };
        assert_eq!(actions(&mut foreign), [closing, closed(open)]);
    }
    foreign.handle_close(PROGRAM, first.0);
    foreign.on_closed(PEER, first.1);
    assert_eq!(actions(&mut foreign)[1..], [end_lane(70_000), closed(first.0)]);
    assert_eq!(first_writer(&mut foreign, 70_002).0, first.0 + 99, "its place is free again");
}

#[test]
fn one_superseded_handle_leaves_the_lane_to_the_others() {
    let mut foreign = Foreign::new(DirectoryConfig::default());
    let first = first_writer(&mut foreign, 70_000);
    take_over(&mut foreign, 2);
    let (second, _) = told(&mut foreign);
    granted(&mut foreign, second);
    let why = RegionRefusal::Superseded { term: 9 };
    assert!(foreign.handle_peer(PEER, RegionMessage::Superseded { open: first.0, why: why.clone() }));
    let [ForeignAction::Send { reply: Reply::RegionEnded { open, why: said }, .. }, close] = &actions(&mut foreign)[..]
    else {
        panic!("the program was not told")
    };
    assert_eq!((*open, said), (first.0, &why));
    assert_eq!(*close, ForeignAction::Close { client: PROGRAM, handle: first.1, is_fenced: true });
    foreign.on_closed(PEER, first.1);
    assert_eq!(actions(&mut foreign), [closed(first.0)]);
}

/// A take-over whose lane ended while the owner's daemon was asked must not begin a lane of that number again.
#[test]
fn a_lost_lane_ends_all_on_it_and_gives_its_number_to_none() {
    let mut foreign = Foreign::new(DirectoryConfig::default());
    let first = first_writer(&mut foreign, 70_000);
    take_over(&mut foreign, 2);
    let (asked, _) = told(&mut foreign);
    foreign.handle_lane_gone(PEER, 70_000, Reason::LaneFailed);
    assert!(matches!(
        actions(&mut foreign)[..],
        [ForeignAction::Send { reply: Reply::RegionEnded { open, .. }, .. }, ForeignAction::Close { .. }] if open == first.0
    ));
    // The next one gets another lane, while those of the lost one are still there.
    take_over(&mut foreign, 3);
    let [ForeignAction::Lease { open: third, .. }] = actions(&mut foreign)[..] else { panic!("it shares a lost lane") };
    foreign.on_lane_number(third, Some(70_002));
    assert_eq!(told(&mut foreign), (third, 70_002));
    let result = Ok((grant(), LINE));
    assert!(foreign.handle_peer(PEER, RegionMessage::Opened { open: asked, result }));
    assert!(matches!(&actions(&mut foreign)[..], [tell, ForeignAction::Send { .. }] if *tell == closed(asked)));
    foreign.on_closed(PEER, first.1);
    assert_eq!(actions(&mut foreign), [closed(first.0)], "the lane is over already");
    granted(&mut foreign, third);
    foreign.handle_close(PROGRAM, third);
    foreign.on_closed(PEER, third as u32);
    assert_eq!(actions(&mut foreign)[1..], [end_lane(70_002), closed(third)]);
}

/// The owner's daemon hears that the last handle is over before it hears of the next, so it ends the lane between them.
#[test]
fn a_lane_that_its_last_handle_has_left_is_not_given_to_one_that_comes() {
    let mut foreign = Foreign::new(DirectoryConfig::default());
    let first = first_writer(&mut foreign, 70_000);
    let wish = TakeOver { name: "b".into(), key: RegionKey::new([7; 16]), term: 2 };
    foreign.handle_take_over(Party { client: PROGRAM, pid: 1, uid: 5 }, 2, PEER, wish);
    foreign.handle_close(PROGRAM, first.0);
    foreign.on_closed(PEER, first.1);
    actions(&mut foreign);
    assert!(foreign.on_path(PROGRAM, 2, Ok(())));
    assert!(matches!(actions(&mut foreign)[..], [ForeignAction::Lease { .. }]));
}

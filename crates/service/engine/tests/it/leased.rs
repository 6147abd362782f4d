//! Leased lanes: a queue pair for one program's handles.

use control::{Reason, RegionAccess};
use engine::LaneAt;
use shm::{Opcode, OperationStatus};

use crate::operations::fixture::{BYTES, EPOCH, NUMBER, Use};
use crate::world::{World, addr};

const LANE: u32 = control::LEASED_LANE_FIRST + 2;

fn at(host: usize) -> LaneAt {
    LaneAt::new(addr(1 - host), LANE)
}

/// An application of host 0 that has the region of host 1 open by a leased lane, which is not connected yet.
fn leased(seed: u64) -> Use {
    let mut u = Use::of(World::new(2, seed), RegionAccess::ALL);
    let owner = &mut u.w.hosts[1];
    assert!(owner.engine.expect_leased_lane(addr(0), LANE));
    assert!(owner.engine.expect_leased_lane(addr(0), LANE), "it is there, for one more region");
    assert!(!owner.engine.expect_leased_lane(addr(0), 0), "this is the shared one");
    let grant = owner.engine.grant_region(&mut owner.nic, NUMBER, addr(0)).unwrap();
    let h = &mut u.w.hosts[0];
    u.handle = h.engine.open_region(&mut h.nic, u.app, at(0), grant).unwrap();
    u
}

/// The daemons' part: both ends are made and connected; what arrived before is told.
fn connect(u: &mut Use) {
    connect_at(u, [at(0), at(1)], LANE);
}

/// The same, for a lane of another number.
pub(crate) fn connect_at(u: &mut Use, at: [LaneAt; 2], number: u32) {
    let at = |host: usize| at[host];
    let now = u.w.now;
    let offers = [0, 1].map(|i| {
        let h = &mut u.w.hosts[i];
        h.engine.lane_offer(&mut h.nic, at(i)).unwrap()
    });
    for i in [0, 1] {
        assert_eq!((offers[i].lane, offers[i].datagrams.is_none()), (number, true));
        let h = &mut u.w.hosts[i];
        h.engine.lane_accept(&mut h.nic, at(i), &offers[1 - i]).unwrap();
    }
    let resumes = !u.w.hosts[0].engine.lane_goes_on(at(0));
    for i in [0, 1].into_iter().filter(|_| resumes) {
        let routes = u.w.hosts[i].engine.lane_routes(at(i)).unwrap();
        let h = &mut u.w.hosts[1 - i];
        h.engine.lane_take_routes(now, &mut h.nic, at(1 - i), &routes).unwrap();
        assert!(u.w.hosts[i].engine.lane_routes(at(i)).is_none(), "it was one message");
    }
    for i in [0, 1] {
        let h = &mut u.w.hosts[i];
        assert!(h.engine.lane_goes_on(at(i)));
        h.engine.lane_ready(now, &mut h.nic, at(i));
    }
    u.w.wake();
}

fn lanes(u: &World) -> [u64; 2] {
    [0, 1].map(|i| u.counter(i, "leased_lanes"))
}

#[test]
fn operations_wait_for_the_lane_and_go_over_it_alone() {
    let mut u = leased(1000);
    let first = u.fetch_add();
    u.w.settle();
    assert_eq!(u.word(0), 0, "the shared lane does not carry it");
    connect(&mut u);
    assert_eq!(u.wait(first).status, OperationStatus::Ok);
    assert_eq!(u.write(8, b"12345678").status, OperationStatus::Ok);
    assert_eq!(u.read(8, 8).bytes, b"12345678");
    let rows = u.w.hosts[0].engine.lanes();
    let [row] = &rows.iter().filter(|l| l.name.ends_with("/leased-2")).collect::<Vec<_>>()[..] else {
        panic!("{rows:?}");
    };
    assert_eq!((row.state.as_str(), row.tx_bytes), ("up", 8));
    assert_eq!(rows.len(), 2);
    u.w.hosts[0].engine.close_region(u.app, u.handle, false);
    u.w.settle();
    assert!(u.is_closed());
    assert_eq!(lanes(&u.w), [1, 1], "the daemon says when it ends");
    let h = &mut u.w.hosts[0];
    h.engine.end_leased_lane(u.w.now, &mut h.nic, at(0), Reason::Closed);
    let h = &mut u.w.hosts[1];
    h.engine.lane_lost(u.w.now, &mut h.nic, at(1), Reason::Closed);
    assert_eq!(lanes(&u.w), [0, 0]);
    let h = &mut u.w.hosts[1];
    assert!(h.engine.lane_offer(&mut h.nic, at(1)).is_err(), "nobody expects it");
}

#[test]
fn a_reset_repeats_what_did_not_arrive_and_nothing_twice() {
    for seed in 1010..1020 {
        let mut u = leased(seed);
        connect(&mut u);
        let tags: Vec<_> = (0..40).map(|_| u.fetch_add()).collect();
        u.w.wake();
        for _ in 0..(seed - 1010) * 30 {
            u.w.step();
        }
        let h = &mut u.w.hosts[0];
        assert!(h.engine.force_lane_error(&mut h.nic, at(0)));
        u.w.until("a reset", |w| w.counter(0, "lane_resets") == 1);
        let h = &mut u.w.hosts[1];
        h.engine.lane_reset(u.w.now, &mut h.nic, at(1));
        connect(&mut u);
        for tag in tags {
            assert_eq!(u.wait(tag).status, OperationStatus::Ok);
        }
        assert_eq!(u.word(0), 40, "each once");
        assert_eq!(u.w.counter(0, "lane_resets"), 1);
    }
}

#[test]
fn nothing_lands_after_the_owner_has_ended_the_lane() {
    for seed in 1030..1060 {
        let mut u = leased(seed);
        connect(&mut u);
        let shared = u.w.counter(0, "lane_resets");
        for i in 0..20u64 {
            let s = u.submission(Opcode::Write, 4096 * (1 + i % 8), 2048);
            u.submit(&s, &[7; 2048]);
            u.fetch_add();
            if i % 8 == 7 {
                u.w.wake();
                u.w.step();
            }
        }
        u.w.wake();
        for _ in 0..(seed - 1030) * 10 {
            u.w.step();
        }
        // The owner's daemon asks nobody.
        let h = &mut u.w.hosts[1];
        h.engine.end_leased_lane(u.w.now, &mut h.nic, at(1), Reason::LaneRevoked);
        assert!(h.engine.deregister_region(&mut h.nic, NUMBER, EPOCH));
        let mut before = vec![0; BYTES];
        u.region.read(0, &mut before).unwrap();
        u.w.hosts[0].engine.stop_region(addr(1), NUMBER, EPOCH);
        let h = &mut u.w.hosts[0];
        h.engine.lane_lost(u.w.now, &mut h.nic, at(0), Reason::LaneRevoked);
        u.w.settle();
        u.collect();
        let mut after = vec![0; BYTES];
        u.region.read(0, &mut after).unwrap();
        assert!(before == after, "a late access");
        assert_eq!(u.ended.len(), 40, "each operation ended");
        let adds = u.ended.iter().filter(|e| e.tag % 2 == 0 && e.status == OperationStatus::Ok).count() as u64;
        let unknown = u.ended.iter().filter(|e| e.status == OperationStatus::OutcomeUnknown).count() as u64;
        assert!((adds..=adds + unknown).contains(&u.word(0)), "{adds} {unknown} {}", u.word(0));
        for e in u.ended.iter().filter(|e| e.status == OperationStatus::OutcomeUnknown) {
            assert_eq!(e.detail, u64::from(Reason::LaneRevoked.code()));
        }
        assert_eq!(u.read(0, 8).status, OperationStatus::Revoked);
        assert_eq!((lanes(&u.w), u.w.counter(0, "lane_resets")), ([0, 0], shared));
    }
}

#[test]
fn a_lane_outlives_its_application_until_its_end_and_a_lost_one_ends_its_handles_alone() {
    let mut u = leased(1070);
    connect(&mut u);
    u.read(0, 8);
    u.fetch_add();
    let app = u.app;
    u.w.kill(0, app);
    u.w.until("memory free", |w| w.hosts[0].gone == [app]);
    let h = &mut u.w.hosts[0];
    h.engine.end_leased_lane(u.w.now, &mut h.nic, at(0), Reason::Closed);
    assert_eq!(u.w.counter(0, "leased_lanes"), 0);

    let mut u = leased(1071);
    connect(&mut u);
    let owner = &mut u.w.hosts[1];
    let other = owner.engine.grant_region(&mut owner.nic, NUMBER, addr(0)).unwrap();
    let h = &mut u.w.hosts[0];
    let shared = h.engine.open_region(&mut h.nic, u.app, addr(1), other).unwrap();
    h.engine.lane_lost(u.w.now, &mut h.nic, at(0), Reason::PeerLimit);
    let ended = u.read(0, 8);
    assert_eq!((ended.status, ended.detail), (OperationStatus::PeerLost, Reason::PeerLimit.code().into()));
    u.handle = shared;
    assert_eq!(u.read(0, 8).status, OperationStatus::Ok);
}

#[test]
fn a_lane_that_is_lost_after_its_application_died_frees_the_memory() {
    for seed in 1100..1130 {
        let mut u = leased(seed);
        connect(&mut u);
        for i in 0..8u64 {
            let s = u.submission(Opcode::Read, 4096 * (1 + i), 2048);
            u.submit(&s, &[]);
            u.fetch_add();
        }
        u.w.wake();
        for _ in 0..(seed - 1100) * 4 {
            u.w.step();
        }
        let app = u.app;
        u.w.kill(0, app);
        let h = &mut u.w.hosts[0];
        h.engine.lane_lost(u.w.now, &mut h.nic, at(0), Reason::PeerLost);
        u.w.until("memory free", |w| w.hosts[0].gone == [app]);
        assert_eq!(u.w.counter(0, "leased_lanes"), 0);
    }
}

#[test]
fn a_peer_has_no_more_lanes_than_there_are_places() {
    let mut w = World::with(2, 1080, |c| c.engine.leased_lanes_max = 3);
    let engine = &mut w.hosts[1].engine;
    let made = (0..5).filter(|n| engine.expect_leased_lane(addr(0), LANE + 2 * n)).count();
    assert_eq!(made, 3);
}

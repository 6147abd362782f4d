//! Leased lanes: handles to regions of another host with a queue pair of their own.

use std::sync::Barrier;

use raas::{Reason, Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::hosts::{Host, bounded, check_echo, eventually, pattern};

const KEY: RegionKey = RegionKey::new([9; 16]);

fn leased(user: &Session, host: &Host, name: &str) -> Result<Region, RegionError> {
    Region::open_leased(user, host.address(), name, KEY, RegionAccess::ALL)
}

/// Leased lanes of both ends.
fn lanes(a: &Host, b: &Host) -> (u64, u64) {
    (a.counter("leased_lanes"), b.counter("leased_lanes"))
}

/// Names of the leased lanes that are up.
fn up(host: &Host) -> Vec<String> {
    let rows = host.stat().lanes;
    rows.into_iter().filter(|l| l.name.contains("leased") && l.state == "up").map(|l| l.name).collect()
}

#[test]
fn a_leased_lane_carries_one_handle_and_ends_with_it() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let own = RegionOptions::new().key(KEY).create(&owner, "log", 1 << 20).unwrap();
        let shared = Region::open(&user, a.address(), "log", KEY).unwrap();
        let lane = leased(&user, &a, "log").unwrap();
        let data = pattern(1 << 20, 3);
        lane.write(0, &data).unwrap();
        let mut found = vec![0; 1 << 20];
        shared.read(0, &mut found).unwrap();
        assert!(found == data, "both handles are on the same bytes");
        own.store(8, 40).unwrap();
        assert_eq!((lane.fetch_add(8, 2).unwrap(), shared.load(8).unwrap()), (40, 42));
        lane.write_notify(16, b"notified", 7).unwrap();
        assert_eq!(own.recv_notification().unwrap(), 7);
        assert_eq!((up(&a).len(), up(&b).len()), (1, 1));
        assert_eq!((a.stat().rc_qps, b.stat().rc_qps), (2, 2));
        let row = b.stat().lanes.into_iter().find(|l| l.name.contains("leased")).unwrap();
        assert!(row.tx_bytes >= 1 << 20, "its bytes went over it: {row:?}");
        let shown = b.connections();
        let [shown] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!((shown.path, shown.reason), (control::PathKind::Leased, Reason::LeasedLane));
        assert_eq!((shown.state, shown.peer.ip()), (control::ConnectionState::Established, a.address()));
        assert_eq!((shown.lane.as_ref(), shown.app_pid), (Some(&row.name), std::process::id()));
        assert!(shown.tx_bytes >= row.tx_bytes && a.connections().is_empty(), "{shown:?}");
        // What others do to the shared lane is no matter of the leased one's.
        assert!(b.reset_lane(a.address()));
        assert_eq!(lane.fetch_add(8, 1).unwrap(), 42);
        drop(lane);
        eventually("the lane is gone at both ends", || lanes(&a, &b) == (0, 0));
        assert!(b.connections().is_empty());
        eventually("and its queue pairs", || (a.stat().rc_qps, b.stat().rc_qps) == (1, 1));
        assert_eq!(shared.load(8).unwrap(), 43);
        // A region of one's own host is mapped.
        let here = leased(&owner, &a, "log").unwrap();
        assert_eq!((here.load(8).unwrap(), a.counter("region_handles")), (43, 0));
    });
}

#[test]
fn the_owner_takes_a_leased_lane_away_at_once() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let own = RegionOptions::new().key(KEY).create(&owner, "log", 4096).unwrap();
        let echo = a.echo(&owner);
        for round in 0..5 {
            own.store(0, 0).unwrap();
            let lane = leased(&user, &a, "log").unwrap();
            let began = Barrier::new(2);
            let (done, unknown, end) = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    lane.fetch_add(0, 1).unwrap();
                    began.wait();
                    let (mut done, mut unknown) = (1, 0);
                    loop {
                        match lane.fetch_add(0, 1) {
                            Ok(_) => done += 1,
                            Err(RegionError::OutcomeUnknown { reason, .. }) => {
                                // Its queue pair may break before its daemon hears why.
                                assert!(matches!(reason, Reason::LaneRevoked | Reason::LaneFailed), "{reason}");
                                unknown += 1;
                            }
                            Err(end) => return (done, unknown, end),
                        }
                    }
                });
                began.wait();
                own.revoke(None).unwrap();
                // Nothing lands from here on.
                let sum = own.load(0).unwrap();
                let (done, unknown, end) = writer.join().unwrap();
                assert_eq!(own.load(0).unwrap(), sum, "round {round}");
                assert!((done..=done + unknown).contains(&sum), "{done} done, {unknown} unknown, {sum} found");
                (done, unknown, end)
            });
            assert!(matches!(end, RegionError::Revoked { .. }), "{done} {unknown} {end}");
            let stream = raas::Stream::connect_with(&user, (a.address(), echo)).unwrap();
            check_echo(stream, 100_000, 1);
        }
        eventually("no lane is left", || lanes(&a, &b) == (0, 0));
        assert_eq!((a.counter("lane_failures"), b.counter("lane_failures")), (0, 0));
    });
}

#[test]
fn leased_lanes_are_bounded_at_both_ends() {
    bounded(|| {
        let (mut a, mut b) = (Host::new(), Host::new());
        let c = Host::started();
        a.config.set_limit("leased_lanes_max", 2).unwrap();
        b.config.set_limit("leased_lanes_max", 1).unwrap();
        a.start();
        b.start();
        let (owner, user, third) = (a.session(), b.session(), c.session());
        let _own = RegionOptions::new().key(KEY).create(&owner, "log", 4096).unwrap();
        let refusal = |result: Result<Region, RegionError>| result.unwrap_err().refusal().cloned();
        let first = leased(&user, &a, "log").unwrap();
        let too_many = |what: &str, n| Some(RegionRefusal::TooMany { what: what.into(), used: n, max: n });
        assert_eq!(refusal(leased(&user, &a, "log")), too_many("leased lanes of this host", 1));
        let second = leased(&third, &a, "log").unwrap();
        assert_eq!(refusal(leased(&third, &a, "log")), too_many("leased lanes to regions of that host", 2));
        drop(first);
        eventually("there is a place again", || leased(&user, &a, "log").is_ok());
        second.store(0, 5).unwrap();
    });
}

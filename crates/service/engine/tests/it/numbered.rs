//! An engine that is not the first of its daemon: its slots, its lanes, and what it leaves to the first.

use std::sync::atomic::Ordering;

use control::Reason;

use crate::world::{World, addr};

#[test]
fn an_engine_uses_its_range_of_slots_and_the_lane_of_its_number() {
    for number in [1, 2, 15] {
        let mut w = World::with(2, 400 + u64::from(number), |c| c.engine.number = number);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let (sa, sb) = w.pair(a, b, 7, 8192);
        for (host, app, slot) in [(0, a, sa), (1, b, sb)] {
            let session = &w.app(host, app).session;
            let place = session.place_of(slot).unwrap();
            assert_eq!((place.engine, place.in_range), (number, 0));
            assert_eq!(session.slot(slot).engine.load(Ordering::Relaxed), number);
            w.tell(host, app, slot, |c| c.to_send = 300_000);
        }
        w.settle();
        assert_eq!([w.app(0, a).conns[&sa].received, w.app(1, b).conns[&sb].received], [300_000; 2]);
        assert_eq!(w.hosts[0].engine.lanes()[0].name, format!("{}/{number}", addr(1)));
        // A reset, which exchanges what arrived, names the lane too.
        w.tell(0, a, sa, |c| c.to_send = 600_000);
        let h = &mut w.hosts[0];
        assert!(h.engine.force_lane_error(&mut h.nic, addr(1)));
        w.settle();
        assert_eq!(w.app(1, b).conns[&sb].received, 600_000);
        // All slots of the range, and no more.
        for _ in 1..64 {
            let slot = w.connect_wait(0, a, (addr(1), 7).into(), 4096).unwrap();
            assert_eq!(w.app(0, a).session.place_of(slot).unwrap().engine, number);
        }
        assert_eq!(w.connect_wait(0, a, (addr(1), 7).into(), 4096), Err(Reason::LocalLimit));
        w.assert_clean();
    }
}

#[test]
fn datagrams_are_the_first_engines() {
    let w = World::with(2, 410, |c| c.engine.number = 1);
    assert_eq!(w.hosts[0].engine.totals().ud_qps, 0);
    let w = World::new(2, 410);
    assert_eq!(w.hosts[0].engine.totals().ud_qps, 1);
}

#[test]
fn an_offer_of_another_lane_is_refused() {
    let mut w = World::with(2, 412, |c| c.engine.number = 1);
    let (a, rest) = w.hosts.split_at_mut(1);
    let (a, b) = (&mut a[0], &mut rest[0]);
    let offer = b.engine.lane_offer(&mut b.nic, addr(0)).unwrap();
    assert_eq!((offer.lane, offer.datagrams.as_ref()), (1, None));
    a.engine.lane_offer(&mut a.nic, addr(1)).unwrap();
    for lane in [0, 2, u32::MAX] {
        let other = control::LaneOffer { lane, ..offer.clone() };
        let refused = a.engine.lane_accept(&mut a.nic, addr(1), &other).unwrap_err().to_string();
        assert!(refused.contains("number of the offered lane"), "{refused}");
    }
    a.engine.lane_accept(&mut a.nic, addr(1), &offer).unwrap();
}

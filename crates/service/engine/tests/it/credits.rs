//! Credits by demand: lanes that are used have many, others few, and all together no more than there are.

use std::time::Duration;

use crate::world::World;

/// Fewest and most credits of a lane in these tests.
const FEWEST: u64 = 8;
const MOST: u64 = 512;
/// Receives that may be posted for one idle lane: its own, the slack, and a surplus that is not worth the call.
const LEFT: u64 = FEWEST + 256 + 64;
/// After so long without use a grant is the smallest again: two periods, and time for the frames.
const REST: Duration = Duration::from_millis(2500);

fn granted(w: &World, host: usize) -> Vec<u64> {
    w.hosts[host].engine.lanes().iter().map(|lane| lane.granted).collect()
}

fn credits(w: &World, host: usize) -> Vec<u64> {
    w.hosts[host].engine.lanes().iter().map(|lane| lane.credits).collect()
}

fn sent(w: &World, host: usize) -> u64 {
    w.counter(host, "frames_sent")
}

#[test]
fn a_lane_that_speaks_gets_more_and_gives_it_back_when_it_is_silent() {
    let mut w = World::new(2, 201);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 64 << 10);
    assert!(granted(&w, 1)[0] <= FEWEST && granted(&w, 0)[0] <= FEWEST);
    let posted = |w: &World| w.hosts[1].engine.totals().srq_free;
    for round in 1..=2u64 {
        w.tell(0, a, sa, |c| c.to_send += 20_000_000);
        w.until("some arrived", |w| w.app(1, b).conns[&sb].received > (round - 1) * 20_000_000 + 10_000_000);
        assert!(granted(&w, 1)[0] > 4 * FEWEST, "{:?}", granted(&w, 1));
        w.until("all arrived", |w| w.app(1, b).conns[&sb].received == round * 20_000_000);
        assert!(posted(&w) > LEFT, "{} receives are posted: too few to see them go", posted(&w));
        w.pass(REST);
        w.settle();
        for host in [0, 1] {
            assert!(granted(&w, host)[0] <= FEWEST, "host {host}: {:?}", granted(&w, host));
        }
        assert_eq!((credits(&w, 0), credits(&w, 1)), (granted(&w, 1), granted(&w, 0)), "each credit is at one end");
        assert!(posted(&w) <= LEFT, "{} receives are left", posted(&w));
        let before = [sent(&w, 0), sent(&w, 1)];
        w.pass(REST * 4);
        assert_eq!([sent(&w, 0), sent(&w, 1)], before, "an idle lane says nothing");
    }
    assert_eq!(w.counter(1, "credit_shortages"), 0);
    w.assert_clean();
}

#[test]
fn lanes_that_all_speak_share_what_there_is() {
    let mut w = World::with(7, 202, |c| {
        c.lanes_max(8);
        c.engine.srq_bytes_max = 256 << 12;
    });
    let server = w.attach(0, 256);
    let to = w.listen(0, server, 7, 256);
    w.app(0, server).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (150_000, true, true);
    let clients: Vec<_> = (1..7).map(|h| (h, w.attach(h, 64))).collect();
    for (h, app) in &clients {
        w.app(*h, *app).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (150_000, true, true);
        // Rings so small that the lane takes many messages.
        (0..16).for_each(|_| _ = w.connect(*h, *app, to, 4096));
    }
    let mut most = 0;
    w.until("all closed", |w| {
        let granted = granted(w, 0);
        most = most.max(granted.iter().sum::<u64>());
        assert!(granted.iter().all(|g| *g <= MOST));
        let done = |app: &crate::apps::SimApp, n| app.conns.len() == n && app.conns.values().all(|c| c.closed);
        done(&w.hosts[0].apps[&server], 96) && clients.iter().all(|(h, app)| done(&w.hosts[*h].apps[app], 16))
    });
    assert!(w.app(0, server).conns.values().all(|c| c.received == 150_000));
    assert!(w.counter(0, "credit_shortages") > 0, "the test is too easy");
    assert!(most <= 256, "{most} entries of 256");
    assert!(w.hosts[0].engine.totals().srq_free <= 256);
    w.assert_clean();
}

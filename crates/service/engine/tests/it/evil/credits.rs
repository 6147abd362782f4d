//! Lies about credits: each costs the liar its lane, and nobody else anything.

use super::*;

fn reclaim(e: &mut Evil, most: u32) {
    e.record(8, 0, &(u64::from(most) << 32).to_be_bytes());
}

fn give_up(e: &mut Evil, count: u32) {
    e.record(9, 0, &(u64::from(count) << 32).to_be_bytes());
}

#[test]
fn credits_that_cannot_be_fail_the_lane() {
    type Act = fn(&mut Evil);
    let cases: [(&str, Act); 6] = [
        ("8 credits given up, of 7", |e| give_up(e, 8)),
        ("credits given up, of", |e| give_up(e, u32::MAX)),
        ("without a credit", |e| {
            give_up(e, 7);
            e.record(6, 1, &[]);
        }),
        ("asked to hold 7 credits", |e| reclaim(e, 7)),
        ("asked to hold 0 credits", |e| reclaim(e, 0)),
        ("reserved bits", |e| e.record(8, 5, &[0; 8])),
    ];
    for (why, act) in cases {
        let mut e = Evil::new(false, 512);
        act(&mut e);
        e.assert_failed(why);
    }
}

#[test]
fn a_peer_that_takes_credits_back_all_the_time_gets_one_answer_each() {
    let mut e = Evil::new(true, 512);
    let sent = |e: &Evil| e.engine.totals().counters.iter().find(|c| c.0 == "frames_sent").unwrap().1;
    reclaim(&mut e, 8);
    assert_eq!(e.engine.lanes()[0].credits, 8, "of the 64 of the offer");
    let before = sent(&e);
    for _ in 0..50 {
        reclaim(&mut e, 8);
    }
    let frames = sent(&e) - before;
    assert!(frames <= 50, "{frames} frames for 50");
    e.assert_fine();
}

#[test]
fn a_peer_that_keeps_what_others_want_loses_its_queue_pair_alone() {
    // 128 entries: 32 of slack, 16 for two lanes, 80 for whoever speaks.
    let mut e = Evil::with(true, |c| (c.lanes_max, c.leased_lanes_max, c.srq_bytes_max) = (2, 0, 128 << 12));
    e.second = Some(Second::new(e.now, &mut e.engine, &mut e.nic));
    let granted = |e: &Evil, host| e.engine.lanes().iter().find(|l| l.peer.ip() == addr(host)).unwrap().granted;
    let speak = |e: &mut Evil, times| {
        for _ in 0..times {
            e.second.as_mut().unwrap().speak();
            e.exchange();
        }
    };
    // It is used, so it gets what there is. Then it falls silent, and keeps it.
    for _ in 0..30 {
        e.record(6, 1, &[]);
    }
    let held = granted(&e, 1);
    assert!(held > 48, "{held}");
    e.received();
    // Another lane wants more than what is left.
    speak(&mut e, 60);
    assert!(granted(&e, 2) < 64, "{}", granted(&e, 2));
    let asked = e.received().iter().filter(|f| f.len() > 24 && f[24] == 8).count();
    assert_eq!(asked, 1, "it is asked once");
    e.assert_fine();
    e.now = e.now + Duration::from_secs(6);
    speak(&mut e, 60);
    assert_eq!(e.failures.len(), 1, "{:?}", e.failures);
    assert!(e.failures[0].contains("receive credits for which it was asked"), "{:?}", e.failures);
    let counters = e.engine.totals().counters;
    assert_eq!(counters.iter().find(|c| c.0 == "lane_resets").unwrap().1, 1, "its connections go on");
    e.now = e.now + Duration::from_secs(2);
    speak(&mut e, 120);
    assert!(granted(&e, 2) > 34, "the other has what it wanted: {}", granted(&e, 2));
    assert_eq!((e.nic.counters_detail().rnr_naks_sent, e.failures.len()), (0, 1));
}

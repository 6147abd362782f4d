//! Tenants on one lane: their weights, their rates, and what becomes of those that are stopped by a rate.

use std::time::Duration;

use control::Reason;
use engine::{AppId, TenantPlace, TenantTerms};
use shm::Opcode;

use crate::operations::fixture::Use;
use crate::world::{World, addr};

const MB: u64 = 1_000_000;

fn terms(weight: u16, bytes_per_s: Option<u64>, operations_per_s: Option<u64>) -> TenantTerms {
    TenantTerms { weight, bytes_per_s, operations_per_s, ..TenantTerms::default() }
}

/// Of both hosts: tenants with these terms.
fn set(w: &mut World, terms: &[TenantTerms]) {
    w.hosts.iter_mut().for_each(|h| h.engine.set_tenants(terms.to_vec()));
}

/// A program of the first host's tenant `place` that sends so much on each of its connections. Both ends of it.
fn sender(w: &mut World, place: u16, port: u16, connections: usize, bytes: u64) -> (AppId, AppId) {
    let (a, b) = (w.attach(0, 512), w.attach(1, 512));
    w.hosts[0].engine.set_tenant(a, TenantPlace(place));
    w.app(0, a).defaults = |c| (c.to_send, c.write_max) = (0, 65536);
    let to = w.listen(1, b, port, 300);
    (0..connections).for_each(|_| _ = w.connect(0, a, to, 1 << 20));
    w.until("all connected", |w| w.app(1, b).conns.len() == connections && w.app(0, a).conns.len() == connections);
    let slots: Vec<u32> = w.app(0, a).conns.keys().copied().collect();
    slots.into_iter().for_each(|slot| w.tell(0, a, slot, |c| c.to_send = bytes));
    (a, b)
}

fn received(w: &mut World, app: AppId) -> u64 {
    w.app(1, app).conns.values().map(|c| c.received).sum()
}

#[test]
fn tenants_share_a_lane_by_weight_whatever_they_have_of_programs_and_connections() {
    const FLIGHT: u64 = 256 << 10;
    let mut w = World::with(2, 61, |c| (c.engine.quantum_bytes, c.engine.lane_inflight_bytes_max) = (16384, FLIGHT));
    set(&mut w, &[terms(1, None, None), terms(1, None, None), terms(2, None, None)]);
    // Five programs of 20 connections each, one of one connection, and one of four.
    let many: Vec<_> = (0..5).map(|i| sender(&mut w, 0, 10 + i, 20, u64::MAX / 2).1).collect();
    let one = sender(&mut w, 1, 20, 1, u64::MAX / 2).1;
    let double = sender(&mut w, 2, 21, 4, u64::MAX / 2).1;
    let look = |w: &mut World| [many.iter().map(|&app| received(w, app)).sum(), received(w, one), received(w, double)];
    let before: [u64; 3] = look(&mut w);
    w.until("traffic", |w| received(w, one) > before[1] + 40 * MB);
    let after = look(&mut w);
    let [many, one, double] = [0, 1, 2].map(|i| after[i] - before[i]);
    // Within what was in flight at the two looks.
    assert!(many.abs_diff(one) <= 4 * FLIGHT && double.abs_diff(2 * one) <= 8 * FLIGHT, "{many} {one} {double}");
    w.assert_clean();
}

#[test]
fn a_rate_bounds_its_tenant_alone_and_all_of_its_programs_together() {
    let mut w = World::new(2, 62);
    set(&mut w, &[terms(1, None, None), terms(1, Some(10 * MB), None)]);
    let slow = [sender(&mut w, 1, 10, 3, u64::MAX / 2).1, sender(&mut w, 1, 11, 1, u64::MAX / 2).1];
    let quick = sender(&mut w, 0, 12, 1, 200 * MB).1;
    let look = |w: &mut World| slow.iter().map(|&app| received(w, app)).sum::<u64>();
    let (before, began) = (look(&mut w), w.now);
    w.until("the other's bytes", |w| received(w, quick) == 200 * MB);
    let others_took = w.now - began;
    assert!(others_took < Duration::from_secs(2), "{others_took:?} is what the slow ones take for 20 MB");
    w.pass(Duration::from_secs(10));
    let (bytes, took) = (look(&mut w) - before, (w.now - began).as_secs_f64());
    let fair = took * 10e6;
    assert!((bytes as f64 / fair - 1.0).abs() < 0.02, "{bytes} bytes in {took} s");
    assert!(w.counter(0, "rate_stops") > 100);
    w.assert_clean();
}

#[test]
fn a_rate_of_work_requests_bounds_operations() {
    let mut u = Use::new(63);
    u.w.hosts[0].engine.set_tenants(vec![terms(1, None, Some(1000))]);
    let began = u.w.now;
    for n in 0..500u64 {
        assert_eq!(u.atomic(Opcode::FetchAdd, 8, 1, 0).value, n);
    }
    let took = (u.w.now - began).as_secs_f64();
    // The burst is 10 ms, ten of them.
    assert!((0.48..0.52).contains(&took), "{took} s for 500 at 1000 in a second");
    u.w.assert_clean();
}

#[test]
fn a_rate_bounds_datagrams() {
    let mut w = World::new(2, 64);
    set(&mut w, &[terms(1, Some(100_000), None)]);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let from = w.bind(0, a, 7, 65536).unwrap();
    w.bind(1, b, 9, 65536).unwrap();
    assert_eq!(w.path(0, a, 1).map(|bytes| bytes >= 1000), Ok(true));
    let (to, began) = (std::net::SocketAddr::new(addr(1), 9), w.now);
    // 50 ms of the rate at once, in one turn, and what comes behind it.
    (0..5).for_each(|_| w.send(0, a, from, to, &[1; 1000]));
    w.until("a turn", |w| w.counter(0, "datagrams_sent") == 5);
    w.send(0, a, from, to, &[1; 1000]);
    w.until("what is behind", |w| w.counter(0, "datagrams_sent") == 6);
    let took = w.now - began;
    assert!((Duration::from_millis(35)..Duration::from_millis(60)).contains(&took), "{took:?}");
    w.assert_clean();
}

/// A program that is stopped by its rate for hours with something to send, and what came before that.
fn stopped(seed: u64) -> (World, AppId, AppId, u64) {
    let mut w = World::new(2, seed);
    let (a, b) = sender(&mut w, 0, 10, 3, 0);
    set(&mut w, &[terms(1, Some(100), None)]);
    let slots: Vec<u32> = w.app(0, a).conns.keys().copied().collect();
    slots.into_iter().for_each(|slot| w.tell(0, a, slot, |c| (c.to_send, c.fin_after) = (MB, true)));
    w.pass(Duration::from_secs(1));
    let before = received(&mut w, b);
    w.pass(Duration::from_secs(20));
    assert_eq!(received(&mut w, b), before, "it owes more than that");
    assert!(before < 3 * MB && w.counter(0, "rate_stops") == 1, "{before}");
    (w, a, b, before)
}

fn all_arrives(w: &mut World, b: AppId) {
    w.until("all of it", |w| received(w, b) == 3 * MB && w.app(1, b).conns.values().all(|c| c.eof));
    w.assert_clean();
}

#[test]
fn another_policy_lets_a_stopped_tenant_go_on() {
    let (mut w, _, b, _) = stopped(65);
    set(&mut w, &[]);
    all_arrives(&mut w, b);
}

#[test]
fn a_stopped_program_of_another_tenant_goes_on_with_that_tenants_terms() {
    let (mut w, a, b, _) = stopped(66);
    // What waits still waits with the tenant that it came with, which the new policy lets look again.
    set(&mut w, &[terms(1, Some(1), None), TenantTerms::default()]);
    w.hosts[0].engine.set_tenant(a, TenantPlace(1));
    all_arrives(&mut w, b);
}

#[test]
fn a_lane_reset_keeps_a_tenant_stopped_and_loses_nothing() {
    let (mut w, _, b, before) = stopped(67);
    let h = &mut w.hosts[0];
    assert!(h.engine.force_lane_error(&mut h.nic, addr(1)));
    w.pass(Duration::from_secs(20));
    assert!(w.counter(0, "lane_resets") > 0 && received(&mut w, b) < 3 * MB, "{before}");
    set(&mut w, &[]);
    all_arrives(&mut w, b);
}

#[test]
fn a_stopped_program_dies_and_leaves_nothing() {
    let (mut w, a, b, _) = stopped(68);
    w.kill(0, a);
    w.until("resets", |w| w.app(1, b).conns.values().all(|c| c.reset.is_some() || c.eof));
    w.kill(1, b);
    w.settle();
    w.assert_clean();
    w.assert_empty();
}

/// Rings count too: a tenant that has what it may have gets no connection more, and another tenant does.
#[test]
fn what_is_registered_for_a_tenant_is_bounded() {
    const MAX: u64 = 1 << 20;
    let mut w = World::new(2, 64);
    set(&mut w, &[terms(1, None, None), TenantTerms { pinned_bytes_max: Some(MAX), ..TenantTerms::default() }]);
    let (a, b, c) = (w.attach(0, 512), w.attach(0, 512), w.attach(0, 512));
    [a, b].into_iter().for_each(|app| w.hosts[0].engine.set_tenant(app, TenantPlace(1)));
    let listener = w.attach(1, 512);
    let to = w.listen(1, listener, 10, 300);
    let mut made = 0;
    let refused = loop {
        match w.connect_wait(0, if made % 2 == 0 { a } else { b }, to, 256 << 10) {
            Ok(_) => made += 1,
            Err(why) => break why,
        }
        assert!(made < 64, "nothing bounds them");
    };
    assert_eq!(refused, Reason::TenantLimit);
    assert!(made > 0);
    let rows = w.hosts[0].engine.apps();
    let pinned: u64 = rows.iter().map(|row| row.pinned_bytes).sum();
    assert!((1..=MAX).contains(&pinned), "{pinned}");
    assert!(w.connect_wait(0, c, to, 256 << 10).is_ok(), "another tenant has no bound");
    w.assert_clean();
}

//! Daemons that die at any step, one or both at once, links and queue pairs that break: connections go on, and each byte
//! arrives once. A failure prints its seed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::Reason;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use shm::{RING_BYTES_MAX, RING_BYTES_MIN, Region};

use crate::world::desk::HostConfig;
use crate::world::{LinkConditions, World, addr};

/// Sizes that a ring may have: each is twice the one before.
const RING_SIZES: u32 = (RING_BYTES_MAX / RING_BYTES_MIN).ilog2() + 1;
/// Bytes of rings that a daemon puts into one chunk, if it is more than one.
const CHUNK_BYTES: u64 = 16 << 20;

fn configure(c: &mut HostConfig) {
    c.engine.peer_return = Duration::from_secs(60);
    c.engine.lane_credits = 16;
    c.engine.quantum_bytes = 8192;
    c.engine.ring_bytes_default = 16 << 10;
    c.engine.ring_bytes_grown = 64 << 10;
}

/// Seeds of one run of the tests; more with `RAAS_TEST_FULL`. `RAAS_RETURNS=FIRST+COUNT` looks at others.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("RAAS_RETURNS").unwrap_or_default();
    let number = |text: &str| text.parse::<u64>().ok();
    match asked.split_once('+').and_then(|(first, count)| Some((number(first)?, number(count)?))) {
        Some((first, count)) => first..first + count,
        None if std::env::var_os("RAAS_TEST_FULL").is_some() => 0..400,
        None => 0..20,
    }
}

#[test]
fn each_byte_arrives_once_whenever_daemons_die() {
    for seed in seeds() {
        let life = std::panic::catch_unwind(|| one_life(seed));
        assert!(life.is_ok(), "seed {seed}: RAAS_RETURNS={seed}+1");
    }
}

/// Nobody else would let it go.
#[test]
fn a_writer_that_a_dead_daemon_held_back_is_let_go_by_the_next() {
    let mut w = World::with(2, 0, configure);
    let apps = [w.attach(0, 64), w.attach(1, 64)];
    let (a, _) = w.pair(apps[0], apps[1], 100, 0);
    w.tell(0, apps[0], a, |c| c.words.tx_hold.store(1, Ordering::Relaxed));
    w.restart(&[0], &configure);
    w.settle();
    assert_eq!(w.app(0, apps[0]).conns[&a].words.tx_hold.load(Ordering::Relaxed), 0);
}

/// Who comes back names how many slots it uses, and lies. The others have their turns meanwhile.
#[test]
fn a_session_comes_back_slot_by_slot_beside_others_work() {
    const SLOTS: u32 = 65_536;
    const LOOKS_PER_TURN: u32 = 256;
    let mut w = World::with(2, 0, configure);
    let apps = [w.attach(0, 64), w.attach(1, 64)];
    let (a, b) = w.pair(apps[0], apps[1], 100, 0);
    let (_, big) = w.attach_again(0, SLOTS);
    let words = |slot| big.session.slot(slot);
    assert!(w.hosts[0].engine.has_returns());
    let is_over = |slot| words(slot).state.load(Ordering::Relaxed) == shm::slot_state::CLOSED;
    let (mut turns, mut ended, mut moved) = (0, 0, 0);
    while w.hosts[0].engine.has_returns() {
        // Another connection carries a message in each turn.
        if turns % 64 == 0 {
            w.tell(0, apps[0], a, |c| c.to_send += 100);
            moved += 100;
        }
        w.step();
        turns += 1;
        let now = (ended..SLOTS).take_while(|slot| is_over(*slot)).count() as u32;
        assert!(now <= 4 * LOOKS_PER_TURN, "{now} slots in one step of the world");
        ended += now;
    }
    assert_eq!(ended, SLOTS);
    assert!(turns >= 2 * SLOTS / LOOKS_PER_TURN, "{turns} steps");
    w.settle();
    assert_eq!(w.app(1, apps[1]).conns[&b].received, moved, "the others' bytes");
    // It is an application as any other now: a slot that it gives back is free.
    let words = words(5);
    words.app_flags.store(shm::app_flag::CLOSED, Ordering::Release);
    big.session.a2e(0).ring(5);
    w.hosts[0].wake();
    w.settle();
    assert_eq!(words.state.load(Ordering::Acquire), shm::slot_state::FREE);
}

/// One that goes before all of it is taken back is gone like any other, and each of its tickets is told once.
#[test]
fn an_application_that_leaves_while_it_comes_back_leaves_nothing() {
    let mut w = World::with(2, 0, configure);
    let (app, _) = w.attach_again(0, 65_536);
    for _ in 0..20 {
        w.step();
    }
    let now = w.now;
    let host = &mut w.hosts[0];
    host.engine.detach(now, &mut host.nic, app, Reason::PeerAppDied);
    host.wake();
    w.settle();
    assert!(!w.hosts[0].engine.has_returns());
    assert!(w.hosts[0].gone.contains(&app));
}

/// Chunks with as many rings as a daemon makes are taken back; one more is work that no daemon asked for, and the
/// connections in it end.
#[test]
fn a_chunk_that_comes_back_has_no_more_rings_than_a_daemon_makes() {
    let sizes = (0..RING_SIZES).map(|class| RING_BYTES_MIN << class).map(|bytes| (bytes, (bytes, bytes)));
    for (asked, (first, grown)) in sizes.chain([(0, (16 << 10, 64 << 10))]) {
        let most = CHUNK_BYTES / u64::from(first);
        let (first, grown) = (u64::from(first), u64::from(grown));
        for (bytes, goes_on) in [
            (grown, true),
            (most * grown - 1, true),
            (most * grown, true),
            ((most + 1) * grown - 1, true),
            ((most + 1) * grown, false),
            (2 * most * grown, false),
        ] {
            let end = end_of_one_that_brings(asked, bytes);
            let expected = if goes_on { None } else { Some(Reason::DaemonLost) };
            assert_eq!(end, expected, "{bytes} bytes with rings of {first} to {grown}");
        }
    }
}

/// How a connection ends whose program brings chunks of so many bytes along; none: it goes on.
fn end_of_one_that_brings(ring: u32, bytes: u64) -> Option<Reason> {
    let mut w = World::with(2, 0, configure);
    let apps = [w.attach(0, 64), w.attach(1, 64)];
    let (a, b) = w.pair(apps[0], apps[1], 100, ring);
    w.settle();
    let app = w.app(0, apps[0]);
    let chunks: Vec<u32> = app.chunks.keys().copied().collect();
    for chunk in chunks {
        app.chunks.insert(chunk, Region::anonymous(usize::try_from(bytes).unwrap()).unwrap());
    }
    app.reopen(a);
    w.restart(&[0], &configure);
    w.tell(0, apps[0], a, |c| c.to_send += 100);
    w.until("it goes on, or ends", |w| {
        w.app(0, apps[0]).conns[&a].reset.is_some() || w.app(1, apps[1]).conns[&b].received == 100
    });
    let end = w.app(0, apps[0]).conns[&a].reset;
    let gone = w.app(0, apps[0]).chunks_gone.len();
    assert_eq!(gone, if end.is_some() { 2 } else { 0 }, "chunks that were not taken");
    end
}

fn one_life(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    // Even seeds of the world are software NICs, and those that come later are too.
    let mut w = World::with(2, 2 * seed, configure);
    w.conditions = LinkConditions { loss: rng.random_range(0..20), duplicate: 10, reorder: rng.random_range(0..40) };
    let apps = [w.attach(0, 64), w.attach(1, 64)];
    let count = rng.random_range(1..6);
    let mut ends = Vec::new();
    for n in 0..count {
        let ring = if rng.random_bool(0.5) { 0 } else { RING_BYTES_MIN << rng.random_range(0..RING_SIZES) };
        let (a, b) = w.pair(apps[0], apps[1], 100 + n, ring);
        ends.extend([(0, apps[0], a), (1, apps[1], b)]);
    }
    for &(host, app, slot) in &ends {
        let bytes = rng.random_range(0..1_200_000);
        w.tell(host, app, slot, |c| (c.to_send, c.fin_after) = (bytes, true));
    }
    let mut resets = 0;
    for _ in 0..rng.random_range(3..14) {
        for _ in 0..rng.random_range(0..1_500) {
            w.step();
        }
        match rng.random_range(0..8) {
            0 | 1 => w.restart(&[0], &configure),
            2 | 3 => w.restart(&[1], &configure),
            4 => w.restart(&[0, 1], &configure),
            5 => w.restart(&[1, 0], &configure),
            6 => w.break_link(0, 1, Reason::PeerLost),
            _ if resets < 3 => {
                resets += 1;
                let h = &mut w.hosts[usize::from(rng.random_bool(0.5))];
                let peer = if h.addr == addr(0) { addr(1) } else { addr(0) };
                h.engine.force_lane_error(&mut h.nic, peer);
            }
            _ => {}
        }
    }
    let is_done = |w: &mut World, (host, app, slot): (usize, engine::AppId, u32)| {
        let conn = &w.app(host, app).conns[&slot];
        assert_eq!(conn.reset, None, "{:?}", conn.connection);
        conn.eof && conn.sent == conn.to_send
    };
    w.until("every byte", |w| ends.iter().all(|end| is_done(w, *end)));
    for pair in ends.chunks(2) {
        let of = |w: &mut World, (host, app, slot)| {
            let conn = &w.app(host, app).conns[&slot];
            (conn.sent, conn.received)
        };
        let (a, b) = (of(&mut w, pair[0]), of(&mut w, pair[1]));
        assert_eq!((a.0, a.1), (b.1, b.0));
    }
    for &(host, app, slot) in &ends {
        w.tell(host, app, slot, |c| c.give_back(0));
    }
    // A death may also fall on what is only still to be confirmed.
    if rng.random_bool(0.5) {
        for _ in 0..rng.random_range(0..300) {
            w.step();
        }
        w.restart(&[usize::from(rng.random_bool(0.5))], &configure);
    }
    let is_over = |engine: &engine::Engine| engine.connections().is_empty() && !engine.has_returns();
    w.until("both ends are over", |w| w.hosts.iter().all(|h| is_over(&h.engine)));
    w.settle();
    w.assert_clean();
    w.assert_empty();
}

/// The peer's next daemon may have fewer engines, and no lane for these connections: each wish for it is answered by its
/// loss, so one at once would be followed by the next without end.
#[test]
fn a_lane_that_is_lost_again_is_not_wanted_at_once() {
    let mut w = World::with(2, 0, configure);
    let apps = [w.attach(0, 64), w.attach(1, 64)];
    w.pair(apps[0], apps[1], 100, 0);
    w.settle();
    let now = w.now;
    let h = &mut w.hosts[0];
    let mut lost = || {
        h.engine.lane_lost(now, &mut h.nic, addr(1), Reason::PeerLost);
        let said = std::iter::from_fn(|| h.engine.poll_event());
        said.filter(|event| matches!(event, engine::Event::PeerWanted { .. })).count()
    };
    assert_eq!([lost(), lost(), lost()], [1, 0, 0]);
    assert!(h.engine.deadline().is_some_and(|at| at > now), "it is wanted again later");
}

//! Throughput over distance and loss, in virtual time: a line of 1 Gbit/s with a queue of 100 packets.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // It prints what docs/inside/roce.md speaks of.

use std::time::Duration;

use crate::pair::*;
use verbs::*;

/// Bytes a second of the line.
const LINE: u64 = 125_000_000;
const MESSAGE: u32 = 64 * 1024;

/// What came of one run.
#[derive(Debug)]
struct Figures {
    /// Of the line's rate, in hundredths, payload only.
    percent: f64,
    /// Packets sent for each packet that was needed.
    sent_ratio: f64,
    timeouts: u64,
}

fn line(round_trip: Duration, loss: u32) -> Setup {
    let conditions = LinkConditions { loss, ..LinkConditions::CALM };
    Setup { conditions, delay: round_trip / 2, rate: Some(LINE), queue_packets: 100, ..Setup::default() }
}

fn run(setup: Setup, to_own: bool, span: Duration) -> Figures {
    let mut world = World::new(setup);
    let budget = to_own.then_some(4 << 20);
    let wish = Wish { max_wr: 2_048, cqe: 8_192, budget, ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&wish, &wish]);
    let end = world.now + span;
    let (mut posted, mut done) = (0_u64, 0_u64);
    while world.now < end {
        while posted - done < 2_000 {
            a.send(&mut world, posted, SendOp::Write(b.remote(0)), 0, MESSAGE);
            posted += 1;
        }
        for _ in 0..64 {
            if world.now < end {
                world.step();
            }
        }
        for completion in a.poll(&mut world) {
            assert_eq!(completion.status, Status::Success, "after {:?}", world.now);
            done += 1;
        }
    }
    let bytes = done * u64::from(MESSAGE);
    let needed = (bytes / 1024).max(1);
    let counters = world.nics[0].counters_detail();
    Figures {
        percent: bytes as f64 / span.as_secs_f64() / LINE as f64 * 100.0,
        sent_ratio: counters.tx_packets as f64 / needed as f64,
        timeouts: counters.timeouts,
    }
}

/// `cargo nextest run -p roce --test it distance:: --no-capture` prints it.
#[test]
fn throughput_over_distance_and_loss() {
    println!("round trip, loss %, to our own: % of the line, packets sent per packet, timeouts");
    for (to_own, millis, span, least) in [
        (true, 0.1, 0.1, [60, 60, 45]),
        (true, 1.0, 0.3, [65, 50, 15]),
        (true, 10.0, 1.0, [55, 6, 1]),
        (true, 100.0, 4.0, [15, 0, 0]),
        (false, 0.1, 0.1, [60, 60, 45]),
        (false, 10.0, 1.0, [55, 6, 1]),
    ] {
        for (loss, least) in [0, 1, 10].into_iter().zip(least) {
            let f = run(line(Duration::from_secs_f64(millis / 1e3), loss), to_own, Duration::from_secs_f64(span));
            let percent_lost = f64::from(loss) / 10.0;
            println!(
                "{millis:>5} ms {percent_lost:>4} % {to_own:>5}: {:6.2} % {:6.2} {:4}",
                f.percent, f.sent_ratio, f.timeouts
            );
            assert!(f.percent >= f64::from(least), "{millis} ms, loss {percent_lost} %, {to_own}: {f:?}");
        }
    }
}

/// A queue that marks what finds 20 packets before it.
#[test]
fn throughput_over_distance_where_a_long_queue_marks() {
    for (millis, span, least) in [(0.1, 0.1, 85), (1.0, 0.3, 70), (10.0, 1.0, 65), (100.0, 4.0, 15)] {
        let setup = Setup { mark_above: 20, ..line(Duration::from_secs_f64(millis / 1e3), 0) };
        let f = run(setup, true, Duration::from_secs_f64(span));
        println!("{millis:>5} ms, marks: {:6.2} % {:6.2} {:4}", f.percent, f.sent_ratio, f.timeouts);
        assert!(f.percent >= f64::from(least), "{millis} ms: {f:?}");
    }
}

/// A round trip longer than the ACK timeout is learned from the first flight, and the timeout follows it.
#[test]
fn a_round_trip_longer_than_the_timeout_is_learned() {
    for to_own in [true, false] {
        let f = run(line(Duration::from_millis(100), 0), to_own, Duration::from_secs(2));
        assert!(f.timeouts <= 1, "{f:?}");
    }
}

/// An atomic is as long as its answer, and not as a packet of the path MTU: as many as may be outstanding are, in each
/// round trip.
#[test]
fn atomics_are_paced_by_their_own_bytes() {
    const OUTSTANDING: u8 = 200;
    let round_trip = Duration::from_millis(2);
    let limits = roce::NicLimits { max_rd_atomic: OUTSTANDING, ..Default::default() };
    let mut world = World::new(Setup { limits, delay: round_trip / 2, ..Setup::default() });
    let wish = Wish { rd_atomic: OUTSTANDING, budget: Some(4 << 20), ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&wish, &wish]);
    let span = Duration::from_secs(1);
    let end = world.now + span;
    let (mut posted, mut done) = (0_u64, 0_u64);
    while world.now < end {
        while posted - done < 256 {
            a.send(&mut world, posted, SendOp::FetchAdd { remote: b.remote(0), add: 1 }, 8, 8);
            posted += 1;
        }
        world.step();
        done += a.poll(&mut world).iter().filter(|c| c.status == Status::Success).count() as u64;
    }
    let most = u64::from(OUTSTANDING) * (span.as_micros() / round_trip.as_micros()) as u64;
    assert!(done * 10 >= most * 7, "{done} of at most {most}");
}

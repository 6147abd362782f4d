//! Throughput over distance and loss, in virtual time: a line of 1 Gbit/s with a queue of 100 packets.
#![allow(clippy::disallowed_macros)] // It prints the table of docs/roce.md.

mod pair;

use std::time::Duration;

use pair::*;
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

fn run(round_trip: Duration, loss: u32, to_own: bool, span: Duration) -> Figures {
    let weather = Weather { loss, ..Weather::CALM };
    let setup = Setup { weather, delay: round_trip / 2, rate: Some(LINE), queue_packets: 100, ..Setup::default() };
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

/// `cargo nextest run -p roce --test distance --no-capture table` prints it.
#[test]
fn table() {
    println!("round trip, loss %, to our own: % of the line, packets sent per packet, timeouts");
    for to_own in [true, false] {
        for (millis, span) in [(1, 2), (10, 4), (100, 12)] {
            for loss in [0, 1, 10, 50] {
                let f = run(Duration::from_millis(millis), loss, to_own, Duration::from_secs(span));
                let loss = f64::from(loss) / 10.0;
                println!(
                    "{millis:>4} ms {loss:>4} % {to_own:>5}: {:6.2} % {:6.2} {:4}",
                    f.percent, f.sent_ratio, f.timeouts
                );
            }
        }
    }
}

//! The table of docs/proof/benchmarks.md about many hosts that send to one: `cargo run --release -p sim --example incast`.

use std::time::Duration;

use sim::incast::{Incast, Shares};
use sim::plan::Switch;

const SEEDS: u64 = 9;
const BYTES: u64 = 2 << 20;
const RATE_BITS_PER_S: u64 = 1_000_000_000;
const DELAY: Duration = Duration::from_micros(20);
const CASES: [(usize, u32); 6] = [(1, 100), (2, 100), (4, 100), (16, 100), (16, 1000), (16, 20_000)];

fn main() {
    println!(
        "| senders | packets of the queue | first and last finished, ms | share of the slowest | fairness | port used | dropped | lane resets |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (senders, packets) in CASES {
        let switch = Switch::of_rate(RATE_BITS_PER_S, packets);
        let runs: Vec<Shares> = (1..=SEEDS)
            .map(|seed| Incast { seed, senders, bytes: BYTES, switch, delay: DELAY }.run())
            .inspect(|run| assert_eq!(run.violations, []))
            .collect();
        let ms = |time: Option<Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        let of = |figure: &dyn Fn(&Shares) -> f64| median(runs.iter().map(figure).collect());
        println!(
            "| {senders} | {packets} | {:.0} to {:.0} | {:.2} | {:.2} | {:.0}% | {:.1}% | {:.0} |",
            of(&|run| ms(run.first())),
            of(&|run| ms(run.last())),
            of(&Shares::slowest),
            of(&Shares::fairness),
            of(&|run| run.used * 100.0),
            of(&|run| run.dropped as f64 / run.packets as f64 * 100.0),
            of(&|run| run.resets as f64),
        );
    }
}

/// NaN if one of them is.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    if values.iter().any(|value| value.is_nan()) { f64::NAN } else { values[values.len() / 2] }
}

//! Round trips timed in batches, and one by one.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

/// Round trips that are timed together where the clock itself would count.
const BATCH: u32 = 64;
/// Tenths of the time that warm up, that are measured in batches, and that are measured one by one.
const TENTHS: [u32; 3] = [1, 5, 4];

/// Runs `trip` for so long: half round trips in microseconds, as JSON.
pub(crate) fn measure(duration: Duration, mut trip: impl FnMut() -> Result<()>) -> Result<Value> {
    let phase = |tenths: u32| Instant::now() + duration * tenths / 10;
    let [warm_up, batched, single] = TENTHS;
    let end = phase(warm_up);
    while Instant::now() < end {
        trip()?;
    }
    let mut means = Vec::new();
    let end = phase(batched);
    // At least one, also where a busy machine took the whole time away.
    while means.is_empty() || Instant::now() < end {
        let begin = Instant::now();
        for _ in 0..BATCH {
            trip()?;
        }
        means.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(2 * BATCH));
    }
    let mut trips = Vec::new();
    let end = phase(single);
    let mut before = Instant::now();
    while trips.is_empty() || before < end {
        trip()?;
        let now = Instant::now();
        trips.push((now - before).as_secs_f64() * 1e6 / 2.0);
        before = now;
    }
    let at = |values: &mut Vec<f64>, share: f64| {
        values.sort_by(f64::total_cmp);
        values.get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1))).copied()
    };
    Ok(json!({
        // The median of means of batches: what a fast path costs without the clock.
        "half_rtt_us": at(&mut means, 0.5),
        "p50_us": at(&mut trips, 0.5),
        "p99_us": at(&mut trips, 0.99),
        "trips": trips.len(),
    }))
}

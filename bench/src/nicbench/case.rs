//! What is measured: the cases and how a run's raw result becomes one value.

use serde::{Deserialize, Serialize};

/// Message of the latency cases: perftest's default.
const TINY_BYTES: u32 = 2;
/// Message of the throughput cases.
const LARGE_BYTES: u32 = 64 << 10;

/// Which verbs a case uses, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Load {
    /// SEND to and fro; each side polls its CQ.
    SendPingPong,
    /// WRITE to and fro; each side watches the last byte of its memory, and polls its CQ while it does.
    WritePingPong,
    /// WRITEs, so many outstanding.
    WriteStream,
    /// READs, so many outstanding.
    ReadStream,
    /// FETCH_AND_ADD on one word, so many outstanding.
    FetchAddStream,
}

impl Load {
    /// Whether messages go to and fro one at a time.
    pub(crate) fn is_ping_pong(self) -> bool {
        matches!(self, Self::SendPingPong | Self::WritePingPong)
    }
}

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    /// Bytes of a message.
    pub(crate) bytes: u32,
    /// Work requests outstanding.
    pub(crate) depth: u32,
    pub(crate) unit: &'static str,
}

/// The cases, in the order in which they run.
pub(crate) const CASES: &[Case] = &[
    Case { name: "send 2 B latency", load: Load::SendPingPong, bytes: TINY_BYTES, depth: 1, unit: "us" },
    Case { name: "write 2 B latency", load: Load::WritePingPong, bytes: TINY_BYTES, depth: 1, unit: "us" },
    Case {
        name: "write 64 KiB throughput",
        load: Load::WriteStream,
        bytes: LARGE_BYTES,
        depth: 32,
        unit: "gbit_per_s",
    },
    Case { name: "read 64 KiB throughput", load: Load::ReadStream, bytes: LARGE_BYTES, depth: 32, unit: "gbit_per_s" },
    Case { name: "fetch-add rate, depth 64", load: Load::FetchAddStream, bytes: 8, depth: 64, unit: "ops_per_s" },
];

impl Case {
    /// Whether the size of packets matters.
    pub(crate) fn is_throughput(&self) -> bool {
        matches!(self.load, Load::WriteStream | Load::ReadStream)
    }
}

/// What one run gave.
#[derive(Debug, Clone)]
pub(crate) enum Sample {
    /// Each round trip, in nanoseconds.
    RoundTrips(Vec<u64>),
    /// Operations and the seconds that they took together.
    Stream { operations: u64, seconds: f64 },
}

impl Sample {
    /// Seconds of one operation on average, to choose how many operations fill the time.
    pub(crate) fn seconds_each(&self) -> f64 {
        match self {
            Self::RoundTrips(ns) => ns.iter().sum::<u64>() as f64 / 1e9 / ns.len().max(1) as f64,
            Self::Stream { operations, seconds } => seconds / (*operations).max(1) as f64,
        }
    }

    /// The value in the case's unit: the median half round trip, or the rate.
    pub(crate) fn value(&self, case: &Case) -> f64 {
        match self {
            Self::RoundTrips(_) => self.half_round_trip_us(50),
            Self::Stream { operations, seconds } => {
                let per_second = *operations as f64 / seconds;
                if case.unit == "gbit_per_s" { per_second * f64::from(case.bytes) * 8.0 / 1e9 } else { per_second }
            }
        }
    }

    /// A percentile of the half round trips; 0 for a stream.
    pub(crate) fn half_round_trip_us(&self, percent: usize) -> f64 {
        let Self::RoundTrips(ns) = self else { return 0.0 };
        let mut sorted = ns.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) * percent / 100).map_or(0.0, |ns| *ns as f64 / 2000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_halved_and_ranked() {
        let sample = Sample::RoundTrips((1..=100).rev().map(|n| n * 2000).collect());
        assert_eq!(sample.value(&CASES[0]), 50.0);
        assert_eq!(sample.half_round_trip_us(99), 99.0);
        assert!((sample.seconds_each() - 101e-6).abs() < 1e-9);
    }

    #[test]
    fn streams_become_rates() {
        let sample = Sample::Stream { operations: 1000, seconds: 0.5 };
        assert_eq!(sample.value(&CASES[4]), 2000.0);
        assert!((sample.value(&CASES[2]) - 2000.0 * 65_536.0 * 8.0 / 1e9).abs() < 1e-9);
    }
}

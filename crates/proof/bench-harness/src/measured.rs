//! What one run of one side tells.

use serde_json::Value;

/// What one run of one side measured; what it did not measure is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) half_rtt_us: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) gbit_per_s: Option<f64>,
    pub(crate) msgs_per_s: Option<f64>,
    pub(crate) cpu_seconds_per_gb: Option<f64>,
}

impl Measured {
    /// What a program of ours printed.
    pub(crate) fn of_report(report: &Value) -> Self {
        let value = |key: &str| report[key].as_f64();
        Self {
            half_rtt_us: value("half_rtt_us"),
            p50_us: value("p50_us"),
            p99_us: value("p99_us"),
            gbit_per_s: value("gbit_per_s"),
            msgs_per_s: value("msgs_per_s"),
            cpu_seconds_per_gb: value("cpu_seconds_per_gb"),
        }
    }
}

//! What one run of one side tells.

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

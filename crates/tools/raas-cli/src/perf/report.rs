//! The figures of `raas perf`, as one JSON object or as a few lines.

use serde_json::{Value, json};

use super::client::{Load, Outcome};
use super::wire::Kind;
use terminal::Failure;
use terminal::out;
use terminal::table;
use transport::{default_congestion, tcp_congestion};

/// Prints the outcome on stdout.
pub(crate) fn print(load: Load, outcome: &Outcome, as_json: bool) -> Result<(), Failure> {
    let told = if as_json { out::line(to_json(load, outcome)) } else { out::print(to_text(load, outcome)) };
    told.map(drop)
}

/// The congestion control, where kernel TCP ran.
fn congestion(o: &Outcome) -> Option<String> {
    match (o.path, o.fallback) {
        ("tcp", None) => tcp_congestion().ok().map(str::to_owned),
        ("tcp", Some(_)) => default_congestion().ok(),
        _ => None,
    }
}

struct Figures {
    gbit_per_s: f64,
    msgs_per_s: f64,
    /// All processor time that is known, by gigabyte (10^9 bytes) of payload.
    cpu_seconds_per_gb: Option<f64>,
}

fn figures(load: Load, o: &Outcome) -> Figures {
    let seconds = o.elapsed.as_secs_f64().max(1e-9);
    let cpu =
        o.cpu_client + o.cpu_server + o.cpu_client_daemon.unwrap_or_default() + o.cpu_server_daemon.unwrap_or_default();
    let gigabytes = o.payload_bytes as f64 / 1e9;
    Figures {
        gbit_per_s: gigabytes * 8.0 / seconds,
        msgs_per_s: o.payload_bytes as f64 / f64::from(load.size_bytes) / seconds,
        cpu_seconds_per_gb: (o.payload_bytes > 0).then(|| cpu.as_secs_f64() / gigabytes),
    }
}

fn test_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Latency => "lat",
        Kind::Bandwidth => "bw",
        Kind::Rate => "rate",
    }
}

fn to_json(load: Load, o: &Outcome) -> Value {
    let f = figures(load, o);
    // A test that measures no latency says null, not zero.
    let quantile = |q: f64| json!(o.half_round_trips.us(q));
    let seconds = |d: Option<std::time::Duration>| d.map(|d| d.as_secs_f64());
    json!({
        "schema": "raas.perf/1",
        "test": test_name(load.kind),
        "path": o.path,
        "fallback": o.fallback.map(|cause| cause.to_string()),
        "tcp_congestion": congestion(o),
        "size_bytes": load.size_bytes,
        "connections": load.connections,
        "seconds": o.elapsed.as_secs_f64(),
        "bytes": o.payload_bytes,
        "gbit_per_s": f.gbit_per_s,
        "msgs_per_s": f.msgs_per_s,
        "p50_us": quantile(0.5),
        "p90_us": quantile(0.9),
        "p99_us": quantile(0.99),
        "p999_us": quantile(0.999),
        "cpu_seconds_per_gb": f.cpu_seconds_per_gb,
        "cpu_client_seconds": seconds(Some(o.cpu_client)),
        "cpu_server_seconds": seconds(Some(o.cpu_server)),
        "cpu_client_daemon_seconds": seconds(o.cpu_client_daemon),
        "cpu_server_daemon_seconds": seconds(o.cpu_server_daemon),
        "histogram": o.half_round_trips.rows(),
    })
}

fn to_text(load: Load, o: &Outcome) -> String {
    let f = figures(load, o);
    let mut out = format!(
        "{}: path {}{}, {} bytes, {} connections, {:.1} s\n",
        test_name(load.kind),
        o.path,
        o.fallback.map_or(String::new(), |cause| format!(" ({cause})")),
        table::grouped(u64::from(load.size_bytes)),
        table::grouped(u64::from(load.connections)),
        o.elapsed.as_secs_f64(),
    );
    let us = [0.5, 0.9, 0.99, 0.999].map(|q| o.half_round_trips.us(q));
    if let [Some(p50), Some(p90), Some(p99), Some(p999)] = us {
        out +=
            &format!("  half round trip   p50 {p50:.1} us   p90 {p90:.1} us   p99 {p99:.1} us   p99.9 {p999:.1} us\n");
    }
    out += &format!(
        "  {:.2} Gbit/s   {} messages/s   {}\n",
        f.gbit_per_s,
        table::grouped(f.msgs_per_s as u64),
        table::bytes(o.payload_bytes)
    );
    if let Some(cpu) = f.cpu_seconds_per_gb {
        out += &format!("  {cpu:.2} CPU seconds per GB (both programs{})\n", daemons_counted(o));
    }
    out
}

fn daemons_counted(o: &Outcome) -> &'static str {
    match (o.cpu_client_daemon.is_some(), o.cpu_server_daemon.is_some()) {
        (true, true) => " and both daemons",
        (true, false) => " and this host's daemon",
        (false, true) => " and the server's daemon",
        (false, false) => "",
    }
}

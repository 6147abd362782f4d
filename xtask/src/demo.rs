//! Stage `demo`: `raas demo --json`, with `--full` as `cargo run --release` builds it for a user, and a check of what it says about
//! itself. Owns the list of keys that bind; each group of demands is one case.

use crate::context::Context;
use crate::product;
use anyhow::{Context as _, Result};
use harness::child::{self, Ended, Stream};
use harness::tally::Tally;
use serde_json::Value;
use std::time::{Duration, Instant};

/// The demo itself; it has its own, shorter limits inside.
const DEMO_LIMIT: Duration = Duration::from_secs(15 * 60);
/// The least the demo must carry.
const BYTES_MIN: u64 = 200_000_000;
const CONNECTIONS_MIN: u64 = 1000;
/// At least four on each of the two hosts.
const APPLICATIONS_MIN: u64 = 8;
/// Figures of RaaS that stand beside one of kernel TCP, whose key is `tcp_` and this.
const COMPARED: &[&str] = &[
    "seconds",
    "gbit_per_s",
    "p50_us",
    "p99_us",
    "msgs_per_s",
    "open_seconds",
    "app_descriptors_max",
    "one_host_p50_us",
    "one_host_p99_us",
    "one_host_msgs_per_s",
    "run_p50_us",
    "run_p99_us",
];
const KEYS: &[&str] = &[
    "schema",
    "verified",
    "connections",
    "application_processes",
    "files",
    "bytes",
    "seconds",
    "gbit_per_s",
    "tcp_gbit_per_s",
    "p50_us",
    "p99_us",
    "rc_qps_per_host",
    "cqs_per_host",
    "srqs_per_host",
    "daemon_rss_bytes",
    "daemon_rss_idle_bytes",
    "message_bytes",
    "lane_reset",
    "kill",
    "tcp_kill",
    "daemon_kill",
    "run_path",
    "tcp_wins",
    "tcp_congestion",
    "retransmits_per_host",
    "probes_per_host",
    "duplicates_per_host",
    "total_seconds",
    "errors",
];

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    let begin = Instant::now();
    let raas = product::ready(&context.repo, context.full)?.join("raas");
    tally.case("demo: it is built", begin.elapsed(), &[]);
    let raas = raas.to_str().context("the path of the target directory is not UTF-8")?;
    let demo = child::run_quiet(&mut context.repo.command(raas, &["demo", "--json"]), DEMO_LIMIT)?;
    let report = serde_json::from_str::<Value>(demo.text(Stream::Out).trim());
    tally.case("demo: ends with exit code 0", demo.took, &ending(&demo));
    match report {
        Ok(report) => {
            println!("     {report}");
            tally.check("demo: one JSON object with every key", || Ok(missing(&report)));
            tally.check("demo: everything verified", || Ok(unverified(&report)));
            tally.check("demo: one RC queue pair and one SRQ per host", || Ok(unshared(&report)));
            tally.check("demo: carries what it promises", || Ok(too_small(&report)));
            tally.check("demo: every figure stands beside kernel TCP's", || Ok(unpaired(&report)));
            tally.check("demo: a broken queue pair loses nothing", || Ok(broken_lane(&report)));
            tally.check("demo: a killed application costs its own connections alone", || Ok(killed(&report)));
            tally.check("demo: a killed daemon loses nothing", || Ok(killed_daemon(&report)));
            tally.check("demo: a TCP program runs over shared memory", || Ok(unchanged_program(&report)));
        }
        Err(error) => tally.case("demo: one JSON object with every key", demo.took, &[error.to_string()]),
    }
    Ok(tally)
}

fn ending(demo: &Ended) -> Vec<String> {
    if demo.success() {
        return vec![];
    }
    let mut findings = vec![demo.describe()];
    findings.extend(demo.text(Stream::Err).lines().rev().take(30).map(str::to_owned));
    findings[1..].reverse();
    findings
}

fn missing(report: &Value) -> Vec<String> {
    let mut findings: Vec<String> =
        KEYS.iter().filter(|key| report.get(**key).is_none()).map(|key| format!("no key {key}")).collect();
    if report["schema"] != "raas.demo/1" {
        findings.push(format!("schema is {}, not raas.demo/1", report["schema"]));
    }
    findings
}

fn unverified(report: &Value) -> Vec<String> {
    let mut findings = vec![];
    if report["verified"] != true {
        findings.push(format!("verified is {}", report["verified"]));
    }
    if report["errors"].as_array().is_none_or(|errors| !errors.is_empty()) {
        findings.push(format!("errors is {}", report["errors"]));
    }
    findings
}

/// Values per host are an array of two, or one number that holds for both.
fn unshared(report: &Value) -> Vec<String> {
    let both = |value: &Value| *value == serde_json::json!([1, 1]) || *value == 1;
    let mut findings = vec![];
    if report["rc_qps_per_host"] != serde_json::json!([1, 1]) {
        findings.push(format!("rc_qps_per_host is {}, not [1,1]", report["rc_qps_per_host"]));
    }
    if !both(&report["srqs_per_host"]) {
        findings.push(format!("srqs_per_host is {}, not 1 each", report["srqs_per_host"]));
    }
    findings
}

fn too_small(report: &Value) -> Vec<String> {
    let floors = [("bytes", BYTES_MIN), ("connections", CONNECTIONS_MIN), ("application_processes", APPLICATIONS_MIN)];
    let mut findings: Vec<String> = floors
        .iter()
        .filter(|(key, floor)| report[*key].as_u64().is_none_or(|value| value < *floor))
        .map(|(key, floor)| format!("{key} is {}, below {floor}", report[*key]))
        .collect();
    for key in ["seconds", "gbit_per_s", "tcp_gbit_per_s", "p50_us", "p99_us", "files"] {
        if report[key].as_f64().is_none_or(|value| value <= 0.0) {
            findings.push(format!("{key} is {}, not a positive number", report[key]));
        }
    }
    findings
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|value| value > 0.0)
}

fn unpaired(report: &Value) -> Vec<String> {
    let both = COMPARED.iter().flat_map(|key| [(*key).to_owned(), format!("tcp_{key}")]);
    let missing = both.filter(|key| !is_positive(&report[key]));
    let mut findings: Vec<String> =
        missing.map(|key| format!("{key} is {}, not a positive number", report[&key])).collect();
    if !["cubic", "reno"].iter().any(|name| report["tcp_congestion"] == *name) {
        findings.push(format!("tcp_congestion is {}", report["tcp_congestion"]));
    }
    findings
}

fn broken_lane(report: &Value) -> Vec<String> {
    let reset = &report["lane_reset"];
    let mut findings = vec![];
    if reset["connections"] != report["connections"] || reset["connections_lost"] != 0 {
        findings.push(format!("lost {} of {} connections", reset["connections_lost"], reset["connections"]));
    }
    if !is_positive(&reset["bytes"]) {
        findings.push(format!("{} bytes flowed", reset["bytes"]));
    }
    let counted = reset["resets_per_host"].as_array();
    if counted.is_none_or(|hosts| hosts.len() != 2 || !hosts.iter().all(is_positive)) {
        findings.push(format!("the daemons count {} resets", reset["resets_per_host"]));
    }
    findings
}

fn killed(report: &Value) -> Vec<String> {
    let mut findings = vec![];
    for side in ["kill", "tcp_kill"] {
        let kill = &report[side];
        if !is_positive(&kill["connections_of_killed"]) || kill["connections_lost"] != kill["connections_of_killed"] {
            findings.push(format!("{side}: lost {} of {}", kill["connections_lost"], kill["connections_of_killed"]));
        }
        if kill["connections"] != report["connections"] || !is_positive(&kill["bytes"]) {
            findings.push(format!("{side}: {} bytes on {} connections", kill["bytes"], kill["connections"]));
        }
    }
    findings
}

fn killed_daemon(report: &Value) -> Vec<String> {
    let death = &report["daemon_kill"];
    let mut findings = vec![];
    if death["connections"] != report["connections"] || death["connections_lost"] != 0 {
        findings.push(format!("lost {} of {} connections", death["connections_lost"], death["connections"]));
    }
    if death["connections_adopted"] != report["connections"] {
        findings.push(format!("the next daemon took over {} connections", death["connections_adopted"]));
    }
    if !is_positive(&death["bytes"]) || !is_positive(&death["pause_ms"]) {
        findings.push(format!("{} bytes flowed, with a pause of {} ms", death["bytes"], death["pause_ms"]));
    }
    findings
}

/// Its figures are among those that stand beside kernel TCP's.
fn unchanged_program(report: &Value) -> Vec<String> {
    match &report["run_path"] {
        path if path == "shm" => vec![],
        path => vec![format!("run_path is {path}, not shm")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Value {
        let kill = json!({"connections": 1000, "connections_of_killed": 250, "connections_lost": 250, "bytes": 5});
        let mut report = json!({
            "schema": "raas.demo/1", "verified": true, "connections": 1000, "application_processes": 8, "files": 300,
            "bytes": 210_000_000_u64, "seconds": 2.5, "gbit_per_s": 1.0, "tcp_gbit_per_s": 9.0, "p50_us": 30.0,
            "p99_us": 90.0, "rc_qps_per_host": [1, 1], "cqs_per_host": [1, 1], "srqs_per_host": [1, 1],
            "daemon_rss_bytes": [1, 1], "daemon_rss_idle_bytes": [1, 1], "errors": [], "message_bytes": 64,
            "lane_reset": {"connections": 1000, "connections_lost": 0, "bytes": 5, "resets_per_host": [1, 1]},
            "daemon_kill": {
                "connections": 1000, "connections_lost": 0, "connections_adopted": 1000, "bytes": 5, "pause_ms": 90.0
            },
            "run_path": "shm", "kill": kill, "tcp_kill": kill, "tcp_wins": ["p50_us"], "tcp_congestion": "cubic", "total_seconds": 12.5,
            "retransmits_per_host": [3, 4], "probes_per_host": [3, 4], "duplicates_per_host": [4, 3]
        });
        for key in COMPARED {
            report[*key] = json!(2.5);
            report[format!("tcp_{key}")] = json!(1.5);
        }
        report
    }

    fn findings(report: &Value) -> usize {
        let own = [broken_lane, killed, killed_daemon, unchanged_program];
        let all = [missing, unverified, unshared, too_small, unpaired].into_iter().chain(own);
        all.map(|check: fn(&Value) -> Vec<String>| check(report).len()).sum()
    }

    #[test]
    fn a_good_report_passes() {
        assert_eq!(findings(&good()), 0);
    }

    #[test]
    fn each_spoiled_value_is_found() {
        let spoiled = [
            ("verified", json!(false)),
            ("errors", json!(["x"])),
            ("rc_qps_per_host", json!([1, 1000])),
            ("srqs_per_host", json!(2)),
            ("bytes", json!(5)),
            ("connections", json!(999)),
            ("application_processes", json!(4)),
            ("schema", json!("other")),
            ("tcp_msgs_per_s", json!(null)),
            ("tcp_congestion", json!("bbr")),
            ("run_path", json!("tcp")),
            ("tcp_run_p50_us", json!(null)),
        ];
        for (key, value) in spoiled {
            let mut report = good();
            report[key] = value;
            assert!(findings(&report) >= 1, "{key}");
        }
        let inner = [
            ("lane_reset", "connections_lost", json!(1)),
            ("lane_reset", "resets_per_host", json!([1, 0])),
            ("lane_reset", "bytes", json!(0)),
            ("kill", "connections_lost", json!(251)),
            ("tcp_kill", "bytes", json!(0)),
            ("daemon_kill", "connections_lost", json!(1)),
            ("daemon_kill", "connections_adopted", json!(999)),
            ("daemon_kill", "pause_ms", json!(null)),
        ];
        for (part, key, value) in inner {
            let mut report = good();
            report[part][key] = value;
            assert_eq!(findings(&report), 1, "{part} {key}");
        }
    }

    #[test]
    fn each_missing_key_is_found() {
        for key in KEYS {
            let mut report = good();
            report.as_object_mut().expect("good() is an object").remove(*key);
            assert!(missing(&report).contains(&format!("no key {key}")), "{key}");
        }
    }
}

//! The demo's result: one JSON object with the keys of docs/operate/commands.md, filled as the run goes. What was not
//! reached is null. The module `text` prints it for a person.

use serde_json::{Map, Value, json};

/// Figures of both transports; the keys of kernel TCP's have `tcp_` in front.
const BOTH: &str = "one_host_p50_us one_host_p99_us one_host_msgs_per_s one_host_messages run_p50_us run_p99_us \
    run_round_trips open_seconds app_descriptors_max p50_us p99_us msgs_per_s messages kill seconds gbit_per_s \
    app_cpu_seconds bytes";
/// Figures of one of them.
const OTHER: &str = "run_path lane_reset daemon_kill files tcp_congestion wire rc_qps_per_host cqs_per_host \
    srqs_per_host daemon_rss_bytes daemon_rss_shared_bytes daemon_rss_idle_bytes daemon_cpu_seconds \
    retransmits_per_host probes_per_host duplicates_per_host socket_overflows_per_host";
/// Figures in which one can be better, whether less is, and what they are called in a sentence.
const COMPARED: [(&str, bool, &str); 12] = [
    ("one_host_p50_us", true, "half round trip on one host"),
    ("one_host_p99_us", true, "its p99 on one host"),
    ("one_host_msgs_per_s", false, "message rate on one host"),
    ("run_p50_us", true, "half round trip of a TCP program"),
    ("run_p99_us", true, "its p99 of a TCP program"),
    ("open_seconds", true, "opening"),
    ("app_descriptors_max", true, "descriptors"),
    ("p50_us", true, "half round trip between hosts"),
    ("p99_us", true, "its p99 between hosts"),
    ("msgs_per_s", false, "message rate between hosts"),
    ("kill_told_ms", true, "telling of a death"),
    ("gbit_per_s", false, "bulk"),
];

/// Everything that the demo found out.
#[derive(Debug)]
pub(crate) struct Report {
    values: Map<String, Value>,
    /// What a person should know.
    pub(crate) notes: Vec<String>,
    /// Everything that went wrong.
    pub(crate) errors: Vec<String>,
    /// Bytes did not verify; among `errors` it says which.
    pub(crate) is_unverified: bool,
}

impl Report {
    /// With what is known before anything runs.
    pub(crate) fn new(facts: Value, notes: Vec<String>) -> Self {
        let mut values: Map<String, Value> = keys().map(|key| (key, Value::Null)).collect();
        values.extend(facts.as_object().cloned().unwrap_or_default());
        Self { values, notes, errors: Vec::new(), is_unverified: false }
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    /// Sets all members of an object, their keys after `prefix`.
    pub(crate) fn set_all(&mut self, prefix: &str, values: &Value) {
        for (key, value) in values.as_object().into_iter().flatten() {
            self.set(&format!("{prefix}{key}"), value.clone());
        }
    }

    pub(crate) fn get(&self, key: &str) -> &Value {
        // A figure of a part that has several.
        let inner = key.split_once("kill_").map(|(side, inner)| (format!("{side}kill"), inner));
        match inner {
            Some((part, inner)) if self.values.contains_key(&part) && !self.values.contains_key(key) => {
                &self.values[&part][inner]
            }
            _ => self.values.get(key).unwrap_or(&Value::Null),
        }
    }

    /// A figure of RaaS and of kernel TCP.
    pub(crate) fn both(&self, key: &str) -> [Option<f64>; 2] {
        both(key).map(|key| self.get(&key).as_f64())
    }

    /// Adds what arrived otherwise than it was sent, or failed and must not have.
    pub(crate) fn find(&mut self, findings: impl IntoIterator<Item = String>) {
        for finding in findings {
            self.is_unverified = true;
            self.fail(finding);
        }
    }

    pub(crate) fn fail(&mut self, error: String) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Whether everything was reached and verified and nothing went wrong.
    pub(crate) fn is_good(&self) -> bool {
        self.errors.is_empty() && !self.is_unverified && self.values.values().all(|value| !value.is_null())
    }

    /// How many times better RaaS is in a figure that both have; below 1 it is worse.
    pub(crate) fn advantage(&self, key: &str) -> Option<f64> {
        let (_, less_is_better, _) = COMPARED.iter().find(|(compared, ..)| *compared == key)?;
        let [Some(raas), Some(tcp)] = self.both(key) else { return None };
        Some(if *less_is_better { tcp / raas.max(1e-12) } else { raas / tcp.max(1e-12) })
    }

    /// The figures in which kernel TCP is better by more than this factor: keys, and what they are called.
    pub(crate) fn tcp_wins(&self, factor: f64) -> Vec<(&'static str, &'static str)> {
        let is_better = |key| self.advantage(key).is_some_and(|advantage| advantage * factor < 1.0);
        COMPARED.iter().filter(|(key, ..)| is_better(key)).map(|(key, _, spoken)| (*key, *spoken)).collect()
    }

    /// The object of `--json`.
    pub(crate) fn to_json(&self) -> Value {
        let mut all = Value::Object(self.values.clone());
        all["schema"] = json!("raas.demo/1");
        all["verified"] = json!(self.is_good());
        all["tcp_wins"] = json!(self.tcp_wins(1.0).into_iter().map(|(key, _)| key).collect::<Vec<_>>());
        all["notes"] = json!(self.notes);
        all["errors"] = json!(self.errors);
        all
    }
}

fn both(key: &str) -> [String; 2] {
    [key.to_owned(), format!("tcp_{key}")]
}

/// Those of all figures.
fn keys() -> impl Iterator<Item = String> {
    BOTH.split_whitespace().flat_map(both).chain(OTHER.split_whitespace().map(String::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_reached_is_null_and_not_good() {
        let mut report = Report::new(json!({"connections": 5}), vec![]);
        assert_eq!(report.to_json()["tcp_p50_us"], Value::Null);
        for key in keys() {
            assert!(!report.is_good(), "{key}");
            report.set(&key, 2.0);
        }
        assert!(report.is_good() && report.to_json()["verified"] == true);
        report.set("kill", json!({"told_ms": 3.0}));
        report.set("tcp_kill", json!({"told_ms": 1.5}));
        report.set("tcp_p50_us", 8.0);
        report.set("msgs_per_s", 3.0);
        assert_eq!((report.advantage("p50_us"), report.advantage("msgs_per_s")), (Some(4.0), Some(1.5)));
        assert_eq!((report.both("kill_told_ms"), report.advantage("messages")), ([Some(3.0), Some(1.5)], None));
        assert_eq!(report.to_json()["tcp_wins"], json!(["kill_told_ms"]));
        report.find(["x".into(), "x".into()]);
        assert_eq!((report.is_good(), report.to_json()["errors"].clone()), (false, json!(["x"])));
    }
}

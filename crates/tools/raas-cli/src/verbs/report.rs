//! The report of `raas verbs --json`: a file to which each process of the program appends a line as it ends, and what the
//! lines add up to.
//!
//! A line is an object of the library's: `pid`, `qps` (numbers of queue pairs and their types), `counters` by name.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

/// Counters that are packets without effect.
const DROPS: &str = "drop_";

pub(super) struct Report(NamedTempFile);

impl Report {
    pub(super) fn new() -> io::Result<Self> {
        NamedTempFile::with_prefix("raas-verbs-").map(Self)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn json(&self) -> io::Result<Value> {
        Ok(sum(&std::fs::read_to_string(self.0.path())?))
    }
}

/// What the lines add up to. A line that is none, of a process that was killed while it wrote, is passed over.
fn sum(lines: &str) -> Value {
    let mut counters: BTreeMap<String, u64> = BTreeMap::new();
    let (mut qps, mut processes) = (Vec::new(), Vec::new());
    for line in lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let pid = &line["pid"];
        processes.push(pid.clone());
        for qp in line["qps"].as_array().into_iter().flatten() {
            qps.push(json!({ "pid": pid, "qpn": qp["qpn"], "type": qp["type"] }));
        }
        for (name, count) in line["counters"].as_object().into_iter().flatten() {
            *counters.entry(name.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
    }
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    let drops: BTreeMap<_, _> =
        counters.iter().filter_map(|(name, n)| Some((name.strip_prefix(DROPS)?, *n))).filter(|(_, n)| *n > 0).collect();
    json!({
        "schema": "raas.verbs/1",
        "processes": processes,
        "qps": qps,
        "retransmits": of("retransmits"),
        "rnr": of("rnr_naks_received"),
        "drops": drops,
        "findings": [],
        "counters": counters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_add_up_and_half_a_line_counts_for_nothing() {
        let one = r#"{"pid":7,"qps":[{"qpn":5,"type":"RC"}],"counters":{"retransmits":2,"drop_pkey":0}}"#;
        let other = r#"{"pid":8,"qps":[],"counters":{"retransmits":1,"drop_unknown_qp":3,"rnr_naks_received":4}}"#;
        let all = sum(&format!("{one}\n{other}\n{{\"pid\":9,"));
        assert_eq!(all["schema"], "raas.verbs/1");
        assert_eq!((&all["retransmits"], &all["rnr"]), (&json!(3), &json!(4)));
        assert_eq!(all["drops"], json!({ "unknown_qp": 3 }));
        assert_eq!(all["qps"], json!([{ "pid": 7, "qpn": 5, "type": "RC" }]));
        assert_eq!(all["processes"], json!([7, 8]));
    }
}

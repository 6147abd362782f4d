//! Figures 2 and 7: what threads lose of which q share a queue pair under a lock. Over RaaS q of them share a session,
//! and all sessions one queue pair. As many threads run at any q, so that nothing but the sharing changes.

use anyhow::Result;
use serde_json::json;

use super::Effort;
use super::data::{Figure, Line, Scale};
use super::hosts::{BLOCKS, Cluster, Hosts, value};
use super::sweep::{Compared, sweep};
use super::throughput::{BLOCK_BYTES, RAAS};
use crate::stats::{Bar, Better, Kind, Row};

/// Threads that share one thing.
const SHARE: [f64; 4] = [1.0, 3.0, 6.0, 9.0];
/// Threads at each of [`SHARE`], and the READs that each has outstanding.
const THREADS: u32 = 18;
const DEPTH: u32 = 1;
const LOCK: &str = "native, QPs under locks";
/// READs of Figure 2, so small that the lock and not the copying counts.
const SMALL_BYTES: u32 = 64;
/// RaaS may lose so much.
const LEAST: f64 = 0.9;

fn reads(cluster: &Cluster, line: &str, share: f64, size: u32, effort: Effort) -> Result<f64> {
    let load = [
        ("verb", "read".to_owned()),
        ("size", size.to_string()),
        ("threads", THREADS.to_string()),
        ("share", share.to_string()),
        ("depth", DEPTH.to_string()),
    ];
    let report = if line == RAAS {
        cluster.region(BLOCKS, false, &load, effort.seconds)?
    } else {
        cluster.native(&load, effort.seconds)?
    };
    value(&report, "ops_per_s")
}

/// RaaS at each q beside RaaS at q = 1, with a bar; and the lock beside itself, reported.
fn rows(number: u32, unit: &'static str, lines: &[Line]) -> Vec<Row> {
    let mut rows = vec![];
    for line in lines {
        let base = line.at(SHARE[0]);
        for share in &SHARE[1..] {
            let compared = Compared {
                case: format!("figure {number}: {}, q = {share}", line.name),
                unit,
                better: Better::Higher,
                ours: line.at(*share),
                rival: "q = 1".to_owned(),
                rival_values: base.clone(),
            };
            let bar = (line.name == RAAS).then_some((Bar::RatioAtLeast(LEAST), Kind::Must));
            rows.extend(compared.row(bar));
        }
    }
    rows
}

/// Figure 2: what is left of the rate of small READs.
pub(super) fn small_reads(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let cluster = hosts.cluster(2)?;
    let mut lines = sweep(effort, &SHARE, &[RAAS, LOCK], &mut |line, q| reads(cluster, line, q, SMALL_BYTES, effort))?;
    let rows = rows(2, "ops_per_s", &lines);
    let rates: Vec<_> =
        lines.iter().map(|line| json!({ "line": line.name, "ops_per_s_at_q_1": line.at(1.0) })).collect();
    for line in &mut lines {
        let base = line.at(SHARE[0]);
        for point in &mut line.points {
            point.values.iter_mut().zip(&base).for_each(|(value, base)| *value = *value / base * 100.0);
        }
    }
    Ok(Figure {
        number: Some(2),
        title: "what sharing leaves of the rate of 64 B READs".to_owned(),
        x: "threads that share a queue pair, or a session (q)".to_owned(),
        y: "% of q = 1".to_owned(),
        scale: Scale::Linear,
        lines,
        rows,
        beside: json!({ "threads": THREADS, "outstanding_each": DEPTH, "rates": rates }),
    })
}

/// Figure 7: throughput of random READs of 64 KiB.
pub(super) fn large_reads(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let cluster = hosts.cluster(2)?;
    let gbit = f64::from(BLOCK_BYTES) * 8.0 / 1e9;
    let lines =
        sweep(effort, &SHARE, &[RAAS, LOCK], &mut |line, q| Ok(reads(cluster, line, q, BLOCK_BYTES, effort)? * gbit))?;
    let rows = rows(7, "gbit_per_s", &lines);
    Ok(Figure {
        number: Some(7),
        title: "random READs of 64 KiB by threads that share".to_owned(),
        x: "threads that share a queue pair, or a session (q)".to_owned(),
        y: "Gbit/s".to_owned(),
        scale: Scale::Linear,
        lines,
        rows,
        beside: json!({ "threads": THREADS, "outstanding_each": DEPTH, "size_bytes": BLOCK_BYTES }),
    })
}

//! Figures 1, 6 and 10: what verbs reach by size, by connections, and by hosts.

use anyhow::Result;
use netmodel::rnic::{self, ReadLoad, RnicShape};
use serde_json::json;

use super::Effort;
use super::data::{Figure, Line, Point, Scale};
use super::hosts::{BLOCKS, Cluster, Hosts, REGION_BYTES, value};
use super::sweep::{Compared, sweep};
use crate::stats::{Bar, Better, Kind};

/// READs of Figures 6, 7 and 10.
pub(super) const BLOCK_BYTES: u32 = 64 << 10;
/// READs outstanding, on either side.
pub(super) const OUTSTANDING: u32 = 16;
/// Programs of RaaS that share them out: one may have at most 1,024 handles.
const THREADS: u32 = 4;
pub(super) const RAAS: &str = "RaaS";
pub(super) const NATIVE: &str = "native, one QP per connection";

/// Sizes of Figure 1.
const SIZES: [f64; 7] = [64.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0];
/// Its work requests outstanding, as perftest has by default for large messages.
const DEPTH: u32 = 32;
/// Lines of Figure 1 that are native verbs, and the verb.
const VERBS: [(&str, &str); 4] =
    [("RC WRITE", "write"), ("RC READ", "read"), ("UC WRITE", "uc-write"), ("RC SEND", "send")];
const STREAM: &str = "RaaS stream";

/// Figure 1: comparison of RDMA operations.
pub(super) fn operations(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let cluster = hosts.cluster(2)?;
    let lines: Vec<&str> = VERBS.iter().map(|(line, _)| *line).chain([STREAM]).collect();
    let mut lost = 0.0_f64;
    let found = sweep(effort.few_rounds(), &SIZES, &lines, &mut |line, size| {
        let size = ("size", size.to_string());
        let Some((_, verb)) = VERBS.iter().find(|(name, _)| *name == line) else {
            return value(&cluster.stream(&[("test", "bw".to_owned()), size], effort.seconds)?, "gbit_per_s");
        };
        let load = [("verb", (*verb).to_owned()), size, ("depth", DEPTH.to_string())];
        let report = cluster.native(&load, effort.seconds)?;
        if let (Some(sent), Some(arrived)) = (report["sent_gbit_per_s"].as_f64(), report["gbit_per_s"].as_f64()) {
            lost = lost.max(1.0 - arrived / sent);
        }
        value(&report, "gbit_per_s")
    })?;
    Ok(Figure {
        number: Some(1),
        title: "operations by size".to_owned(),
        x: "bytes of a message".to_owned(),
        y: "Gbit/s".to_owned(),
        scale: Scale::Log,
        lines: found,
        rows: vec![],
        beside: json!({ "outstanding": DEPTH, "largest_share_of_uc_messages_lost": lost }),
    })
}

/// Random READs over so many connections.
fn reads(cluster: &Cluster, line: &str, connections: f64, effort: Effort) -> Result<f64> {
    let load =
        [("verb", "read".to_owned()), ("size", BLOCK_BYTES.to_string()), ("connections", connections.to_string())];
    let report = if line == RAAS {
        let threads = [("threads", THREADS.to_string()), ("depth", (OUTSTANDING / THREADS).to_string())];
        cluster.region(BLOCKS, false, &[&load[..], &threads].concat(), effort.seconds)?
    } else {
        let depth = [("depth", OUTSTANDING.to_string())];
        cluster.native(&[&load[..], &depth].concat(), effort.seconds)?
    };
    value(&report, "gbit_per_s")
}

/// Connections of Figure 6.
const CONNECTIONS: [f64; 7] = [1.0, 10.0, 100.0, 400.0, 1000.0, 2000.0, 4000.0];
/// What the bars are about.
const FEW: f64 = 10.0;
const MANY: f64 = 1000.0;

/// Figure 6: throughput over connections that read random blocks of 64 KiB.
pub(super) fn connections(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let cluster = hosts.cluster(2)?;
    let mut lines = sweep(effort.judging(&[FEW, MANY]), &CONNECTIONS, &[RAAS, NATIVE], &mut |line, n| {
        reads(cluster, line, n, effort)
    })?;
    lines.extend(knees(&lines));
    let mut figure = Figure {
        number: Some(6),
        title: "random READs of 64 KiB by connections".to_owned(),
        x: "connections".to_owned(),
        y: "Gbit/s".to_owned(),
        scale: Scale::Linear,
        lines,
        rows: vec![],
        beside: json!({ "outstanding": OUTSTANDING, "size_bytes": BLOCK_BYTES }),
    };
    let compared = |rival: &str, rival_values: Vec<f64>| Compared {
        case: "figure 6: READs over 1,000 connections".to_owned(),
        unit: "gbit_per_s",
        better: Better::Higher,
        ours: figure.line(RAAS).at(MANY),
        rival: rival.to_owned(),
        rival_values,
    };
    let must = Some((Bar::RatioAtLeast(0.95), Kind::Must));
    let rows = [
        compared("10 connections", figure.line(RAAS).at(FEW)).row(must),
        compared("native, 1,000 QPs", figure.line(NATIVE).at(MANY)).row(must),
    ];
    figure.rows.extend(rows.into_iter().flatten());
    Ok(figure)
}

/// The model of the paper's NIC, with its fetches one after the other, and overlapping.
const KNEES: [(&str, u32); 2] = [
    ("model: native with a ConnectX-3's caches, one fetch at a time", 1),
    ("model: native with a ConnectX-3's caches, 16 fetches at once", RnicShape::CONNECTX_6_FETCHES),
];

/// What would be left of the native line on a NIC that keeps the contexts of 400 queue pairs: the part that the model
/// leaves of its own rate at few, of what was measured.
fn knees(lines: &[Line]) -> Vec<Line> {
    let Some(native) = lines.iter().find(|line| line.name == NATIVE) else { return vec![] };
    let of = |(name, fetches): (&str, u32)| {
        let at = |connections: f64| {
            let queue_pairs = (connections as u32).max(1);
            let load = ReadLoad { queue_pairs, bytes: BLOCK_BYTES, memory_bytes: REGION_BYTES };
            rnic::reads(&RnicShape::connectx_3(fetches), &load, 1).gbit_per_s
        };
        let few = at(FEW);
        let points = native.points.iter().map(|point| {
            let left = at(point.x) / few;
            Point { x: point.x, values: point.values.iter().map(|value| value * left).collect() }
        });
        Line { name: name.to_owned(), points: points.collect() }
    };
    KNEES.map(of).to_vec()
}

/// Hosts of Figure 10, the reading one included.
const HOSTS: [usize; 2] = [3, 4];
/// Its connections to each of the others.
const EACH: u32 = 192;

/// Figure 10: one host reads random blocks from all others.
pub(super) fn cluster(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let mut lines: Vec<super::data::Line> = vec![];
    for count in HOSTS {
        let cluster = hosts.cluster(count)?;
        let others = u32::try_from(count - 1)?;
        let of_this = sweep(effort.few_rounds(), &[count as f64], &[RAAS, NATIVE], &mut |line, _| {
            // A native client takes the number for each server.
            let connections = if line == RAAS { EACH * others } else { EACH };
            Ok(reads(cluster, line, connections.into(), effort)? * 1e9 / 8.0 / f64::from(BLOCK_BYTES))
        })?;
        for (number, line) in of_this.into_iter().enumerate() {
            match lines.get_mut(number) {
                Some(known) => known.points.extend(line.points),
                None => lines.push(line),
            }
        }
    }
    Ok(Figure {
        number: Some(10),
        title: "one host reads from all others".to_owned(),
        x: "hosts".to_owned(),
        y: "READs of 64 KiB a second".to_owned(),
        scale: Scale::Linear,
        lines,
        rows: vec![],
        beside: json!({ "connections_to_each": EACH, "outstanding": OUTSTANDING }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_takes_its_share_of_the_measured_line_and_most_behind_the_knee() {
        let points = [10.0, 400.0, 4000.0].map(|x| Point { x, values: vec![8.0, 10.0] }).to_vec();
        let found = knees(&[Line { name: NATIVE.to_owned(), points }]);
        for line in &found {
            assert_eq!(line.at(10.0), [8.0, 10.0]);
            assert!(line.at(400.0)[0] > 0.75 * 8.0, "{line:?}");
        }
        assert!(found[0].at(4000.0)[1] < 0.5 * 10.0 && found[1].at(4000.0)[1] > 0.65 * 10.0, "{found:?}");
        assert!(knees(&[]).is_empty());
    }
}

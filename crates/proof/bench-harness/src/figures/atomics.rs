//! Figure 12: fetch-and-add on 1 to 20 counters, 64 outstanding.

use anyhow::Result;
use serde_json::json;

use super::Effort;
use super::data::{Figure, Scale};
use super::hosts::{COUNTERS, Hosts, value};
use super::sweep::{Compared, sweep};
use crate::stats::{Bar, Better, Kind};

const COUNTS: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
/// Additions outstanding.
const DEPTH: u32 = 64;
const TWO_HOSTS: &str = "RaaS, two hosts";
const SAME_HOST: &str = "RaaS, one host";
const NATIVE: &str = "native verbs";
/// What the paper measured at best.
const GOAL: f64 = 5.5e6;

pub(super) fn by_counters(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let cluster = hosts.cluster(2)?;
    let lines = sweep(effort, &COUNTS, &[TWO_HOSTS, NATIVE, SAME_HOST], &mut |line, counters| {
        let load = [("verb", "fetch-add".to_owned()), ("counters", counters.to_string())];
        let report = match line {
            NATIVE => {
                let more = [("size", "8".to_owned()), ("depth", DEPTH.to_string())];
                cluster.native(&[&load[..], &more].concat(), effort.seconds)?
            }
            // An addition there is an instruction: there is nothing to wait for, and so nothing outstanding.
            SAME_HOST => cluster.region(COUNTERS, true, &load, effort.seconds)?,
            _ => {
                let depth = [("depth", DEPTH.to_string())];
                cluster.region(COUNTERS, false, &[&load[..], &depth].concat(), effort.seconds)?
            }
        };
        value(&report, "ops_per_s")
    })?;
    let mut figure = Figure {
        number: Some(12),
        title: "fetch-and-add by counters".to_owned(),
        x: "counters".to_owned(),
        y: "additions a second".to_owned(),
        scale: Scale::Log,
        lines,
        rows: vec![],
        beside: json!({ "outstanding": DEPTH }),
    };
    let (first, last) = (COUNTS[0], COUNTS[COUNTS.len() - 1]);
    let compared = |line: &str, counters: f64, rival: &str, rival_values: Vec<f64>| Compared {
        case: format!("figure 12: {line}, {counters} counters"),
        unit: "ops_per_s",
        better: Better::Higher,
        ours: figure.line(line).at(counters),
        rival: rival.to_owned(),
        rival_values,
    };
    let at_least = |bound: f64, kind: Kind| Some((Bar::RatioAtLeast(bound), kind));
    let native = figure.line(NATIVE);
    let goal = vec![GOAL; effort.rounds as usize];
    let rows = [
        compared(TWO_HOSTS, first, NATIVE, native.at(first)).row(at_least(1.5, Kind::Must)),
        compared(TWO_HOSTS, last, NATIVE, native.at(last)).row(at_least(1.5, Kind::Must)),
        compared(TWO_HOSTS, last, "1 counter", figure.line(TWO_HOSTS).at(first)).row(at_least(1.0, Kind::Must)),
        compared(TWO_HOSTS, last, "5.5 M/s", goal.clone()).row(at_least(1.0, Kind::Goal)),
        compared(SAME_HOST, last, "5.5 M/s", goal).row(at_least(1.0, Kind::Goal)),
    ];
    figure.rows.extend(rows.into_iter().flatten());
    Ok(figure)
}

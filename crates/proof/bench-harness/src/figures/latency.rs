//! Figure 11: one READ at a time, and how long it takes.

use anyhow::Result;
use serde_json::json;

use super::Effort;
use super::data::{Figure, Scale};
use super::hosts::{BLOCKS, Hosts, value};
use super::sweep::{Compared, sweep};
use super::throughput::{NATIVE, RAAS};
use crate::stats::{Bar, Better, Kind};

const SIZES: [f64; 7] = [64.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0];
/// The goal is about shorter READs.
const SHORT: f64 = 65_536.0;
/// What RaaS may add to native verbs, in half round trips over the bare relay.
const HOPS_MAX: f64 = 2.5;

pub(super) fn by_size(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let cluster = hosts.cluster(2)?;
    let lines = sweep(effort, &SIZES, &[RAAS, NATIVE], &mut |line, size| {
        let load = [("verb", "read".to_owned()), ("size", size.to_string())];
        let report = if line == RAAS {
            cluster.region(BLOCKS, false, &load, effort.seconds)?
        } else {
            let depth = [("depth", "1".to_owned())];
            cluster.native(&[&load[..], &depth].concat(), effort.seconds)?
        };
        value(&report, "p50_us")
    })?;
    let hops = (0..effort.rounds).map(|_| cluster.bare_relay_us(effort.seconds)).collect::<Result<Vec<_>>>()?;
    let mut figure = Figure {
        number: Some(11),
        title: "one READ at a time, by size".to_owned(),
        x: "bytes of a READ".to_owned(),
        y: "us, median".to_owned(),
        scale: Scale::Log,
        lines,
        rows: vec![],
        beside: json!({ "bare_relay_half_rtt_us": hops }),
    };
    let (ours, native) = (figure.line(RAAS), figure.line(NATIVE));
    for size in figure.places().into_iter().filter(|size| *size < SHORT) {
        let added = ours.at(size).iter().zip(native.at(size)).map(|(ours, native)| ours - native).collect();
        let compared = Compared {
            case: format!("figure 11: what RaaS adds to a READ of {size} B"),
            unit: "us",
            better: Better::Lower,
            ours: added,
            rival: "bare relay, half round trip".to_owned(),
            rival_values: hops.clone(),
        };
        figure.rows.extend(compared.row(Some((Bar::RatioAtMost(HOPS_MAX), Kind::Goal))));
    }
    Ok(figure)
}

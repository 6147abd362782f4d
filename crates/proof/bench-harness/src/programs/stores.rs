//! Memcached and redis, each with its own load program: one request under way, or many. Figure 18.

use anyhow::{Context, Result};

use super::compare::{By, Compared, Side, a_second, compare, same, words};
use super::serving::Ready;
use super::{At, Measured, RUN, TCP};
use crate::figures::data::{Figure, Line, Scale};
use crate::stats::{Bar, Better, Kind, Row};

/// Operations of a load with one request under way, and with many.
pub(super) const ALONE: u32 = 20_000;
pub(super) const PIPELINED: u32 = 200_000;
/// Requests under way in the load that has many.
const UNDER_WAY: u32 = 50;

/// What carries the two sides.
pub(super) const CARRIERS: [(&str, By); 2] = [(TCP, By::Tcp), (RUN, By::Run)];

/// What a client does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) connections: u32,
    /// Requests under way on each.
    pub(super) under_way: u32,
    /// Operations.
    pub(super) count: u32,
}

/// A side for each carrier.
fn sides(
    at: &At<'_>,
    server: impl Fn(&str, &str) -> Vec<String>,
    client: impl Fn(&str, &str) -> Vec<String>,
) -> Vec<Side> {
    let side = |(number, (line, by)): (u16, (&'static str, By))| {
        let port = at.port(number);
        let (address, word) = (at.place.server(), port.to_string());
        Side { line, by, server: server(address, &word), ready: Ready::Listens(port), client: client(address, &word) }
    };
    (0..).zip(CARRIERS).map(side).collect()
}

/// A file for memcaslap with the shares of sets and gets; values of 8 bytes.
pub(super) fn memcached_mix(at: &At<'_>, name: &str, (set, get): (&str, &str)) -> Result<String> {
    let file = at.place.file(&format!("{name}.cnf"));
    std::fs::write(&file, format!("key\n16 16 1\nvalue\n8 8 1\ncmd\n0 {set}\n1 {get}\n"))?;
    Ok(file.display().to_string())
}

pub(super) fn memcached_sides(at: &At<'_>, load: Load, mix: &str) -> Vec<Side> {
    let (count, connections) = (load.count.to_string(), load.connections.to_string());
    sides(
        at,
        |address, port| words(&["memcached", "-u", "nobody", "-U", "0", "-t", "1", "-l", address, "-p", port]),
        |address, port| {
            let server = format!("{address}:{port}");
            let load = ["-T", "1", "-c", &connections, "-w", "1k", "-x", &count, "-F", mix];
            words(&[&["memcaslap", "-s", &server], &load[..]].concat())
        },
    )
}

pub(super) fn redis_sides(at: &At<'_>, load: Load) -> Vec<Side> {
    let [connections, under_way, count] = [load.connections, load.under_way, load.count].map(|n| n.to_string());
    sides(
        at,
        |address, port| {
            words(&["redis-server", "--save", "", "--protected-mode", "no", "--bind", address, "--port", port])
        },
        |address, port| {
            let load = ["-c", &connections, "-d", "8", "-P", &under_way, "-n", &count, "-t", "get", "--csv"];
            words(&[&["redis-benchmark", "-h", address, "-p", port], &load[..]].concat())
        },
    )
}

fn number_after<'t>(text: &'t str, before: &str, until: char) -> Option<f64> {
    let rest = |line: &'t str| line.split_once(before)?.1.trim_start().split(until).next()?.trim().parse::<f64>().ok();
    text.lines().find_map(rest).filter(|rate| *rate > 0.0)
}

/// Memcaslap, one connection, values of 8 bytes: all gets, and all sets.
pub(super) fn memcached(at: &At<'_>) -> Result<Measured> {
    let mut lines: Vec<Line> = vec![];
    let mut rows = vec![];
    for (place, (name, set, get)) in (1u32..).zip([("get", "0.0", "1.0"), ("set", "1.0", "0.0")]) {
        let load = Load { connections: 1, under_way: 1, count: ALONE };
        let sides = memcached_sides(at, load, &memcached_mix(at, name, (set, get))?);
        let x = f64::from(place);
        let found = compare(at.place, at.rounds, &sides, &|text| Ok(vec![(x, memcaslap(text)?)]))?;
        let compared = Compared {
            case: at.case(&format!("memcached, {name} of 8 B")),
            unit: "us",
            better: Better::Lower,
            ours: RUN,
            rival: TCP,
            at: x,
            value: same,
            bar: Some((Bar::RatioAtMost(0.5), Kind::Must)),
        };
        rows.push(compared.row(&found));
        for line in found {
            let points = line.points;
            match lines.iter_mut().find(|known| known.name == line.name) {
                Some(known) => known.points.extend(points),
                None => lines.push(Line { name: line.name, points }),
            }
        }
    }
    let figure = Figure {
        number: Some(18),
        title: format!("memcached, 8 bytes, {}", at.host()),
        x: "operation (1: get, 2: set)".to_owned(),
        y: "us".to_owned(),
        scale: Scale::Linear,
        lines,
        rows: rows.clone(),
        beside: serde_json::json!({ "operations": ALONE, "connections": 1 }),
    };
    Ok(Measured { figures: vec![figure], rows, missing: vec![] })
}

/// Microseconds of an operation, where one is under way.
fn memcaslap(text: &str) -> Result<f64> {
    Ok(a_second(memcaslap_rate(text)?))
}

/// Operations a second.
pub(super) fn memcaslap_rate(text: &str) -> Result<f64> {
    number_after(text, "TPS:", ' ').with_context(|| format!("no rate in: {text}"))
}

/// Redis-benchmark, one connection, values of 8 bytes.
pub(super) fn redis(at: &At<'_>) -> Result<Measured> {
    let row = redis_with(at, 1, at.case("redis, get of 8 B"), Some((Bar::RatioAtMost(0.6), Kind::Must)))?;
    Ok(Measured { rows: vec![row], ..Measured::default() })
}

/// The same with many requests under way.
pub(super) fn redis_pipelined(at: &At<'_>) -> Result<Measured> {
    let least = if at.is_one_host() { 1.5 } else { 1.0 };
    let case = at.case(&format!("redis, get of 8 B, {UNDER_WAY} pipelined"));
    let row = redis_with(at, UNDER_WAY, case, Some((Bar::RatioAtLeast(least), Kind::Goal)))?;
    Ok(Measured { rows: vec![row], ..Measured::default() })
}

fn redis_with(at: &At<'_>, under_way: u32, case: String, bar: Option<(Bar, Kind)>) -> Result<Row> {
    let count = if under_way == 1 { ALONE } else { PIPELINED };
    let sides = redis_sides(at, Load { connections: 1, under_way, count });
    let is_time = under_way == 1;
    let lines = compare(at.place, at.rounds, &sides, &|text| {
        let rate = redis_rate(text)?;
        Ok(vec![(f64::from(under_way), if is_time { a_second(rate) } else { rate })])
    })?;
    let compared = Compared {
        case,
        unit: if is_time { "us" } else { "operations_per_s" },
        better: if is_time { Better::Lower } else { Better::Higher },
        ours: RUN,
        rival: TCP,
        at: f64::from(under_way),
        value: same,
        bar,
    };
    Ok(compared.row(&lines))
}

/// Operations a second.
pub(super) fn redis_rate(text: &str) -> Result<f64> {
    number_after(text, "\"GET\",\"", '"').with_context(|| format!("no rate in: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        let slap = "object_bytes: 4\n\nRun time: 0.5s Ops: 21024 TPS: 40000 Net_rate: 2.5M/s\n";
        assert!((memcaslap(slap).expect("a rate") - 25.0).abs() < 1e-9);
        assert!(memcaslap("Run time: 0.5s TPS: 0").is_err());
        assert_eq!(redis_rate("\"test\",\"rps\"\n\"GET\",\"1250000.00\",\"0.038\"\n").expect("a rate"), 1_250_000.0);
    }
}

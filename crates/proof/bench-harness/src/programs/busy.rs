//! Programs on a busy machine: does `raas run` still pay where others want the processors too?
//!
//! Client, server and threads that compute share all processors as the scheduler likes. Owns the loads; the servers and
//! clients are those of the other parts, with many connections. Of a chain (client, pooling proxy, server) all three are
//! on one side.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use super::compare::{Compared, Side, compare, same, words};
use super::stores::{self, Load};
use super::{At, Measured, RUN, TCP, web};
use crate::stats::{Bar, Better, Kind, Row};
use crate::without_priority;

/// Threads that compute.
const LOADS: [u32; 4] = [0, 2, 4, 8];
/// Connections of a client.
const CONNECTIONS: u32 = 16;
/// Operations of one run.
const OPERATIONS: u32 = 15_000;
const LEAST: f64 = 1.0;

pub(super) fn redis(at: &At<'_>) -> Result<Measured> {
    let load = Load { connections: CONNECTIONS, under_way: 1, count: OPERATIONS };
    measure(at, "redis", stores::redis_sides(at, load), &stores::redis_rate)
}

pub(super) fn memcached(at: &At<'_>) -> Result<Measured> {
    let load = Load { connections: CONNECTIONS, under_way: 1, count: OPERATIONS };
    let sides = stores::memcached_sides(at, load, &stores::memcached_mix(at, "busy", ("0.0", "1.0"))?);
    measure(at, "memcached", sides, &stores::memcaslap_rate)
}

pub(super) fn nginx(at: &At<'_>) -> Result<Measured> {
    measure(at, "nginx", sides_of_nginx(at, false)?, &web::wrk)
}

pub(super) fn chain(at: &At<'_>) -> Result<Measured> {
    measure(at, "chain of nginx", sides_of_nginx(at, true)?, &web::wrk)
}

fn sides_of_nginx(at: &At<'_>, is_chain: bool) -> Result<Vec<Side>> {
    let www = web::files(at)?;
    let connections = CONNECTIONS.to_string();
    stores::CARRIERS
        .iter()
        .zip([0, 2])
        .map(|((line, by), number)| {
            let port = at.port(number);
            let server = web::server(at, &www, port)?;
            let server = if is_chain { web::chain(at, port, at.port(number + 1), &server)? } else { server };
            let asked = if is_chain { at.port(number + 1) } else { port };
            let url = format!("http://{}:{asked}/small", at.place.server());
            let seconds = format!("{}s", at.seconds(2.0).ceil());
            let client = words(&["wrk", "-t", "1", "-c", &connections, "-d", &seconds, &url]);
            Ok(Side { line, by: *by, server, ready: super::serving::Ready::Listens(asked), client })
        })
        .collect()
}

/// Rates at each load. What is measured has the priority of the threads that compute, and of the daemon: with more it
/// would hardly feel them.
fn measure(at: &At<'_>, name: &str, sides: Vec<Side>, rate: &dyn Fn(&str) -> Result<f64>) -> Result<Measured> {
    let level =
        |side: Side| Side { server: without_priority(side.server), client: without_priority(side.client), ..side };
    let sides: Vec<Side> = sides.into_iter().map(level).collect();
    let rows = LOADS.iter().map(|load| at_load(at, name, &sides, *load, rate)).collect::<Result<_>>()?;
    Ok(Measured { rows, ..Measured::default() })
}

fn at_load(at: &At<'_>, name: &str, sides: &[Side], load: u32, rate: &dyn Fn(&str) -> Result<f64>) -> Result<Row> {
    let is_over = AtomicBool::new(false);
    let lines = std::thread::scope(|scope| {
        for _ in 0..load {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let lines = compare(at.place, at.rounds, sides, &|text| Ok(vec![(f64::from(load), rate(text)?)]));
        is_over.store(true, Ordering::Relaxed);
        lines
    })?;
    let compared = Compared {
        case: at.case(&format!("{name}, {CONNECTIONS} connections, beside {load} threads that compute")),
        unit: "operations_per_s",
        better: Better::Higher,
        ours: RUN,
        rival: TCP,
        at: f64::from(load),
        value: same,
        bar: Some((Bar::RatioAtLeast(LEAST), Kind::Must)),
    };
    Ok(compared.row(&lines))
}

//! gRPC: Python's library with generic handlers on TCP and under `raas run`, and tonic on both and over `raas-tonic`.
//! What a call takes by its size (Figure 13), and how many calls a second clients reach (Figure 14).

use anyhow::Result;
use serde_json::json;

use super::compare::{By, Compared, Side, a_second, compare, same, words};
use super::serving::Ready;
use super::{At, Measured, RUN, TCP, json_points};
use crate::figures::data::{Figure, Line, Scale};
use crate::stats::{Bar, Better, Kind};

/// Debian's Python, to which its gRPC belongs.
pub(super) const PYTHON: &str = "/usr/bin/python3";
/// Lines of tonic.
const TONIC_TCP: &str = "tonic, TCP";
const TONIC_RUN: &str = "tonic, raas run";
const TONIC_RAAS: &str = "tonic, RaaS";
/// Bytes of a request, and of its response.
const SIZES: [u32; 5] = [2, 64, 512, 2048, 8192];
/// Calls of each size.
const CALLS: u32 = 500;
/// Threads of clients, each with a connection.
const CLIENTS: [u32; 4] = [1, 2, 4, 8];
/// Seconds of each number of clients.
const SECONDS: f64 = 0.4;
/// Goals: so many times TCP's calls a second, one call at a time.
const GOALS: [(&str, &str, &str, f64); 3] = [
    ("Python", RUN, TCP, 1.3),
    ("tonic under raas run", TONIC_RUN, TONIC_TCP, 1.3),
    ("tonic", TONIC_RAAS, TONIC_TCP, 2.0),
];
/// Nothing that works is to be slower than this.
const LEAST: f64 = 0.9;

/// The sides; `client` gives role and words behind the server's address, for `python` and for `tonic`.
fn sides(at: &At<'_>, client: impl Fn(&str) -> (&'static str, Vec<String>)) -> Vec<Side> {
    let script = at.repo.root.join("tests/programs/echo_grpc.py").display().to_string();
    let bench = at.place.program("bench");
    let address = at.place.server();
    let python = |line: &'static str, by: By, port: u16| {
        let (role, rest) = client("python");
        let word = port.to_string();
        let of = |role: &str| words(&[PYTHON, &script, role, address, &word]);
        Side { line, by, server: of("server"), ready: Ready::Listens(port), client: [of(role), rest].concat() }
    };
    let tonic = |line: &'static str, by: By, over: &str, port: u16| {
        let (role, rest) = client("tonic");
        let server = format!("{address}:{port}");
        let of = |role: &str, at: &str| words(&[&bench, "grpcbench", role, at, &server, "--over", over]);
        let client = [of(role, "--to"), rest].concat();
        Side { line, by, server: of("server", "--at"), ready: Ready::Says("ready"), client }
    };
    vec![
        python(TCP, By::Tcp, at.port(0)),
        python(RUN, By::Run, at.port(1)),
        tonic(TONIC_TCP, By::Tcp, "tcp", at.port(2)),
        tonic(TONIC_RUN, By::Run, "tcp", at.port(3)),
        tonic(TONIC_RAAS, By::Native, "raas", at.port(4)),
    ]
}

fn list<T: ToString>(values: &[T], between: &str) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

/// Figure 13.
pub(super) fn times(at: &At<'_>) -> Result<Measured> {
    let calls = CALLS.to_string();
    let sides = sides(at, |library| match library {
        "python" => ("times", [vec![calls.clone()], SIZES.map(|size| size.to_string()).to_vec()].concat()),
        _ => ("times", words(&["--calls", &calls, "--sizes", &list(&SIZES, ",")])),
    });
    let lines = compare(at.place, at.rounds, &sides, &|text| json_points(text, "bytes", "us"))?;
    let mut rows = vec![];
    for (library, ours, rival, goal) in GOALS {
        for size in SIZES {
            let compared = Compared {
                case: at.case(&format!("gRPC, a call of {size} B, {library}")),
                unit: "calls/s",
                better: Better::Higher,
                ours,
                rival,
                at: f64::from(size),
                value: a_second,
                bar: at.is_one_host().then_some((Bar::RatioAtLeast(goal), Kind::Goal)),
            };
            rows.push(compared.row(&lines));
        }
    }
    let figure = figure(at, 13, ("one gRPC call at a time", "bytes of a call"), ("us, median", Scale::Log), lines);
    Ok(Measured { figures: vec![Figure { rows: rows.clone(), ..figure }], rows, missing: vec![] })
}

/// Figure 14.
pub(super) fn rates(at: &At<'_>) -> Result<Measured> {
    let seconds = at.seconds(SECONDS).to_string();
    let sides = sides(at, |library| match library {
        "python" => ("rates", [vec![seconds.clone()], CLIENTS.map(|count| count.to_string()).to_vec()].concat()),
        _ => ("rates", words(&["--seconds", &seconds, "--clients", &list(&CLIENTS, ",")])),
    });
    let lines = compare(at.place, at.rounds, &sides, &|text| json_points(text, "clients", "calls_per_s"))?;
    let mut rows = vec![];
    for (library, ours, rival, _) in GOALS {
        for count in CLIENTS {
            let compared = Compared {
                case: at.case(&format!("gRPC, {count} clients, {library}")),
                unit: "calls/s",
                better: Better::Higher,
                ours,
                rival,
                at: f64::from(count),
                value: same,
                bar: at.is_one_host().then_some((Bar::RatioAtLeast(LEAST), Kind::Must)),
            };
            rows.push(compared.row(&lines));
        }
    }
    let title = ("gRPC calls of 8 bytes by clients", "threads of clients, each with a connection");
    let figure = figure(at, 14, title, ("calls/s", Scale::Linear), lines);
    Ok(Measured { figures: vec![Figure { rows: rows.clone(), ..figure }], rows, missing: vec![] })
}

fn figure(at: &At<'_>, number: u32, (title, x): (&str, &str), (y, scale): (&str, Scale), lines: Vec<Line>) -> Figure {
    Figure {
        number: Some(number),
        title: format!("{title}, {}", at.host()),
        x: x.to_owned(),
        y: y.to_owned(),
        scale,
        lines,
        rows: vec![],
        beside: json!({ "calls_each_size": CALLS, "lines_tcp_and_raas_run": "Python's gRPC" }),
    }
}

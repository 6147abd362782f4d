//! Bench `programs`: programs that nobody changed under `raas run`, beside the same programs on kernel TCP, and
//! programs over the library beside both; on one host and between two. The figures of the RaaS paper about programs (13
//! to 20). Owns which parts there are, where each runs, and what is written; each part owns its loads and its bars.
//!
//! Client and server keep to a processor of their own on all sides: unpinned loopback TCP has two modes (2 and 30 us).
//! The servers of a part live through all of its rounds, and the sides take turns.

mod busy;
mod compare;
mod database;
mod grpc;
mod parameters;
mod serving;
mod stores;
mod usage;
mod web;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Args;
use super::figures::data::Figure;
use super::figures::{folder, write};
use super::place::{End, Place};
use super::report::Findings;
use super::stats::Row;
use harness::child::{self, Stream};
use harness::packages::{self, Need};
use harness::repo::Repo;

const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
/// Ports: each part has so many, from here on.
const PORT: u16 = 22_000;
const PORTS: u16 = 32;
/// MTU of the link between two hosts.
const MTU: u32 = 1500;

/// Lines of figures.
const TCP: &str = "TCP";
const RUN: &str = "raas run";
const NATIVE: &str = "RaaS";

/// What `programs` alone takes.
#[derive(clap::Args, Debug)]
pub(super) struct ProgramArgs {
    /// Of `programs`: megabytes of the database that is migrated [default: 1300, with --quick 64].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    database_mb: Option<u32>,
    /// Of `programs`: rounds of the migration [default: as of everything else].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    database_rounds: Option<u32>,
}

/// Where a part is measured, and how.
struct At<'a> {
    repo: &'a Repo,
    place: &'a Place,
    rounds: u32,
    is_quick: bool,
    seconds: Option<f64>,
    database_mb: Option<u32>,
    /// The part's first port.
    port: u16,
}

impl At<'_> {
    fn port(&self, number: u16) -> u16 {
        self.port + number
    }

    fn is_one_host(&self) -> bool {
        !self.place.is_two_hosts()
    }

    fn host(&self) -> &'static str {
        host(self.place)
    }

    /// A case's full name.
    fn case(&self, name: &str) -> String {
        format!("{name}, {}", self.host())
    }

    fn seconds(&self, full: f64) -> f64 {
        self.seconds.unwrap_or(if self.is_quick { full / 2.0 } else { full })
    }
}

fn host(place: &Place) -> &'static str {
    if place.is_two_hosts() { "two hosts" } else { "same host" }
}

/// What a part found.
#[derive(Debug, Default)]
struct Measured {
    figures: Vec<Figure>,
    rows: Vec<Row>,
    missing: Vec<String>,
}

/// Something that is measured.
struct Part {
    /// What `--only` is compared with, with the place behind it.
    name: &'static str,
    needs: &'static [Need],
    has_two_hosts: bool,
    measure: fn(&At<'_>) -> Result<Measured>,
}

const MEMCACHED: &[Need] = &[("memcached", "memcached"), ("memcaslap", "libmemcached-tools")];
const REDIS: &[Need] = &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")];
const GRPC: &[Need] = &[(grpc::PYTHON, "python3"), ("/usr/lib/python3/dist-packages/grpc", "python3-grpcio")];
const SKLEARN: &[Need] = &[(grpc::PYTHON, "python3"), ("/usr/lib/python3/dist-packages/sklearn", "python3-sklearn")];
const NGINX: &[Need] = &[("nginx", "nginx-light"), ("wrk", "wrk")];
const MARIADB: &[Need] = &[
    ("mariadbd", "mariadb-server"),
    ("mariadb-backup", "mariadb-backup"),
    ("mbstream", "mariadb-backup"),
    ("socat", "socat"),
];

const PARTS: [Part; 14] = [
    Part { name: "memcached", needs: MEMCACHED, has_two_hosts: true, measure: stores::memcached },
    Part { name: "redis, one", needs: REDIS, has_two_hosts: true, measure: stores::redis },
    Part { name: "redis, pipelined", needs: REDIS, has_two_hosts: true, measure: stores::redis_pipelined },
    Part { name: "gRPC, time of a call", needs: GRPC, has_two_hosts: true, measure: grpc::times },
    Part { name: "gRPC, clients", needs: GRPC, has_two_hosts: true, measure: grpc::rates },
    Part { name: "parameter server 1x1", needs: &[], has_two_hosts: true, measure: parameters::one_and_one },
    Part { name: "parameter server 4x4", needs: &[], has_two_hosts: true, measure: parameters::four_and_four },
    Part { name: "training", needs: SKLEARN, has_two_hosts: false, measure: parameters::training },
    Part { name: "nginx", needs: NGINX, has_two_hosts: true, measure: web::nginx },
    Part { name: "database stream", needs: MARIADB, has_two_hosts: false, measure: database::migrate },
    Part { name: "busy, memcached", needs: MEMCACHED, has_two_hosts: false, measure: busy::memcached },
    Part { name: "busy, redis", needs: REDIS, has_two_hosts: false, measure: busy::redis },
    Part { name: "busy, nginx", needs: NGINX, has_two_hosts: false, measure: busy::nginx },
    Part { name: "busy, chain", needs: NGINX, has_two_hosts: false, measure: busy::chain },
];

/// Installs what the wanted parts need, where this may be. To be called where there is a network.
pub(super) fn install(args: &Args) {
    let wanted = PARTS.iter().filter(|part| places(part).iter().any(|place| args.wants(&full_name(part, place))));
    let needs: Vec<Need> = wanted.flat_map(|part| part.needs).copied().collect();
    packages::install(&needs);
}

fn places(part: &Part) -> &'static [&'static str] {
    if part.has_two_hosts { &["same host", "two hosts"] } else { &["same host"] }
}

fn full_name(part: &Part, place: &str) -> String {
    format!("{}, {place}", part.name)
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let wants = |place: &str| {
        PARTS.iter().filter(|part| places(part).contains(&place)).any(|part| args.wants(&full_name(part, place)))
    };
    ensure!(wants("two hosts") || wants("same host"), "--only: no part has such a name; there are {}", names());
    let build = ["build", "--release", "--package", "raas-preload", "--package", "parameter-server"];
    let built = child::run_quiet(&mut repo.command("cargo", &build), BUILD_LIMIT)?;
    ensure!(built.success(), "building what is measured: {}\n{}", built.describe(), built.text(Stream::Err));
    let mut findings = Findings { rounds: args.rounds(), ..Findings::default() };
    findings.setting = json!({
        "mtu": MTU, "operations": stores::ALONE, "operations_pipelined": stores::PIPELINED, "value_bytes": 8,
        "processors_client_server": Place::processors()?, "rounds": args.rounds(),
    });
    // Memcached and nginx give their rights up, and their daemon lets everybody in.
    let config = "socket_mode = \"0666\"\n";
    if wants("two hosts") {
        let lanes = if args.lane_only { "run_lanes = \"always\"\n" } else { "" };
        let two = Place::two_hosts(repo, "programs-two-hosts", MTU, &format!("{config}{lanes}"))?;
        at_place(two, repo, args, &mut findings)?;
    }
    if wants("same host") {
        let one = Place::one_host(repo, "programs-one-host", config)?;
        // A new namespace has it down.
        one.set_up(End::Client, &["link", "set", "lo", "up"])?;
        at_place(one, repo, args, &mut findings)?;
    }
    Ok(findings)
}

fn names() -> String {
    PARTS.iter().flat_map(|part| places(part).iter().map(|place| full_name(part, place))).collect::<Vec<_>>().join("; ")
}

/// Measures all parts that are wanted at this place. One that cannot be measured is named and leaves the others alone.
fn at_place(mut place: Place, repo: &Repo, args: &Args, findings: &mut Findings) -> Result<()> {
    place.open_to_all()?;
    for (number, part) in (0..).zip(&PARTS) {
        let name = full_name(part, host(&place));
        if !places(part).contains(&host(&place)) || !args.wants(&name) {
            continue;
        }
        let lacking = packages::lacking(part.needs);
        if !lacking.is_empty() {
            findings.rivals_missing.push(format!("{name}: {} cannot be installed here", lacking.join(", ")));
            println!("SKIP {name}: {} cannot be installed here", lacking.join(", "));
            continue;
        }
        // Where threads compete for processors, they choose them as the scheduler likes.
        place.pin(!part.name.starts_with("busy"))?;
        let rounds = if part.name == "database stream" { args.programs.database_rounds } else { None };
        let at = At {
            repo,
            place: &place,
            rounds: rounds.unwrap_or(args.rounds()),
            is_quick: args.quick,
            seconds: args.seconds,
            database_mb: args.programs.database_mb,
            port: PORT + PORTS * number,
        };
        let begin = Instant::now();
        match (part.measure)(&at) {
            Ok(measured) => {
                println!("{name}: {} rounds, {:.0} s", at.rounds, begin.elapsed().as_secs_f64());
                measured.figures.iter().try_for_each(|figure| keep(&at, args, figure, findings))?;
                findings.rows.extend(measured.rows);
                findings.rivals_missing.extend(measured.missing);
            }
            Err(e) => {
                eprintln!("{name}: {e:#}");
                findings.failed.push(format!("{name}: {e:#}"));
            }
        }
    }
    Ok(())
}

/// Writes a figure as it comes, and what was measured beside its points.
fn keep(at: &At<'_>, args: &Args, figure: &Figure, findings: &mut Findings) -> Result<()> {
    let number = figure.number.context("a figure of the paper has a number")?;
    let name = file_name(number, at.host());
    if !figure.beside.is_null() {
        findings.figures.push(json!({ "case": name, "beside": figure.beside }));
    }
    write(&folder(at.repo, args), &name, figure, &format!("{} rounds, {}", at.rounds, at.host()))
}

/// The name of a figure's files.
fn file_name(number: u32, host: &str) -> String {
    if host == "two hosts" { format!("fig{number}-two-hosts") } else { format!("fig{number}") }
}

/// Lines of JSON that a program printed; others are left out.
fn json_lines(text: &str) -> Result<Vec<Value>> {
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))).collect()
}

/// Points of such lines.
fn json_points(text: &str, x: &str, y: &str) -> Result<Vec<(f64, f64)>> {
    let point = |line: &Value| {
        let point = line[x].as_f64().zip(line[y].as_f64().filter(|value| *value > 0.0));
        point.with_context(|| format!("no {x} and {y}: {line}"))
    };
    json_lines(text)?.iter().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_out_of_lines() -> Result<()> {
        let text = "noise\n{\"bytes\": 2, \"us\": 40.5}\n{\"bytes\": 64, \"us\": 41}\n";
        assert_eq!(json_points(text, "bytes", "us")?, [(2.0, 40.5), (64.0, 41.0)]);
        assert!(json_points("{\"bytes\": 2}", "bytes", "us").is_err());
        assert!(json_points("{\"bytes\": 2, \"us\": 0}", "bytes", "us").is_err());
        Ok(())
    }

    #[test]
    fn parts_have_ports_apart_below_those_of_the_system() {
        assert!(PORT + PORTS * u16::try_from(PARTS.len()).expect("few") < 32_768);
    }
}

//! Bench `agree`: groups of `raas-group` beside openraft over TCP and etcd on tmpfs. Owns the rounds, the rows and their
//! bars; the members are in bench/src/agreebench and bench/openraft.
//!
//! **What is compared.** Three hosts are three network namespaces, joined by a bridge in a fourth. Each has a member: of
//! ours a daemon and a program, of openraft a program (log and state in memory, calls over TCP without delay, times and
//! sizes by default), of etcd its server (data on tmpfs, all by default). Commands have 64 bytes. The clients are where a
//! client is nearest: in the leader's program with ours and openraft, which are libraries; with etcd beside the leader, over
//! gRPC connections that stay. Nothing is pinned on any side. The sides take turns, and only one of them lives at a time.
//!
//! **What a round measures.** With each side: the time of a commit with one client; commits a second with 64; and the end
//! of the leader's process, by SIGKILL, up to the first commit of another member, which proposes as soon as it leads.
//! With ours also: 10,000 commits a second by 16 clients, and what the programs then take of the processors; a fence
//! alone, `take_over` of a region by another session while the one before it holds it; and what no commit can be quicker
//! than, an acknowledged WRITE of 64 bytes by a thread that does nothing else, to one other host and to both at a time; and
//! the steps of a proposer that fences nobody: a WRITE with a compare-and-swap behind it, and one alone, at both hosts.
//!
//! **What is counted.** Two processors carry all of it, so times are the scheduler's too. What does not depend on them are
//! the verbs: the daemons' counters before and after a load, with three hosts and with five.
//!
//! **Bars** are those of docs/promises.md: ratios within a round. Fail-over and fence are multiples of the same round's
//! commit.

mod cluster;
mod verbs;

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Args;
use super::figures::data::{Figure, Line, Point, Scale};
use super::figures::{folder, write};
use super::idle::cpu_seconds;
use super::place::Place;
use super::report::Findings;
use super::stats::{Bar, Better, Kind, Row, Series, spread};
use cluster::{Cluster, OPENRAFT, Side};
use harness::child::{self, Stream};
use harness::packages::{self, Need};
use harness::repo::Repo;

const ETCD: [Need; 1] = [("etcd", "etcd-server")];
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
const MTU: u32 = 1500;
/// Hosts with members; the switch has one of its own.
const MEMBERS: usize = 3;
/// Seconds of a load.
const SECONDS: f64 = 1.0;
const CLIENTS_MANY: u32 = 64;
/// The paced load.
const PACED_CLIENTS: u32 = 16;
const PACED_RATE: f64 = 10_000.0;
const FENCES: u32 = 101;
/// Ends of a leader in a round: the rivals' group is a new one after each.
const FAIL_OVERS: u32 = 5;
const BELOW: &str = "three hosts, software NIC";

/// Installs what rivals need, where this may be. To be called where there is a network.
pub(super) fn install() {
    packages::install(&ETCD);
}

/// What one side showed in one round.
#[derive(Debug, Default)]
struct Shown {
    one: Value,
    many: Value,
    fail_over_ms: Vec<f64>,
    /// Of ours: a fence alone, and what the followers' programs and the leader's took of a processor for each second.
    fence_us: f64,
    /// Of ours: one acknowledged WRITE of a command's bytes to one other host, and to each other host at a time.
    write_us: f64,
    writes_us: f64,
    /// Of ours: the steps of a proposer without a fence, at each other host at a time.
    accept_us: f64,
    prepare_us: f64,
    followers: f64,
    leader: f64,
    paced_rate: f64,
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let mut findings = Findings { rounds: args.rounds(), ..Findings::default() };
    let sides = sides(repo, &mut findings);
    findings.setting = json!({
        "hosts": "network namespaces joined by a bridge in another", "device": "softnic", "mtu": MTU,
        "command_bytes": 64, "openraft": "0.9.25, one thread, log in memory", "etcd": "3.4, data on tmpfs",
        "seconds": args.seconds(SECONDS),
    });
    let mut rounds: Vec<Vec<(Side, Shown)>> = vec![];
    if args.wants("commit") {
        let place = place(repo, MEMBERS, None)?;
        for round in 0..args.rounds() {
            let mut shown = vec![];
            // Whoever was first is last in the next round.
            for number in 0..sides.len() {
                let side = sides[(number + round as usize) % sides.len()];
                shown.push((side, measure(&place, repo, side, args)?));
            }
            println!("{}", told(round, &shown));
            rounds.push(shown);
        }
    }
    findings.rows = rows(&rounds);
    for figure in drawn(&rounds) {
        write(&folder(repo, args), &figure.0, &figure.1, BELOW)?;
    }
    for members in [3, 5] {
        if args.wants("verbs") {
            let place = place(repo, members, Some(&repo.target.join("release")))?;
            // What was measured before stays.
            if let Err(e) = verbs::count(&place, repo, args, &mut findings) {
                findings.failed.push(format!("verbs, {members} hosts: {e:#}"));
            }
        }
    }
    Ok(findings)
}

/// Ours, and the rivals that are here.
fn sides(repo: &Repo, findings: &mut Findings) -> Vec<Side> {
    let mut sides = Side::ALL.to_vec();
    if let Some(why) = build_openraft(repo) {
        findings.rivals_missing.push(why);
        sides.retain(|side| *side != Side::OpenRaft);
    }
    if !packages::lacking(&ETCD).is_empty() {
        findings.rivals_missing.push("etcd: Debian's etcd-server cannot be installed here".to_owned());
        sides.retain(|side| *side != Side::Etcd);
    }
    sides
}

/// Builds the program over openraft; says why it is not there.
fn build_openraft(repo: &Repo) -> Option<String> {
    let words =
        ["build", "--release", "--manifest-path", "bench/openraft/Cargo.toml", "--target-dir", "target/openraft"];
    let why = match child::run_quiet(&mut repo.command("cargo", &words), BUILD_LIMIT) {
        Ok(built) if built.success() => return None,
        Ok(built) => {
            let text = built.text(Stream::Err);
            text.lines().find(|line| line.contains("error")).unwrap_or("the build failed").trim().to_owned()
        }
        Err(e) => e.to_string(),
    };
    // What was built before does.
    if repo.root.join(OPENRAFT).is_file() { None } else { Some(format!("openraft: bench/openraft: {why}")) }
}

fn place(repo: &Repo, members: usize, programs: Option<&std::path::Path>) -> Result<Place> {
    let mut place = Place::hosts(repo, "agree", MTU, members + 1, programs)?;
    place.start_daemons_at(&cluster::ends(&place), "")?;
    Ok(place)
}

fn measure(place: &Place, repo: &Repo, side: Side, args: &Args) -> Result<Shown> {
    let seconds = args.seconds(SECONDS);
    let mut cluster = Cluster::start(place, repo, side)?;
    let (one, many) = (cluster.load(1, seconds, 0.0)?, cluster.load(CLIENTS_MANY, seconds, 0.0)?);
    let mut shown = Shown { one, many, ..Shown::default() };
    if side == Side::Raas {
        let (leader, others) = cluster.pids();
        let cpu = || -> Result<[f64; 2]> {
            let others = others.iter().map(|pid| cpu_seconds(*pid)).collect::<Result<Vec<_>>>()?;
            Ok([ended_too(leader)?, others.iter().sum()])
        };
        let before = cpu()?;
        let paced = cluster.load(PACED_CLIENTS, seconds, PACED_RATE)?;
        let after = cpu()?;
        shown.paced_rate = paced["rate"].as_f64().unwrap_or_default();
        (shown.leader, shown.followers) = (after[0] - before[0], after[1] - before[1]);
        let p50 = |load: Value| load["p50_us"].as_f64().context("the time of a WRITE");
        shown.write_us = p50(cluster.verbs("write", 1, seconds)?)?;
        shown.writes_us = p50(cluster.verbs("write", MEMBERS - 1, seconds)?)?;
        shown.accept_us = p50(cluster.verbs("accept", MEMBERS - 1, seconds)?)?;
        shown.prepare_us = p50(cluster.verbs("prepare", MEMBERS - 1, seconds)?)?;
        shown.fence_us = cluster.fence(FENCES)?["p50_us"].as_f64().context("the time of a fence")?;
        for number in 0..FAIL_OVERS {
            if number > 0 {
                cluster.restore()?;
            }
            shown.fail_over_ms.push(cluster.fail_over()?);
        }
    } else {
        shown.fail_over_ms.push(cluster.fail_over()?);
    }
    Ok(shown)
}

/// Processor time of a process so far, that of threads that have ended too, in hundredths of a second.
fn ended_too(pid: u32) -> Result<f64> {
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("a process's time")?;
    // Behind the name, which may have blanks.
    let words: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok()).context("a process's ticks");
    Ok((ticks(11)? + ticks(12)?) / TICKS)
}

fn told(round: u32, shown: &[(Side, Shown)]) -> String {
    let side = |(side, shown): &(Side, Shown)| {
        let value = |value: &Value, key: &str| value[key].as_f64().unwrap_or(f64::NAN);
        let fail_over = spread(&shown.fail_over_ms).map_or(f64::NAN, |s| s.median);
        let (one, many) = (value(&shown.one, "p50_us"), value(&shown.many, "rate"));
        format!("{}: {one:.0} us, {many:.0} commits/s, fail-over {fail_over:.0} ms", side.name())
    };
    format!("round {}: {}", round + 1, shown.iter().map(side).collect::<Vec<_>>().join("; "))
}

/// A value of each round.
fn values(rounds: &[Vec<(Side, Shown)>], side: Side, value: impl Fn(&Shown) -> f64) -> Vec<f64> {
    rounds.iter().flatten().filter(|(of, _)| *of == side).map(|(_, shown)| value(shown)).collect()
}

fn commit_us(shown: &Shown) -> f64 {
    shown.one["p50_us"].as_f64().unwrap_or(f64::NAN)
}

fn fail_over_ms(shown: &Shown) -> f64 {
    spread(&shown.fail_over_ms).map_or(f64::NAN, |s| s.median)
}

/// What is compared with what, and the bars.
fn rows(rounds: &[Vec<(Side, Shown)>]) -> Vec<Row> {
    use Bar::{RatioAtLeast, RatioAtMost};
    use Better::{Higher, Lower};
    use Side::{Etcd, OpenRaft, Raas};
    type Of = fn(&Shown) -> f64;
    type Own = (&'static str, &'static str, Of, &'static str, Of, Option<f64>);
    let p99: Of = |shown| shown.one["p99_us"].as_f64().unwrap_or(f64::NAN);
    let rate: Of = |shown| shown.many["rate"].as_f64().unwrap_or(f64::NAN);
    let beside = [
        ("commit of 64 B, one client, p50", "us", Lower, commit_us as Of, OpenRaft, Some(RatioAtMost(0.5))),
        ("commit of 64 B, one client, p50", "us", Lower, commit_us, Etcd, Some(RatioAtMost(0.2))),
        ("commit of 64 B, one client, p99", "us", Lower, p99, OpenRaft, None),
        ("commit of 64 B, one client, p99", "us", Lower, p99, Etcd, None),
        ("commits of 64 clients", "commits/s", Higher, rate, OpenRaft, Some(RatioAtLeast(3.0))),
        ("commits of 64 clients", "commits/s", Higher, rate, Etcd, None),
        ("fail-over, leader's process killed", "ms", Lower, fail_over_ms, Etcd, Some(RatioAtMost(0.1))),
        ("fail-over, leader's process killed", "ms", Lower, fail_over_ms, OpenRaft, None),
    ];
    let is_there = |side: Side| rounds.iter().flatten().any(|(of, _)| *of == side);
    let mut rows: Vec<Row> = beside
        .into_iter()
        .filter(|(.., rival, _)| is_there(*rival))
        .map(|(case, unit, better, of, rival, bar)| {
            let (ours, rival_values) = (values(rounds, Raas, of), values(rounds, rival, of));
            let (case, unit, rival) = (case.to_owned(), unit.to_owned(), rival.name().to_owned());
            Row {
                series: Series { case, unit, better, ours, rival, rival_values },
                bar: bar.map(|bar| (bar, Kind::Must)),
            }
        })
        .collect();
    let commit: Of = commit_us;
    let (one_write, case) = ("one acknowledged WRITE", "commit of 64 B, one client, p50");
    let (accept, prepare) = ("WRITE and swap of a ballot there", "swap of a ballot at each other host");
    let own: [Own; 7] = [
        (case, "us", commit, one_write, |shown| shown.write_us, None),
        (case, "us", commit, "a WRITE to each other host at a time", |shown| shown.writes_us, None),
        ("a WRITE to each other host", "us", |shown| shown.writes_us, accept, |shown| shown.accept_us, None),
        ("fence alone", "us", |shown| shown.fence_us, prepare, |shown| shown.prepare_us, None),
        (
            "fail-over in commits",
            "us",
            |shown| fail_over_ms(shown) * 1e3,
            "a commit of one client",
            commit,
            Some(700.0),
        ),
        ("fence alone in commits", "us", |shown| shown.fence_us, "a commit of one client", commit, Some(200.0)),
        (
            "followers' programs at 10,000 commits/s",
            "s",
            |shown| shown.followers,
            "the leader's program",
            |shown| shown.leader,
            Some(0.01),
        ),
    ];
    rows.extend(own.into_iter().filter(|_| is_there(Raas)).map(|(case, unit, ours, rival, beside, bar)| {
        let (ours, rival_values) = (values(rounds, Raas, ours), values(rounds, Raas, beside));
        let (case, unit, rival) = (case.to_owned(), unit.to_owned(), rival.to_owned());
        let series = Series { case, unit, better: Lower, ours, rival, rival_values };
        Row { series, bar: bar.map(|bar| (RatioAtMost(bar), Kind::Must)) }
    }));
    rows
}

/// The times of one client's commits, and of fail-overs, as distributions.
fn drawn(rounds: &[Vec<(Side, Shown)>]) -> Vec<(String, Figure)> {
    let parts: Vec<f64> = rounds
        .iter()
        .flatten()
        .next()
        .map(|(_, shown)| shown.one["parts"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect())
        .unwrap_or_default();
    if parts.is_empty() {
        return vec![];
    }
    let figure = |title: &str, y: &str, lines| Figure {
        number: None,
        title: title.to_owned(),
        x: "of a hundred, so many take at most".to_owned(),
        y: y.to_owned(),
        scale: Scale::Log,
        lines,
        rows: vec![],
        beside: Value::Null,
    };
    let commits = Side::ALL.map(|side| Line {
        name: side.name().to_owned(),
        points: (0..parts.len())
            .map(|at| {
                let of = |shown: &Shown| shown.one["times_us"][at].as_f64().unwrap_or(f64::NAN);
                Point { x: parts[at], values: values(rounds, side, of) }
            })
            .collect(),
    });
    let fail_overs = Side::ALL.map(|side| {
        let mut all: Vec<f64> =
            rounds.iter().flatten().filter(|(of, _)| *of == side).flat_map(|(_, s)| s.fail_over_ms.clone()).collect();
        all.sort_by(f64::total_cmp);
        let point = |part: f64| {
            let place = (part / 100.0 * all.len() as f64) as usize;
            let value = all.get(place.min(all.len().saturating_sub(1))).copied();
            Point { x: part, values: value.into_iter().collect() }
        };
        Line { name: side.name().to_owned(), points: [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 100.0].map(point).to_vec() }
    });
    let is_there = |line: &Line| line.points.iter().any(|point| !point.values.is_empty());
    vec![
        (
            "agree-commits".to_owned(),
            figure("A commit of 64 bytes, one client", "us", commits.into_iter().filter(is_there).collect()),
        ),
        (
            "agree-fail-overs".to_owned(),
            figure("From the leader's end to a commit", "ms", fail_overs.into_iter().filter(is_there).collect()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    fn shown(us: f64, rate: f64, ms: f64) -> Shown {
        let one = json!({ "p50_us": us, "p99_us": us * 2.0, "parts": [50.0, 99.0], "times_us": [us, us * 2.0] });
        Shown {
            one,
            many: json!({ "rate": rate }),
            fail_over_ms: vec![ms; 2],
            fence_us: us * 100.0,
            write_us: us / 2.0,
            accept_us: 150.0,
            prepare_us: 140.0,
            writes_us: us,
            followers: 0.5,
            leader: 1.0,
            paced_rate: 1e4,
        }
    }

    #[test]
    fn each_bar_is_judged_by_its_own_rival() {
        let round = || {
            vec![
                (Side::Raas, shown(40.0, 9e4, 20.0)),
                (Side::OpenRaft, shown(100.0, 2e4, 200.0)),
                (Side::Etcd, shown(150.0, 1e4, 900.0)),
            ]
        };
        let rows = rows(&(0..9).map(|_| round()).collect::<Vec<_>>());
        let verdict = |case: &str, rival: &str| {
            let row = rows.iter().find(|row| row.series.case.contains(case) && row.series.rival.contains(rival));
            row.and_then(Row::verdict)
        };
        assert_eq!(verdict("p50", "openraft"), Some(Verdict::Met));
        assert_eq!(verdict("p50", "etcd"), Some(Verdict::Missed), "0.27 is more than 0.2");
        assert_eq!(verdict("64 clients", "openraft"), Some(Verdict::Met));
        assert_eq!(verdict("killed", "etcd"), Some(Verdict::Met));
        assert_eq!(verdict("fail-over in commits", "commit"), Some(Verdict::Met), "500 commits");
        assert_eq!(verdict("fence", "commit"), Some(Verdict::Met));
        assert_eq!(verdict("followers", "leader"), Some(Verdict::Missed));
    }

    #[test]
    fn a_rival_that_is_not_there_has_no_row_and_no_line() {
        let rounds = [vec![(Side::Raas, shown(40.0, 9e4, 20.0))]];
        assert!(rows(&rounds).iter().all(|row| !row.series.rival.contains("openraft")));
        let drawn = drawn(&rounds);
        assert!(drawn.iter().all(|(_, figure)| figure.lines.len() == 1), "{drawn:?}");
    }
}

//! What a commit costs in verbs, by the daemons' counters: WRITEs of the leader's, and nothing of the others'.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::{Cluster, Side, ends};
use crate::Args;
use crate::place::{End, Place};
use crate::report::Findings;
use crate::stats::{Bar, Better, Kind, Row, Series};
use harness::child::{self, Stream};
use harness::repo::Repo;

const SECONDS: f64 = 0.3;
const STAT_LIMIT: Duration = Duration::from_secs(30);
/// After a load the commit index is told by a word to each memory, once.
const TOLD: Duration = Duration::from_millis(100);
/// How often the commit index is told by a WRITE to each other host, at most, where no command took it along.
const PERIOD: Duration = Duration::from_millis(5);

/// So many loads of one client, each between two looks at all counters. A memory that is slow gets several commands with one
/// WRITE, so there may be less than one WRITE for each.
pub(super) fn count(place: &Place, repo: &Repo, args: &Args, findings: &mut Findings) -> Result<()> {
    let hosts = ends(place);
    let mut cluster = Cluster::start(place, repo, Side::Raas)?;
    let (leader, others) = cluster.leader_and_others();
    let of = |end: End| hosts.iter().position(|host| *host == end).context("a member's host");
    let (leader, others) = (of(leader)?, others.into_iter().map(of).collect::<Result<Vec<_>>>()?);
    let look = || hosts.iter().map(|end| verbs(place, *end)).collect::<Result<Vec<_>>>();
    let (mut writes, mut allowed) = (vec![], vec![]);
    std::thread::sleep(TOLD);
    for _ in 0..args.rounds() {
        let (before, begin) = (look()?, Instant::now());
        let load = cluster.load(1, args.seconds(SECONDS), 0.0)?;
        std::thread::sleep(TOLD);
        let after = look()?;
        let total = load["total"].as_u64().context("commits")?;
        let grown = |at: usize, verb: &str| -> Result<u64> {
            let of = |all: &[Value]| all[at][verb].as_u64().with_context(|| format!("a counter of {verb}"));
            Ok(of(&after)? - of(&before)?)
        };
        let led = grown(leader, "write")?;
        for at in &others {
            let (sent, written) = (grown(*at, "send")?, grown(*at, "write")? + grown(*at, "write_imm")?);
            ensure!(written == 0, "a follower's daemon wrote {written} times in {total} commits");
            findings.figures.push(json!({
                "case": format!("a follower's verbs, {} hosts", hosts.len()), "commits": total, "send": sent,
                "write": written, "read": grown(*at, "read")?,
            }));
        }
        let to = hosts.len() as u64 - 1;
        let periods = begin.elapsed().as_secs_f64() / PERIOD.as_secs_f64();
        findings.figures.push(json!({
            "case": format!("the leader's verbs, {} hosts", hosts.len()), "commits": total, "write": led,
            "send": grown(leader, "send")?, "read": grown(leader, "read")?,
        }));
        writes.push(led as f64 / total as f64);
        allowed.push(to as f64 * (1.0 + periods / total as f64));
    }
    let series = Series {
        case: format!("WRITEs of a commit, {} hosts", hosts.len()),
        unit: "WRITEs".to_owned(),
        better: Better::Lower,
        rival: "one to each other host, and a word in a period".to_owned(),
        rival_values: allowed,
        ours: writes,
    };
    findings.rows.push(Row { series, bar: Some((Bar::RatioAtMost(1.0), Kind::Must)) });
    Ok(())
}

fn verbs(place: &Place, end: End) -> Result<Value> {
    let raas = place.program("raas");
    let ended = child::run_quiet(&mut place.command(end, &[&raas, "stat", "--json"]), STAT_LIMIT)?;
    ensure!(ended.success(), "raas stat: {}\n{}", ended.describe(), ended.text(Stream::Err));
    let stat: Value = serde_json::from_str(&ended.text(Stream::Out)).context("raas stat")?;
    Ok(stat["verbs"].clone())
}

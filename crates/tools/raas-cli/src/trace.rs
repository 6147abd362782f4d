//! `raas trace`: where the time of messages went, stage by stage, as a table and as a file for Perfetto or Chrome.

mod carried;
mod perfetto;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use carried::Carried;
use control::{ConnectionRow, StageRow, TraceRow};
use serde_json::{Value, json};

use crate::cli::TraceArgs;
use crate::ss::{self, programs::Programs};
use terminal::table::{self, Align, Table};
use terminal::{Failure, out};
use transport::session_failure;

/// The daemon keeps the last messages of each engine, so it is asked this often.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Connections of one host are looked at this often, so that one which ends meanwhile is not left out.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Messages that are kept at most.
const MESSAGES_MAX: usize = 1 << 20;
/// Stages in the order of a message's way, and what each is.
const STAGES: &[(&str, &str)] = &[
    ("tx-doorbell", "the program has written it, until the engine sees it"),
    ("tx-engine", "the engine has seen it, until it is in the send queue"),
    ("tx-device", "from there until the device says that it is done"),
    ("tx-delivery", "from the send queue until this host knows that the peer's program has read it"),
    ("rx-publish", "it has arrived, until the program is told"),
    ("rx-application", "from there until the engine knows that the program has read it"),
];

/// Messages, by engine and number: each is told several times.
type Messages = BTreeMap<(u32, u64), TraceRow>;

/// Asks the daemon and prints what it saw.
pub(crate) fn run(args: &TraceArgs) -> Result<(), Failure> {
    let socket = args.socket.path();
    if let (Some(id), Some(_)) = (args.id, args.seconds) {
        ss::connection(socket, id)?;
    }
    let (messages, carried) = gather(socket, args.id, args.seconds)?;
    let carried = carried.rows(args.id);
    // Of a connection that ended the daemon may still have messages.
    if let Some(id) = args.id.filter(|_| messages.is_empty() && carried.is_empty()) {
        ss::connection(socket, id)?;
    }
    if let Some(file) = &args.perfetto {
        let text = perfetto::to_json(messages.values()).to_string();
        std::fs::write(file, text).map_err(|e| Failure::failed(file.display(), e))?;
    }
    let stat = raas::inspect::stat(socket).map_err(session_failure)?;
    if args.json {
        return out::line(to_json(&messages, &stat.stages, &carried)).map(drop);
    }
    if messages.is_empty() && carried.is_empty() {
        let whose = args.id.map_or(String::new(), |id| format!(" of connection {id}"));
        return out::line(table::paragraph(&format!(
            "no message{whose} was looked at: of each stream the messages with every 16384th byte are, from the first on"
        )))
        .map(drop);
    }
    let stages = if messages.is_empty() { String::new() } else { to_text(&messages) };
    let bytes = if carried.is_empty() { String::new() } else { carried::to_text(&carried, &Programs::of(&stat.apps)) };
    let between = if stages.is_empty() || bytes.is_empty() { "" } else { "\n" };
    out::print(format!("{stages}{between}{bytes}")).map(drop)
}

/// What the daemon has now or, with `seconds`, what it looks at in that time.
fn gather(socket: Option<&Path>, id: Option<u64>, seconds: Option<f64>) -> Result<(Messages, Carried), Failure> {
    let ask = || raas::inspect::trace(socket).map_err(session_failure);
    let connections = || raas::inspect::connections(socket).map_err(session_failure);
    let mine = |row: &TraceRow| id.is_none_or(|id| row.connection == id);
    let mut all = Messages::new();
    let mut take = |rows: Vec<TraceRow>, old: &Messages| {
        let rows = rows.into_iter().filter(mine).map(|row| ((row.engine, row.number), row));
        all.extend(rows.filter(|(key, _)| !old.contains_key(key)).take(MESSAGES_MAX));
        all.len() >= MESSAGES_MAX
    };
    let Some(seconds) = seconds else {
        take(ask()?, &Messages::new());
        let mut carried = Carried::default();
        carried.look(connections()?);
        return Ok((all, carried));
    };
    let mut carried = Carried::since(connections()?);
    let old: Messages = ask()?.into_iter().map(|row| ((row.engine, row.number), row)).collect();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut looked = Instant::now();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(ASK_EVERY));
        let is_over = take(ask()?, &old) || left.is_zero();
        if is_over || looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            carried.look(connections()?);
        }
        if is_over {
            return Ok((all, carried));
        }
    }
}

/// Lengths of a stage, in order.
fn lengths(messages: &Messages, stage: &str) -> Vec<u64> {
    let stages = messages.values().flat_map(|row| &row.stages).filter(|(name, ..)| name == stage);
    let mut all: Vec<u64> = stages.map(|(_, from, to)| to.saturating_sub(*from)).collect();
    all.sort_unstable();
    all
}

fn quantile(sorted: &[u64], part: f64) -> u64 {
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.max(1) - 1).copied().unwrap_or(0)
}

fn to_json(messages: &Messages, since_start: &[StageRow], carried: &[ConnectionRow]) -> Value {
    let stages = STAGES.iter().map(|(name, _)| (name, lengths(messages, name))).filter(|(_, all)| !all.is_empty());
    let stages = stages.map(|(name, all)| {
        json!({
            "name": name,
            "count": all.len(),
            "p50_ns": quantile(&all, 0.5),
            "p99_ns": quantile(&all, 0.99),
            "max_ns": all.last(),
        })
    });
    let whole = since_start.iter().map(
        |s| json!({ "name": s.name, "count": s.count(), "p50_ns": s.quantile_ns(0.5), "p99_ns": s.quantile_ns(0.99) }),
    );
    let rows = messages.values().map(|row| {
        let stages = row.stages.iter().map(|(name, from, to)| json!({ "name": name, "from_ns": from, "to_ns": to }));
        json!({
            "engine": row.engine,
            "number": row.number,
            "connection": row.connection,
            "peer": row.peer,
            "offset": row.offset,
            "stages": stages.collect::<Vec<_>>(),
        })
    });
    json!({
        "schema": "raas.trace/1",
        "stages": stages.collect::<Vec<_>>(),
        "since_start": whole.collect::<Vec<_>>(),
        "messages": rows.collect::<Vec<_>>(),
        "same_host": carried::to_json(carried),
    })
}

fn to_text(messages: &Messages) -> String {
    let mut t = Table::new(&[
        ("STAGE", Align::Left),
        ("MESSAGES", Align::Right),
        ("P50", Align::Right),
        ("P99", Align::Right),
        ("LONGEST", Align::Right),
        ("WHAT", Align::Left),
    ])
    .spare(&["WHAT", "LONGEST"]);
    for (name, what) in STAGES {
        let all = lengths(messages, name);
        let Some(longest) = all.last() else { continue };
        t.row(vec![
            (*name).to_owned(),
            table::grouped(all.len() as u64),
            micros(quantile(&all, 0.5)),
            micros(quantile(&all, 0.99)),
            micros(*longest),
            (*what).to_owned(),
        ]);
    }
    t.render()
}

fn micros(ns: u64) -> String {
    format!("{}.{} us", table::grouped(ns / 1000), ns % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn message(number: u64, stages: &[(&str, u64, u64)]) -> TraceRow {
        TraceRow {
            engine: 0,
            number,
            connection: 7,
            peer: "10.0.0.2:80".parse().unwrap(),
            offset: number * 16_384,
            stages: stages.iter().map(|(name, from, to)| ((*name).to_owned(), *from, *to)).collect(),
        }
    }

    fn messages() -> Messages {
        let row = |n: u64| message(n, &[("tx-engine", 1000, 1000 + n * 100), ("tx-delivery", 2000, 12_000)]);
        (1..=100).map(|n| ((0, n), row(n))).collect()
    }

    #[test]
    fn quantiles_are_those_of_the_messages() {
        let value = to_json(&messages(), &[], &[]);
        assert_eq!(value["schema"], "raas.trace/1");
        assert_eq!(
            value["stages"][0],
            json!({"name": "tx-engine", "count": 100, "p50_ns": 5000, "p99_ns": 9900, "max_ns": 10_000})
        );
        assert_eq!(value["stages"].as_array().unwrap().len(), 2, "stages of which there are none are not told");
        assert_eq!(value["messages"][3]["stages"][1], json!({"name": "tx-delivery", "from_ns": 2000, "to_ns": 12_000}));
        assert_eq!((quantile(&[], 0.5), quantile(&[3], 0.99), quantile(&[1, 2], 0.5)), (0, 3, 1));
    }

    #[test]
    fn a_person_sees_microseconds_in_the_order_of_the_way() {
        let text = to_text(&messages());
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().take(6).collect::<Vec<_>>()).collect();
        assert_eq!(lines[1], ["tx-engine", "100", "5.0", "us", "9.9", "us"]);
        assert_eq!(lines[2], ["tx-delivery", "100", "10.0", "us", "10.0", "us"]);
    }
}

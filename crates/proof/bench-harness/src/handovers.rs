//! Bench `handovers`: how often each process of a transfer sleeps, yields and is woken, and by whom, over RaaS and over
//! kernel TCP between two namespaces. Owns the cases and the table. It has no bar.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::place::{End, Place, at};
use super::process::{Beside, READY_WITHIN};
use super::report::Findings;
use super::stats::{Better, Row, Series, spread};
use super::threads::{self, Thread};
use super::{Args, perf};
use harness::child::{self, Stream};
use harness::repo::Repo;

/// A load: name, test of sockbench, bytes of a message.
const CASES: [(&str, &str, u32); 3] =
    [("stream of 64 KiB", "bw", 64 << 10), ("messages of 8 B", "bw", 8), ("ping-pong of 64 B", "lat", 64)];
const TRANSPORTS: [&str; 2] = ["raas", "tcp"];
/// Seconds of each look.
const SECONDS: f64 = 0.5;
/// Before the first look: rings grow, windows open.
const WARM_UP: Duration = Duration::from_millis(400);
/// The load lasts longer than the looks by this, because the programs that look take time to start.
const LOAD_EXTRA: f64 = 4.0;
const LIMIT: Duration = Duration::from_secs(120);
/// The figures of a thread, in the order of the table.
const COLUMNS: [&str; 9] =
    ["ran_us", "queued_us", "slept", "gave_way", "yields", "futexes", "waits", "sends", "receives"];

/// Figures of a second, by what they are about.
type Figures = BTreeMap<(String, String), f64>;

/// One run of one side.
#[derive(Debug, Default)]
struct Run {
    gb_per_s: f64,
    msgs_per_s: f64,
    /// Of each thread (`process thread`) and column.
    threads: Figures,
    /// From waker to woken.
    wakes: Figures,
    /// Of each daemon and counter.
    counters: Figures,
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let (rounds, seconds) = (args.rounds(), args.seconds(SECONDS));
    let place = Place::two_hosts(repo, "handovers", args.mtu, "")?;
    let mut findings = Findings { rounds, ..Findings::default() };
    let missing = perf::missing();
    if let Some(why) = &missing {
        eprintln!("NO SYSTEM CALLS AND NO WAKERS IN THE TABLE: {why}");
    }
    findings.setting = json!({ "seconds": seconds, "link": "veth", "mtu": args.mtu, "perf_missing": missing });
    for (case, test, bytes) in CASES.into_iter().filter(|(case, ..)| args.wants(case)) {
        let mut runs = [vec![], vec![]];
        for round in 0..rounds as usize {
            for step in 0..TRANSPORTS.len() {
                let which = (round + step) % TRANSPORTS.len();
                let look = Look { place: &place, seconds, with_perf: missing.is_none() };
                let run = look.run(TRANSPORTS[which], test, bytes);
                runs[which].push(run.with_context(|| format!("{case} over {}", TRANSPORTS[which]))?);
            }
        }
        println!("{case}: {rounds} rounds done");
        findings.rows.extend(rows(case, &runs));
        for (transport, runs) in TRANSPORTS.iter().zip(&runs) {
            let figure = figure(case, transport, runs);
            println!("{}", markdown(&figure));
            findings.figures.push(figure);
        }
    }
    Ok(findings)
}

/// How a side is looked at.
struct Look<'p> {
    place: &'p Place,
    seconds: f64,
    with_perf: bool,
}

impl Look<'_> {
    fn run(&self, transport: &str, test: &str, bytes: u32) -> Result<Run> {
        let place = self.place;
        let program = place.program("sockbench");
        let listen = at(place.server(), 0);
        let words = [program.as_str(), "server", "--transport", transport, "--at", &listen];
        let mut server = Beside::start(&mut place.command(End::Server, &words))?;
        let to = server.wait_line("ready ", READY_WITHIN)?;
        let (load, size) = ((self.seconds * 3.0 + LOAD_EXTRA).to_string(), bytes.to_string());
        let words = [program.as_str(), "client", "--transport", transport, "--to", &to, "--test", test];
        let words = [&words[..], &["--size", &size, "--seconds", &load]].concat();
        let mut client = Beside::start(&mut place.command(End::Client, &words))?;
        std::thread::sleep(WARM_UP);
        let mut processes = vec![("client program", client.pid()), ("server program", server.pid())];
        if transport == "raas" {
            processes.extend(["client daemon", "server daemon"].into_iter().zip(place.daemon_pids()));
        }
        let mut run = self.look(&processes)?;
        let report = client.wait_line("{", LIMIT).context("the client's report")?;
        let report: Value = serde_json::from_str(&format!("{{{report}")).context("the client's report is not JSON")?;
        server.end();
        // Each way of a ping-pong is a message.
        let trips = report["half_rtt_us"].as_f64().map(|us| 1e6 / us);
        run.msgs_per_s = report["msgs_per_s"].as_f64().or(trips).context("the client measured nothing")?;
        run.gb_per_s = run.msgs_per_s * f64::from(bytes) / 1e9;
        Ok(run)
    }

    /// All figures, of a second.
    fn look(&self, processes: &[(&'static str, u32)]) -> Result<Run> {
        let mut run = Run::default();
        let with_daemons = processes.len() > TRANSPORTS.len();
        let counters = || if with_daemons { self.counters() } else { Ok(Figures::new()) };
        let snapshot = || processes.iter().map(|(_, pid)| threads::of(*pid)).collect::<Result<Vec<_>>>();
        let (counted, before, begin) = (counters()?, snapshot()?, std::time::Instant::now());
        std::thread::sleep(Duration::from_secs_f64(self.seconds));
        let (after, took) = (snapshot()?, begin.elapsed().as_secs_f64());
        for (key, value) in counters()? {
            let added = value - counted.get(&key).copied().unwrap_or_default();
            *run.counters.entry(key).or_default() += added / begin.elapsed().as_secs_f64();
        }
        let mut names = BTreeMap::new();
        for (((role, _), before), after) in processes.iter().zip(&before).zip(&after) {
            for (id, thread) in after {
                let name = format!("{role} {}", thread.name);
                add(&mut run.threads, &name, &thread.since(before.get(id)), took);
                names.insert(*id, name);
            }
        }
        if self.with_perf {
            let pids: Vec<u32> = processes.iter().map(|(_, pid)| *pid).collect();
            for (id, calls) in perf::calls(&pids, self.seconds)? {
                let Some(name) = names.get(&id) else { continue };
                for (kind, count) in calls {
                    *run.threads.entry((name.clone(), kind.to_owned())).or_default() += count / self.seconds;
                }
            }
            let file = self.place.file("perf.data");
            for ((waker, woken), count) in perf::wakes(&file, self.seconds)? {
                let Some(woken) = names.get(&woken) else { continue };
                let waker = match waker {
                    0 => "an interrupt",
                    _ => names.get(&waker).map_or("another program", String::as_str),
                };
                *run.wakes.entry((waker.to_owned(), woken.clone())).or_default() += count / self.seconds;
            }
        }
        // The load must have lasted to the end of the last look.
        snapshot().context("the load ended before it was looked at")?;
        Ok(run)
    }

    /// All counters of both daemons.
    fn counters(&self) -> Result<Figures> {
        let mut all = Figures::new();
        let raas = self.place.program("raas");
        for (end, role) in [(End::Client, "client daemon"), (End::Server, "server daemon")] {
            let ended = child::run_quiet(&mut self.place.command(end, &[&raas, "stat", "--json"]), LIMIT)?;
            ensure!(ended.success(), "raas stat: {}\n{}", ended.describe(), ended.text(Stream::Err));
            let stat: Value = serde_json::from_str(&ended.text(Stream::Out)).context("raas stat printed no JSON")?;
            let counters = stat["counters"].as_object().context("raas stat has counters")?;
            let values = counters.iter().filter_map(|(name, value)| Some((name, value.as_f64()?)));
            all.extend(values.map(|(name, value)| ((role.to_owned(), name.clone()), value)));
        }
        Ok(all)
    }
}

/// Threads of one name count together.
fn add(figures: &mut Figures, name: &str, thread: &Thread, seconds: f64) {
    let values = [thread.ran_ns / 1e3, thread.queued_ns / 1e3, thread.slept, thread.gave_way];
    for (column, value) in COLUMNS.iter().zip(values) {
        *figures.entry((name.to_owned(), (*column).to_owned())).or_default() += value / seconds;
    }
}

/// Everything that all threads did, of RaaS beside TCP, for a gigabyte and for a message.
fn rows(case: &str, runs: &[Vec<Run>; 2]) -> Vec<Row> {
    let units: [(&str, fn(&Run) -> f64); 2] = [("GB", |run| run.gb_per_s), ("message", |run| run.msgs_per_s)];
    let what: [(&str, &[&str]); 3] =
        [("sleeps", &["slept"]), ("switches", &["slept", "gave_way"]), ("yields", &["yields"])];
    let mut rows = vec![];
    for (unit, per_s) in units {
        for (name, columns) in what {
            let value = |run: &Run| {
                let of = run.threads.iter().filter(|((_, column), _)| columns.contains(&column.as_str()));
                of.map(|(_, value)| value).sum::<f64>() / per_s(run)
            };
            let [ours, rival] = runs.each_ref().map(|runs| runs.iter().map(value).collect());
            let series = Series {
                case: format!("{case}: {name} a {unit}"),
                unit: name.to_owned(),
                better: Better::Lower,
                ours,
                rival: TRANSPORTS[1].to_owned(),
                rival_values: rival,
            };
            rows.push(Row { series, bar: None });
        }
    }
    rows
}

/// Medians of the rounds, of a gigabyte and of a message.
fn figure(case: &str, transport: &str, runs: &[Run]) -> Value {
    let medians = |of: fn(&Run) -> &Figures| {
        let keys: BTreeSet<&(String, String)> = runs.iter().flat_map(|run| of(run).keys()).collect();
        let list = keys.into_iter().map(|key| {
            let each = |per_s: fn(&Run) -> f64| {
                let values = runs.iter().map(|run| of(run).get(key).copied().unwrap_or_default() / per_s(run));
                spread(&values.collect::<Vec<_>>()).map_or(0.0, |s| s.median)
            };
            json!({ "of": key.0, "what": key.1, "a_gb": each(|run| run.gb_per_s), "a_message": each(|run| run.msgs_per_s) })
        });
        list.filter(|line| line["a_gb"].as_f64().is_some_and(|value| value > 0.0)).collect::<Vec<_>>()
    };
    let rate = |of: fn(&Run) -> f64| spread(&runs.iter().map(of).collect::<Vec<_>>()).map(|s| s.median);
    json!({
        "case": case, "transport": transport, "gb_per_s": rate(|run| run.gb_per_s),
        "msgs_per_s": rate(|run| run.msgs_per_s), "threads": medians(|run| &run.threads),
        "wakes": medians(|run| &run.wakes), "counters": medians(|run| &run.counters),
    })
}

/// The tables of docs/benchmarks.md: of streams for a gigabyte, of small messages for a thousand of them.
fn markdown(figure: &Value) -> String {
    let of_gb = figure["case"].as_str().is_some_and(|case| case.contains("stream"));
    let (key, scale, unit) = if of_gb { ("a_gb", 1.0, "a GB") } else { ("a_message", 1e3, "a thousand messages") };
    let lines = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let mut out = format!("\n{} over {}, {unit}\n\n| thread |", figure["case"], figure["transport"]);
    let heads = COLUMNS.map(|column| format!(" {} |", column.replace("_us", ", us").replace('_', " ")));
    out += &format!("{}\n|{}\n", heads.concat(), "---|".repeat(COLUMNS.len() + 1));
    let mut threads: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for line in lines(&figure["threads"]) {
        let (of, what) = (line["of"].as_str().unwrap_or_default(), line["what"].as_str().unwrap_or_default());
        threads.entry(of.to_owned()).or_default().insert(what.to_owned(), line[key].as_f64().unwrap_or_default());
    }
    for (name, columns) in threads {
        let cells =
            COLUMNS.map(|column| columns.get(column).map_or(" - |".into(), |v| format!(" {} |", short(v * scale))));
        out += &format!("| {name} |{}\n", cells.concat());
    }
    out += &format!("\n| waker | woken | {unit} |\n|---|---|---|\n");
    for line in lines(&figure["wakes"]) {
        let count = line[key].as_f64().unwrap_or_default() * scale;
        let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        out += &format!("| {} | {} | {} |\n", word("of"), word("what"), short(count));
    }
    out
}

fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(slept: f64, yields: f64) -> Run {
        let key = |what: &str| ("client daemon raas-engine".to_owned(), what.to_owned());
        Run {
            gb_per_s: 2.0,
            msgs_per_s: 1000.0,
            threads: BTreeMap::from([(key("slept"), slept), (key("gave_way"), slept), (key("yields"), yields)]),
            wakes: BTreeMap::from([(("client program sockbench".into(), "client daemon raas-engine".into()), slept)]),
            counters: Figures::new(),
        }
    }

    #[test]
    fn figures_are_of_a_gigabyte_and_of_a_message() {
        let rows = rows("c", &[vec![run(10.0, 6.0)], vec![run(4.0, 0.0)]]);
        let found: Vec<_> = rows.iter().map(|row| (row.series.case.as_str(), row.series.ours[0])).collect();
        assert_eq!(
            found,
            [
                ("c: sleeps a GB", 5.0),
                ("c: switches a GB", 10.0),
                ("c: yields a GB", 3.0),
                ("c: sleeps a message", 0.01),
                ("c: switches a message", 0.02),
                ("c: yields a message", 0.006),
            ]
        );
        assert_eq!(rows[0].series.rival_values, [2.0]);
    }

    #[test]
    fn the_table_has_a_line_for_each_thread_and_each_wake() {
        let figure = figure("stream of 64 KiB", "raas", &[run(10.0, 6.0), run(10.0, 0.0), run(30.0, 0.0)]);
        let table = markdown(&figure);
        assert!(table.contains("| client daemon raas-engine | - | - | 5.0 | 5.0 | - |"), "{table}");
        assert!(table.contains("| client program sockbench | client daemon raas-engine | 5.0 |"), "{table}");
        let small = markdown(&json!({"case": "messages", "wakes": figure["wakes"]}));
        assert!(small.contains("a thousand messages") && small.contains("| 10.0 |"), "{small}");
    }
}

//! Bench `handovers`: how often each process of a transfer sleeps, yields and is woken, and by whom, over RaaS and over
//! kernel TCP between two namespaces. Owns the cases and the table. It has no bar.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::loads::{stream_client, stream_server};
use super::place::{End, Place};
use super::process::Beside;
use super::report::Findings;
use super::rivals::any_port;
use super::stats::{Better, Row, Series, spread};
use super::threads::{self, Thread};
use super::{Args, perf};
use harness::child::{self, Stream};
use harness::repo::Repo;

/// A load: name, test of sockbench, bytes of a message.
const CASES: [(&str, &str, u32); 3] =
    [("stream of 64 KiB", "bw", 64 << 10), ("messages of 8 B", "bw", 8), ("ping-pong of 64 B", "lat", 64)];
/// Who carries it: name, transport of sockbench, configuration of daemons.
const SIDES: [(&str, &str, &str); 3] =
    [("raas roce", "raas", "wire = \"roce\"\n"), ("raas iwarp", "raas", "wire = \"iwarp\"\n"), ("tcp", "tcp", "")];
/// The rival among them.
const TCP: usize = 2;
/// Seconds of each look.
const SECONDS: f64 = 0.5;
/// Before the first look: rings grow, windows open.
const WARM_UP: Duration = Duration::from_millis(400);
/// The load would last so long; it is ended when all was looked at.
const LOAD_SECONDS: &str = "300";
const LIMIT: Duration = Duration::from_secs(120);
/// The figures of a thread, in the order of the table.
const COLUMNS: [&str; 9] =
    ["ran_us", "queued_us", "slept", "gave_way", "yields", "futexes", "waits", "sends", "receives"];

/// Figures of a message, by what they are about.
type Figures = BTreeMap<(String, String), f64>;

/// One run of one side.
#[derive(Debug, Default)]
struct Run {
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
    let mut place = Place::two_hosts(repo, "handovers", args.mtu, "")?;
    place.stop_daemons();
    let mut findings = Findings { rounds, ..Findings::default() };
    let missing = perf::missing();
    if let Some(why) = &missing {
        eprintln!("NO SYSTEM CALLS AND NO WAKERS IN THE TABLE: {why}");
    }
    findings.setting = json!({ "seconds": seconds, "link": "veth", "mtu": args.mtu, "perf_missing": missing });
    for (case, test, bytes) in CASES.into_iter().filter(|(case, ..)| args.wants(case)) {
        let mut runs = [const { vec![] }; SIDES.len()];
        for round in 0..rounds as usize {
            for step in 0..SIDES.len() {
                let which = (round + step) % SIDES.len();
                let (name, transport, config) = SIDES[which];
                if transport == "raas" {
                    place.start_daemons(config)?;
                }
                let look = Look { place: &place, seconds, with_perf: missing.is_none() };
                let run = look.run(transport, test, bytes);
                place.stop_daemons();
                runs[which].push(run.with_context(|| format!("{case} over {name}"))?);
            }
        }
        println!("{case}: {rounds} rounds done");
        findings.rows.extend(rows(case, bytes, &runs));
        for ((name, ..), runs) in SIDES.iter().zip(&runs) {
            let figure = figure(case, name, bytes, runs);
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
        let (server, to) = stream_server(place, transport, &any_port(place))?;
        let size = bytes.to_string();
        let words = [test, "--size", &size, "--seconds", LOAD_SECONDS];
        let mut client = Beside::start(&mut stream_client(place, transport, &to, &words))?;
        std::thread::sleep(WARM_UP);
        let mut processes = vec![("client program", client.pid()), ("server program", server.pid())];
        if transport == "raas" {
            processes.extend(["client daemon", "server daemon"].into_iter().zip(place.daemon_pids()));
        }
        self.look(&processes, &mut client)
    }

    /// All figures, of a message of the time in which they were counted.
    fn look(&self, processes: &[(&'static str, u32)], client: &mut Beside) -> Result<Run> {
        let mut run = Run::default();
        let mut names = BTreeMap::new();
        let with_daemons = !self.place.daemon_pids().is_empty();
        let counters = || if with_daemons { self.counters() } else { Ok(Figures::new()) };
        let snapshot = || processes.iter().map(|(_, pid)| threads::of(*pid)).collect::<Result<Vec<_>>>();
        let counted = counters()?;
        let (before, begin, first) = (snapshot()?, Instant::now(), messages(client)?);
        std::thread::sleep(Duration::from_secs_f64(self.seconds));
        let (after, took, last) = (snapshot()?, begin.elapsed(), messages(client)?);
        let count = (last - first).max(1.0);
        run.msgs_per_s = count / took.as_secs_f64();
        // Asking a daemon takes a moment, in which it goes on.
        let later = counters()?.into_iter();
        let since = |key: &_, value: f64| value - counted.get(key).copied().unwrap_or_default();
        let all_count = count * begin.elapsed().as_secs_f64() / took.as_secs_f64();
        run.counters = later
            .map(|(key, value)| {
                let added = since(&key, value);
                (key, added / all_count)
            })
            .collect();
        for (((role, _), before), after) in processes.iter().zip(&before).zip(&after) {
            for (id, thread) in after {
                let name = format!("{role} {}", thread.name);
                add(&mut run.threads, &name, &thread.since(before.get(id)), count);
                names.insert(*id, name);
            }
        }
        if self.with_perf {
            let pids: Vec<u32> = processes.iter().map(|(_, pid)| *pid).collect();
            self.look_with_perf(&pids, &names, client, &mut run)?;
        }
        // The load must have lasted to the end of the last look.
        snapshot().context("the load ended before it was looked at")?;
        Ok(run)
    }

    fn look_with_perf(
        &self,
        pids: &[u32],
        names: &BTreeMap<u32, String>,
        client: &mut Beside,
        run: &mut Run,
    ) -> Result<()> {
        let file = self.place.file("perf.txt");
        let ([first, last], calls) = perf::calls(pids, &file, self.seconds, || messages(client))?;
        let count = (last - first).max(1.0);
        for (id, calls) in calls {
            let Some(name) = names.get(&id) else { continue };
            for (kind, calls) in calls {
                *run.threads.entry((name.clone(), kind.to_owned())).or_default() += calls / count;
            }
        }
        let file = self.place.file("perf.data");
        let ([first, last], wakes) = perf::wakes(&file, self.seconds, || messages(client))?;
        let count = (last - first).max(1.0);
        for ((waker, woken), wakes) in wakes {
            let Some(woken) = names.get(&woken) else { continue };
            let waker = match waker {
                0 => "an interrupt",
                _ => names.get(&waker).map_or("another program", String::as_str),
            };
            *run.wakes.entry((waker.to_owned(), woken.clone())).or_default() += wakes / count;
        }
        Ok(())
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

/// Messages so far.
fn messages(client: &mut Beside) -> Result<f64> {
    client.say("")?;
    client.wait_line("messages ", LIMIT)?.parse().context("a number of messages")
}

/// Threads of one name count together.
fn add(figures: &mut Figures, name: &str, thread: &Thread, messages: f64) {
    let values = [thread.ran_ns / 1e3, thread.queued_ns / 1e3, thread.slept, thread.gave_way];
    for (column, value) in COLUMNS.iter().zip(values) {
        *figures.entry((name.to_owned(), (*column).to_owned())).or_default() += value / messages;
    }
}

/// Everything that all threads did, of RaaS beside TCP: of a message, of a stream for a gigabyte too.
fn rows(case: &str, bytes: u32, runs: &[Vec<Run>; SIDES.len()]) -> Vec<Row> {
    let units: &[(&str, f64)] = if is_stream(bytes) { &[("message", 1.0), ("GB", 1e9)] } else { &[("message", 1.0)] };
    let what: [(&str, &[&str]); 3] =
        [("sleeps", &["slept"]), ("switches", &["slept", "gave_way"]), ("yields", &["yields"])];
    let mut rows = vec![];
    for (unit, bytes_of_unit) in units {
        let scale = if *unit == "GB" { bytes_of_unit / f64::from(bytes) } else { 1.0 };
        for (name, columns) in what {
            let value = |run: &Run| {
                let of = run.threads.iter().filter(|((_, column), _)| columns.contains(&column.as_str()));
                of.map(|(_, value)| value * scale).sum::<f64>()
            };
            let values = runs.each_ref().map(|runs| runs.iter().map(value).collect::<Vec<f64>>());
            rows.extend(SIDES.iter().zip(&values).take(TCP).map(|((side, ..), ours)| Row {
                series: Series {
                    case: format!("{side}, {case}: {name} a {unit}"),
                    unit: name.to_owned(),
                    better: Better::Lower,
                    ours: ours.clone(),
                    rival: SIDES[TCP].0.to_owned(),
                    rival_values: values[TCP].clone(),
                },
                bar: None,
            }));
        }
    }
    rows
}

/// Whether messages are so long that gigabytes count.
fn is_stream(bytes: u32) -> bool {
    bytes >= 4096
}

/// Medians of the rounds, of a message: of whom, and what.
fn figure(case: &str, side: &str, bytes: u32, runs: &[Run]) -> Value {
    let medians = |of: fn(&Run) -> &Figures| {
        let keys: BTreeSet<&(String, String)> = runs.iter().flat_map(|run| of(run).keys()).collect();
        let mut all: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
        for key in keys {
            let values: Vec<f64> = runs.iter().map(|run| of(run).get(key).copied().unwrap_or_default()).collect();
            if let Some(s) = spread(&values).filter(|s| s.median > 0.0) {
                all.entry(&key.0).or_default().insert(&key.1, s.median);
            }
        }
        json!(all)
    };
    let rate = spread(&runs.iter().map(|run| run.msgs_per_s).collect::<Vec<_>>()).map(|s| s.median);
    json!({
        "case": case, "side": side, "size_bytes": bytes, "msgs_per_s": rate,
        "threads": medians(|run| &run.threads), "wakes": medians(|run| &run.wakes),
        "counters": medians(|run| &run.counters),
    })
}

/// What the bench prints of a side: of streams for a gigabyte, of small messages for a thousand of them.
fn markdown(figure: &Value) -> String {
    let bytes = figure["size_bytes"].as_u64().and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or_default();
    let (scale, unit) = if is_stream(bytes) { (1e9 / f64::from(bytes), "a GB") } else { (1e3, "a thousand messages") };
    let objects = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let count = |value: &Value| value.as_f64().map(|value| short(value * scale));
    let word = |key: &str| figure[key].as_str().unwrap_or_default();
    let mut out = format!("\n{} over {}, {unit}\n\n| thread |", word("case"), word("side"));
    let heads = COLUMNS.map(|column| format!(" {} |", column.replace("_us", ", us").replace('_', " ")));
    out += &format!("{}\n|{}\n", heads.concat(), "---|".repeat(COLUMNS.len() + 1));
    for (name, columns) in objects(&figure["threads"]) {
        let cells = COLUMNS.map(|column| format!(" {} |", count(&columns[column]).unwrap_or("-".to_owned())));
        out += &format!("| {name} |{}\n", cells.concat());
    }
    out += &format!("\n| waker | woken | {unit} |\n|---|---|---|\n");
    for (waker, woken) in objects(&figure["wakes"]) {
        for (name, times) in objects(&woken) {
            out += &format!("| {waker} | {name} | {} |\n", count(&times).unwrap_or_default());
        }
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

    const BYTES: u32 = 64 << 10;

    /// Figures of a GB, though they are kept for a message.
    fn run(slept: f64, yields: f64) -> Run {
        let key = |what: &str| ("client daemon raas-engine".to_owned(), what.to_owned());
        let [slept, yields] = [slept, yields].map(|value| value * f64::from(BYTES) / 1e9);
        Run {
            msgs_per_s: 1000.0,
            threads: BTreeMap::from([(key("slept"), slept), (key("gave_way"), slept), (key("yields"), yields)]),
            wakes: BTreeMap::from([(("client program sockbench".into(), "client daemon raas-engine".into()), slept)]),
            counters: Figures::new(),
        }
    }

    #[test]
    fn figures_are_of_a_gigabyte_and_of_a_message() {
        let runs = [vec![run(5.0, 3.0)], vec![run(4.0, 3.0)], vec![run(2.0, 0.0)]];
        let rows = rows("c", BYTES, &runs);
        let find = |name: &str| rows.iter().find(|row| row.series.case.ends_with(name)).map(|row| row.series.clone());
        let found = |name: &str| find(name).map(|series| (series.ours[0] * 1e6).round() / 1e6);
        assert_eq!([found("roce, c: sleeps a GB"), found("roce, c: switches a GB")], [Some(5.0), Some(10.0)]);
        assert_eq!([found("roce, c: yields a GB"), found("roce, c: yields a message")], [Some(3.0), Some(0.000_197)]);
        assert_eq!(find("roce, c: sleeps a GB").map(|series| series.rival_values[0].round()), Some(2.0));
        assert!(super::rows("c", 8, &runs).iter().all(|row| !row.series.case.contains("GB")));
    }

    #[test]
    fn the_table_has_a_line_for_each_thread_and_each_wake() {
        let figure = figure("stream of 64 KiB", "raas", BYTES, &[run(5.0, 6.0), run(5.0, 0.0), run(9.0, 0.0)]);
        let table = markdown(&figure);
        assert!(table.contains("| client daemon raas-engine | - | - | 5.0 | 5.0 | - |"), "{table}");
        assert!(table.contains("| client program sockbench | client daemon raas-engine | 5.0 |"), "{table}");
        let small = markdown(&json!({"case": "messages", "size_bytes": 8, "wakes": { "a": { "b": 0.01 } }}));
        assert!(small.contains("a thousand messages") && small.contains("| a | b | 10.0 |"), "{small}");
    }
}

//! The conformance of sockets: each case of `tests/sockets` on kernel TCP, then under `raas run`, and the transcripts
//! compared. Owns the runs and the verdict; the page of differences is `differences`, one run of a case is `pair`.

mod differences;
mod pair;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::child::{self, Stream};
use harness::repo::Repo;
use harness::tally::Tally;

use super::Args;
use super::place::{Built, Place, Way};
use differences::Differences;
use pair::Transcript;

const SOURCES: &str = "tests/sockets";
/// A library that a case loads, from beside the program and under its name with this ending.
const LIBRARY: (&str, &str) = ("tests/sockets/library/last_words.c", "-last-words.so");
const COMPILE_LIMIT: Duration = Duration::from_secs(300);
/// As many as programs of distributions are built with.
const FLAGS: &[&str] =
    &["-O2", "-D_GNU_SOURCE", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra", "-Wno-parentheses", "-pthread"];
/// Fewer would mean that the program's list was not read.
const CASES_MIN: usize = 200;
/// Cases at a time. Nearly all of them wait, for each other's side or for time to pass.
const AT_ONCE: usize = 16;
/// Seeds of the stress: those that the program lists, and how many there are with `--full`, about a minute's worth.
const STRESS_LISTED: u32 = 40;
const STRESS_FULL: u32 = 1500;
/// Cases that are named as the slowest of a way.
const SLOWEST: usize = 4;
/// How a reason begins that is a fault, and no difference that is meant.
const NOT_YET: &str = "not yet";
/// A case that takes so much longer than on TCP is told.
const MUCH_LONGER: Duration = Duration::from_secs(2);
/// Lines that are shown of a transcript that differs.
const SHOWN_MAX: usize = 8;
/// What a case says that needs an io_uring and gets none.
const NO_RING: &str = "the kernel makes no ring";
/// Ways of connecting beside kernel TCP, and whether connections are warm.
const WAYS: &[(Way, bool)] = &[
    (Way::SameHost, true),
    (Way::SameHost, false),
    (Way::TwoHosts, true),
    (Way::TwoHosts, false),
    (Way::Polled, true),
    (Way::ClientOnly, false),
    (Way::ServerOnly, false),
];
/// Those of the test command without `--full`: over shared memory from the first byte on, over the lane from somewhere
/// in the middle on, and as two hosts without RDMA hardware have it.
const WAYS_SHORT: &[(Way, bool)] = &[(Way::SameHost, true), (Way::TwoHosts, false), (Way::Polled, true)];

/// Transcripts by case.
type Transcripts = BTreeMap<String, Transcript>;

pub(super) fn run(repo: &Repo, args: &Args, built: Option<&Built>) -> Result<Tally> {
    let mut tally = Tally::default();
    let all_begin = Instant::now();
    let program = compile(repo)?;
    let all = list(&program)?;
    let cases: Vec<String> = all.iter().filter(|case| args.wants_name(case)).cloned().collect();
    ensure!(!cases.is_empty(), "no case has such a name");
    let more = if args.full { STRESS_LISTED..STRESS_FULL } else { 0..0 };
    let more = more.map(|seed| format!("stress/{seed}")).filter(|case| args.wants_name(case));
    let cases: Vec<String> = cases.into_iter().chain(more).collect();
    let begin = Instant::now();
    let plain = run_all(&program, &cases, &Place::new(Way::Tcp, None)?, false)?;
    // Those that take long begin first from now on.
    let mut cases = cases;
    cases.sort_by_key(|case| std::cmp::Reverse(plain[case].took));
    println!("     {}", slowest(&plain));
    tally.case(&format!("sockets: {} cases on TCP", cases.len()), begin.elapsed(), &unfinished(&plain));
    if plain.values().any(|one| one.text.contains(NO_RING)) {
        tally.skip("sockets: ring/*", "the kernel makes no io_uring for this user");
    }
    for round in 2..=args.repeat {
        let begin = Instant::now();
        let again = run_all(&program, &cases, &Place::new(Way::Tcp, None)?, false)?;
        let findings: Vec<String> = cases
            .iter()
            .filter(|case| plain[*case].text != again[*case].text)
            .flat_map(|case| shown(case, &plain[case], &again[case], true))
            .collect();
        tally.case(&format!("sockets: on TCP again, time {round}"), begin.elapsed(), &findings);
    }
    let page = Differences::read(repo)?;
    tally.case("sockets: the page of differences names cases", Duration::ZERO, &page.unknown(&all));
    let Some(built) = built else { return Ok(tally) };
    if let Some(why) = &built.lacks_run {
        tally.skip("sockets under raas run", why);
        return Ok(tally);
    }
    let ways = if args.short { WAYS_SHORT } else { WAYS };
    for (way, warm) in ways.iter().filter(|(way, warm)| args.wants_way(*way) && !(args.cold && *warm)) {
        let name = format!("sockets: {}, {}", way.name(), if *warm { "warm" } else { "cold" });
        let begin = Instant::now();
        let place = Place::new(*way, Some(built))?;
        let found = run_all(&program, &cases, &place, *warm)?;
        let findings = judge(&plain, &found, &page, *way, *warm, args);
        println!("     {}", slowest(&found));
        println!("     {}", slower(&plain, &found));
        tally.case(&name, begin.elapsed(), &findings);
    }
    println!("     sockets: {:.0} s in all", all_begin.elapsed().as_secs_f64());
    Ok(tally)
}

/// Where the time goes.
fn slowest(all: &Transcripts) -> String {
    let mut times: Vec<(Duration, &str)> = all.iter().map(|(case, one)| (one.took, case.as_str())).collect();
    times.sort_unstable();
    let sum: Duration = times.iter().map(|(took, _)| *took).sum();
    let named: Vec<String> =
        times.iter().rev().take(SLOWEST).map(|(took, case)| format!("{case} {:.1} s", took.as_secs_f64())).collect();
    format!("{:.0} s if one after the other; slowest: {}", sum.as_secs_f64(), named.join(", "))
}

/// Cases that took much longer than on TCP alone.
fn slower(plain: &Transcripts, found: &Transcripts) -> String {
    let mut more: Vec<(Duration, &str)> = found
        .iter()
        .map(|(case, one)| (one.took.saturating_sub(plain[case].took), case.as_str()))
        .filter(|(more, _)| *more >= MUCH_LONGER)
        .collect();
    more.sort_unstable();
    let named: Vec<String> =
        more.iter().rev().take(SHOWN_MAX).map(|(more, case)| format!("{case} {:.1} s", more.as_secs_f64())).collect();
    format!("{} cases took {} s longer than on TCP, or more: {}", more.len(), MUCH_LONGER.as_secs(), named.join(", "))
}

fn compile(repo: &Repo) -> Result<PathBuf> {
    let dir = repo.target.join("sockets");
    std::fs::create_dir_all(&dir)?;
    let program = dir.join("sockets");
    let mut sources: Vec<PathBuf> = std::fs::read_dir(repo.root.join(SOURCES))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "c"))
        .collect();
    sources.sort();
    compile_into(repo, &program, &[], &sources)?;
    let library = dir.join(format!("sockets{}", LIBRARY.1));
    compile_into(repo, &library, &["-shared", "-fPIC"], &[repo.root.join(LIBRARY.0)])?;
    Ok(program)
}

fn compile_into(repo: &Repo, made: &Path, flags: &[&str], sources: &[PathBuf]) -> Result<()> {
    let mut cc = repo.command("cc", FLAGS);
    cc.args(flags).arg("-o").arg(made).args(sources);
    let ended = child::run_quiet(&mut cc, COMPILE_LIMIT)?;
    ensure!(ended.success(), "cc: {}\n{}", ended.describe(), ended.text(Stream::Err));
    Ok(())
}

fn list(program: &Path) -> Result<Vec<String>> {
    let output = std::process::Command::new(program).arg("list").output().context("cannot start the cases")?;
    let cases: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    ensure!(cases.len() >= CASES_MIN, "{} cases, not at least {CASES_MIN}", cases.len());
    Ok(cases)
}

/// Runs the cases, several at a time.
fn run_all(program: &Path, cases: &[String], place: &Place, warm: bool) -> Result<Transcripts> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Ok(Transcripts::new())));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = pair::run(program, case, place, warm);
                    let mut done = done.lock().expect("no run panics");
                    match (found, done.as_mut()) {
                        (Ok(found), Ok(all)) => drop(all.insert(case.clone(), found)),
                        (Err(error), Ok(_)) => *done = Err(error.context(case.clone())),
                        (_, Err(_)) => return,
                    }
                }
            });
        }
    });
    done.into_inner().expect("no run panics")
}

/// Cases that did not come to their end, or that found themselves broken.
fn unfinished(all: &Transcripts) -> Vec<String> {
    all.iter()
        .filter_map(|(case, transcript)| transcript.trouble().map(|trouble| format!("{case}: {trouble}")))
        .collect()
}

/// What is wrong with the transcripts of a way, given those of TCP and the page of differences.
fn judge(
    plain: &Transcripts,
    found: &Transcripts,
    page: &Differences,
    way: Way,
    warm: bool,
    args: &Args,
) -> Vec<String> {
    let mut findings = vec![];
    let (mut warm_ones, mut as_wanted, mut listed, mut equal) = (0, 0, 0, 0);
    let mut mended = vec![];
    for (case, transcript) in found {
        warm_ones += transcript.warm;
        as_wanted += transcript.as_wanted;
        let differs = transcript.text != plain[case].text;
        equal += usize::from(!differs);
        match page.row(case, way) {
            // A cold connection may leave TCP too late to differ.
            Some((_, always)) if differs || !always || !warm && way.is_raas() => listed += 1,
            Some((row, _)) if row.starts_with(NOT_YET) => mended.push(case.as_str()),
            Some((row, _)) => {
                findings.push(format!("{case}: equal to TCP's, and the page says that it differs: {row}"))
            }
            None if differs => findings.extend(shown(case, &plain[case], transcript, args.show)),
            None => {}
        }
    }
    println!("     {equal} of {} cases equal to TCP's; {listed} are rows of the page", found.len());
    if !mended.is_empty() {
        println!("     the page says \"not yet\", and they are equal: {}", mended.join(", "));
    }
    if warm {
        let goes = if way == Way::Polled { "on polled TCP" } else { "over RaaS" };
        println!("     {warm_ones} ends of connections were warm, {as_wanted} of them {goes}");
        if as_wanted < warm_ones || as_wanted == 0 && args.only.is_none() {
            let stayed: Vec<&str> =
                found.iter().filter(|(_, t)| t.as_wanted < t.warm).map(|(c, _)| c.as_str()).collect();
            let shown = stayed[..stayed.len().min(SHOWN_MAX)].join(", ");
            findings.push(format!("{} warm ends of connections were not {goes}: {shown}", warm_ones - as_wanted));
        }
    }
    findings
}

/// The first line by which a transcript differs, and more if asked for.
fn shown(case: &str, plain: &Transcript, found: &Transcript, more: bool) -> Vec<String> {
    let mut findings = vec![];
    if let Some(trouble) = found.trouble() {
        findings.push(format!("{case}: {trouble}"));
    }
    let most = if more { SHOWN_MAX } else { 1 };
    let (plain, found): (Vec<&str>, Vec<&str>) = (plain.text.lines().collect(), found.text.lines().collect());
    let rows = (0..plain.len().max(found.len())).filter(|row| plain.get(*row) != found.get(*row));
    for row in rows.take(most) {
        let line = |lines: &[&str]| lines.get(row).map_or("(nothing)".to_owned(), |line| format!("`{line}`"));
        findings.push(format!("{case}: {} where TCP has {}", line(&found), line(&plain)));
    }
    findings
}

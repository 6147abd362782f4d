//! The table of programs: each starts its server, then its client, whose data is checked; on kernel TCP first, then under
//! `raas run`, on one host and between two. Owns the runs and the verdicts. What programs there are stands in `entries`,
//! what is promised of each on the page, `promises`.

mod entries;
mod promises;
mod serving;
mod speeds;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use harness::child::{self, Ended, Stream};
use harness::packages::{self, Need};
use harness::repo::Repo;
use harness::tally::Tally;

use super::place::{Built, End, Place, Way};
use super::{Args, Part};
use entries::{ENTRIES, Entry};
use promises::{Promise, Promises};
use serving::Serving;
use speeds::Speeds;

/// A client, on a machine that is busy too.
const CLIENT_LIMIT: Duration = Duration::from_secs(300);
/// The same with `--full`.
const CLIENT_LIMIT_FULL: Duration = Duration::from_secs(600);
/// What a program makes before its first server starts.
const PREPARE_LIMIT: Duration = Duration::from_secs(120);
/// Lines of a program that are shown when it fails.
const SHOWN_MAX: usize = 12;
/// Each kernel TCP before what stands beside it.
const WAYS: &[Way] = &[Way::Tcp, Way::SameHost, Way::TcpTwoHosts, Way::TwoHosts, Way::Polled];
/// Without `--full`: what is only compared with speeds is left out.
const WAYS_SHORT: &[Way] = &[Way::Tcp, Way::SameHost, Way::TwoHosts, Way::Polled];
/// And these programs: an event loop, threads, two processes that share a socket, a process for each connection, and two
/// runtimes with event loops of their own.
const SHORT: &[&str] = &["redis", "memcached", "nginx", "postgresql", "grpc", "node"];
const FILES: &str = "tests/programs";

/// What one run found.
#[derive(Debug)]
struct Found {
    /// The program's own figure: a rate.
    speed: Option<(f64, String)>,
    /// Paths of connections that carried bytes, as the daemon told while the client ran.
    paths: Vec<String>,
}

/// What the programs need, and the packages that have it.
pub(super) fn wanted_by_all() -> Vec<Need> {
    ENTRIES.iter().flat_map(|entry| entry.programs).copied().collect()
}

/// The same of those that run without `--full`.
pub(super) fn wanted_by_short() -> Vec<Need> {
    let chosen = ENTRIES.iter().filter(|entry| SHORT.contains(&entry.name));
    chosen.flat_map(|entry| entry.programs).copied().collect()
}

/// The same of the chosen ones.
pub(super) fn wanted(args: &Args) -> Vec<Need> {
    chosen(args).into_iter().flat_map(|entry| entry.programs).copied().collect()
}

fn chosen(args: &Args) -> Vec<&'static Entry> {
    let chosen = |entry: &&Entry| args.wants_name(entry.name) && (!args.short || SHORT.contains(&entry.name));
    ENTRIES.iter().filter(chosen).collect()
}

pub(super) fn run(repo: &Repo, args: &Args, built: Option<&Built>) -> Result<Tally> {
    let mut tally = Tally::default();
    let page = Promises::read(repo)?;
    let entries = chosen(args);
    ensure!(!entries.is_empty() || args.part != Some(Part::Table), "no program has such a name");
    let names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
    tally.case("programs: the page has each program, and no other", Duration::ZERO, &page.unknown(&names));
    let run_works = built.filter(|built| built.lacks_run.is_none());
    if let Some(why) = built.and_then(|built| built.lacks_run.as_ref()) {
        tally.skip("programs under raas run", why);
    }
    let mut places = vec![];
    let ways = if args.short { WAYS_SHORT } else { WAYS };
    for way in ways.iter().filter(|way| !way.needs_run() || run_works.is_some() && args.wants_way(**way)) {
        places.push(Place::new(*way, run_works)?);
    }
    for entry in entries {
        let lacking = packages::lacking(entry.programs);
        if !lacking.is_empty() {
            tally.skip(
                &format!("programs: {}", entry.name),
                &format!("{} cannot be installed here", lacking.join(", ")),
            );
            continue;
        }
        of_one(repo, args, entry, &places, &page, &mut tally);
    }
    Ok(tally)
}

/// All ways of one program.
fn of_one(repo: &Repo, args: &Args, entry: &Entry, places: &[Place], page: &Promises, tally: &mut Tally) {
    let begin = Instant::now();
    let dir = match prepared(repo, entry, args.full) {
        Ok(dir) => dir,
        Err(error) => {
            return tally.case(&format!("programs: {}", entry.name), begin.elapsed(), &[format!("{error:#}")]);
        }
    };
    println!("     {}: {}", entry.name, version(repo, entry));
    let mut speeds = Speeds::default();
    for place in (0..args.repeat).flat_map(|_| places) {
        let begin = Instant::now();
        let mut found = attempt(repo, args, entry, place, dir.path());
        if let Some(speed) = found.as_mut().ok().and_then(|found| found.speed.take()) {
            speeds.add(place.way, speed);
        }
        let findings = judge(args, found, place.way, page.of(entry.name, place.way));
        tally.case(&format!("programs: {}, {}", entry.name, place.way.name()), begin.elapsed(), &findings);
    }
    speeds.lines().iter().for_each(|line| println!("     {}, {line}", entry.name));
}

/// Compares what a run found with what the page promises.
fn judge(args: &Args, found: Result<Found>, way: Way, promise: Promise) -> Vec<String> {
    let promise = if way.is_raas() { promise } else { Promise::Works };
    match (found, promise) {
        (Ok(found), Promise::Works) if way.is_raas() && found.paths.is_empty() => {
            vec!["no connection of it was seen over RaaS".to_owned()]
        }
        (Ok(_), Promise::Works | Promise::MayBeOnTcp) => vec![],
        (Ok(found), Promise::OnTcp(_)) if found.paths.is_empty() => vec![],
        (Ok(found), Promise::OnTcp(why)) => {
            vec![format!("it went over RaaS ({}), and the page says on TCP: {why}", found.paths.join(", "))]
        }
        (Ok(_), Promise::NotYet(why)) => vec![format!("it works, and the page says not yet: {why}")],
        (Err(error), Promise::Works | Promise::OnTcp(_) | Promise::MayBeOnTcp) => {
            format!("{error:#}").lines().map(str::to_owned).collect()
        }
        (Err(error), Promise::NotYet(why)) => {
            let lines = if args.show { SHOWN_MAX } else { 1 };
            format!("{error:#}").lines().take(lines).for_each(|line| println!("     not yet ({why}): {line}"));
            vec![]
        }
    }
}

/// What all runs of a program share: a directory, with what its script makes.
fn prepared(repo: &Repo, entry: &Entry, full: bool) -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("raas-program-").tempdir()?;
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let mut command = repo.command("bash", &["-euo", "pipefail", "-c", entry.prepare]);
    command.env("DIR", dir.path()).env("FULL", if full { "1" } else { "" }).current_dir(dir.path());
    let ended = child::run_quiet(&mut command, PREPARE_LIMIT)?;
    ensure!(ended.success(), "preparing: {}\n{}", ended.describe(), last_words(&ended));
    Ok(dir)
}

fn version(repo: &Repo, entry: &Entry) -> String {
    let ended = child::run_quiet(&mut repo.command("sh", &["-c", entry.version]), PREPARE_LIMIT);
    let text = ended.map(|ended| ended.text(Stream::Out) + &ended.text(Stream::Err)).unwrap_or_default();
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no version").trim().to_owned()
}

/// One server, one client.
fn attempt(repo: &Repo, args: &Args, entry: &Entry, place: &Place, dir: &Path) -> Result<Found> {
    let files = repo.root.join(FILES);
    let script = |end: End, script: &str| {
        let mut command = place.script(end, script);
        command.env("DIR", dir).env("ADDRESS", place.server()).env("PORT", entry.port.to_string()).env("FILES", &files);
        command.env("FULL", if args.full { "1" } else { "" }).env("WAY", place.way.name());
        command
    };
    let log = dir.join(format!("server-{}.log", place.way.name()));
    let mut serving = Serving::start(&mut script(End::Server, entry.server), &log)?;
    place.wait_port(entry.port, || serving.has_ended()).map_err(|error| error.context(serving.last_words()))?;
    let limit = if args.full { CLIENT_LIMIT_FULL } else { CLIENT_LIMIT };
    let watch = serving::watch(place);
    let ended = child::run_quiet(&mut script(End::Client, entry.client), limit)?;
    let paths = watch.end();
    if !ended.success() {
        bail!("the client: {}\n{}\nthe server: {}", ended.describe(), last_words(&ended), serving.last_words());
    }
    let speed = ended.text(Stream::Out).lines().rev().find_map(speed_line);
    Ok(Found { speed, paths })
}

/// Reads `speed 12.5 requests/s`.
fn speed_line(line: &str) -> Option<(f64, String)> {
    let (value, unit) = line.strip_prefix("speed ")?.split_once(' ')?;
    Some((value.parse().ok()?, unit.to_owned()))
}

fn last_words(ended: &Ended) -> String {
    let lines: Vec<&str> = ended.lines.iter().map(|(_, line)| line.as_str()).collect();
    lines[lines.len().saturating_sub(SHOWN_MAX)..].join("\n")
}

/// The end of a file, for a message.
fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_MAX)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read() {
        assert_eq!(speed_line("speed 12.5 requests/s"), Some((12.5, "requests/s".to_owned())));
        assert_eq!(speed_line("speed fast"), None);
    }

    #[test]
    fn the_short_list_names_programs_of_the_table() {
        assert!(SHORT.iter().all(|name| ENTRIES.iter().any(|entry| entry.name == *name)));
    }

    #[test]
    fn programs_have_names_and_ports_of_their_own() {
        let mut names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        let mut ports: Vec<u16> = ENTRIES.iter().map(|entry| entry.port).collect();
        names.sort_unstable();
        names.dedup();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!((names.len(), ports.len()), (ENTRIES.len(), ENTRIES.len()));
    }
}

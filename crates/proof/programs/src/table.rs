//! The table of programs: each starts its server, then its client, whose data is checked; on kernel TCP first, then under
//! `raas run`, on one host and between two. Owns the runs and the verdicts. What programs there are stands in `entries`,
//! what is promised of each on the page, `promises`.

mod entries;
mod promises;
mod serving;
mod speeds;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use harness::child::{self, Ended, Stream};
use harness::packages::{self, Need};
use harness::repo::Repo;
use harness::tally::Tally;

use super::place::{Built, End, Place, Way};
use super::{Args, Part};
use entries::{Entry, FILES, Script, entries};
use promises::{Promise, Promises};
use serving::{Seen, Serving};
use speeds::Speeds;

/// Ports that a row uses.
const PORTS_OF_A_WAY: u16 = 3;
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
/// What one run found.
#[derive(Debug)]
struct Found {
    /// The program's own figure: a rate.
    speed: Option<(f64, String)>,
    /// What the daemon told of its connections while the client ran.
    seen: Seen,
}

impl Found {
    /// Programs of which nothing went over RaaS.
    fn lacks(&self, over: &[String]) -> Vec<String> {
        if self.seen.over.is_empty() {
            return vec!["no connection of it was seen over RaaS".to_owned()];
        }
        let lacks = |name: &&String| !self.seen.over.iter().any(|seen| seen.starts_with(name.as_str()));
        over.iter().filter(lacks).map(|name| format!("no connection of {name} was seen over RaaS")).collect()
    }
}

/// What the programs need, and the packages that have it. A table that cannot be read is said by the run.
pub(super) fn wanted_by_all() -> Vec<Need> {
    entries().unwrap_or_default().iter().flat_map(Entry::needs).collect()
}

/// The same of those that run without `--full`.
pub(super) fn wanted_by_short() -> Vec<Need> {
    entries().unwrap_or_default().iter().filter(|entry| entry.is_quick()).flat_map(Entry::needs).collect()
}

/// The same of the chosen ones.
pub(super) fn wanted(args: &Args) -> Vec<Need> {
    chosen(args).unwrap_or_default().into_iter().flat_map(Entry::needs).collect()
}

fn chosen(args: &Args) -> Result<Vec<&'static Entry>> {
    let chosen = |entry: &&Entry| args.wants_name(&entry.name) && (!args.short || entry.is_quick());
    Ok(entries()?.iter().filter(chosen).collect())
}

pub(super) fn run(repo: &Repo, args: &Args, built: Option<&Built>) -> Result<Tally> {
    let mut tally = Tally::default();
    let page = Promises::read(repo)?;
    let programs = chosen(args)?;
    ensure!(!programs.is_empty() || args.part != Some(Part::Table), "no program has such a name");
    let names: Vec<&str> = entries()?.iter().map(|entry| entry.name.as_str()).collect();
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
    for entry in programs {
        let lacking = packages::lacking(&entry.needs());
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
fn of_one(repo: &Repo, args: &Args, entry: &'static Entry, places: &[Place], page: &Promises, tally: &mut Tally) {
    let begin = Instant::now();
    let dir = match prepared(repo, args, entry) {
        Ok(dir) => dir,
        Err(error) => {
            return tally.case(&format!("programs: {}", entry.name), begin.elapsed(), &[format!("{error:#}")]);
        }
    };
    println!("     {}: {}", entry.name, versions(repo, entry));
    let mut speeds = Speeds::default();
    for place in (0..args.repeat).flat_map(|_| places) {
        let begin = Instant::now();
        let mut found = attempt(args, entry, place, dir.path());
        if let Some(speed) = found.as_mut().ok().and_then(|found| found.speed.take()) {
            speeds.add(place.way, speed);
        }
        let findings = judge(args, found, (entry, place.way), page.of(&entry.name, place.way));
        tally.case(&format!("programs: {}, {}", entry.name, place.way.name()), begin.elapsed(), &findings);
    }
    speeds.lines().iter().for_each(|line| println!("     {}, {line}", entry.name));
}

/// Compares what a run found with what the page promises.
fn judge(args: &Args, found: Result<Found>, (entry, way): (&Entry, Way), promise: Promise) -> Vec<String> {
    let promise = if way.is_raas() { promise } else { Promise::Works };
    // Of two hosts one daemon is asked, which does not know the other's programs.
    let is_all_seen = way == Way::SameHost;
    match (found, promise) {
        (Ok(found), Promise::Works) if way.is_raas() => found.lacks(if is_all_seen { &entry.over } else { &[] }),
        (Ok(_), Promise::Works | Promise::MayBeOnTcp) => vec![],
        (Ok(found), Promise::OnTcp(why)) if !found.seen.over.is_empty() => {
            vec![format!("it went over RaaS ({:?}), and the page says on TCP: {why}", found.seen.over)]
        }
        (Ok(found), Promise::OnTcp(_)) => match &entry.tcp {
            Some(reason) if is_all_seen && !found.seen.reasons.contains(reason) => {
                vec![format!("its reasons on TCP were {:?}, without {reason}", found.seen.reasons)]
            }
            _ => vec![],
        },
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
fn prepared(repo: &Repo, args: &Args, entry: &Entry) -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("raas-program-").tempdir()?;
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let mut command = repo.command("bash", &["-euo", "pipefail", "-c", &entry.script(Script::Prepare)]);
    environment(command.env("RUN", "").current_dir(dir.path()), args, dir.path());
    let ended = child::run_quiet(&mut command, PREPARE_LIMIT)?;
    ensure!(ended.success(), "preparing: {}\n{}", ended.describe(), last_words(&ended));
    Ok(dir)
}

/// Of the packages in which its programs are.
fn versions(repo: &Repo, entry: &'static Entry) -> String {
    let mut packages: Vec<&str> = entry.needs().into_iter().map(|(_, package)| package).collect();
    packages.dedup();
    let mut ask = repo.command("dpkg-query", &["-W", "-f", "${Package} ${Version}  "]);
    let ended = child::run_quiet(ask.args(packages), PREPARE_LIMIT);
    ended.map(|ended| ended.text(Stream::Out).trim().to_owned()).unwrap_or_default()
}

/// What the scripts find in their environment.
fn environment(command: &mut Command, args: &Args, dir: &Path) {
    command.env("DIR", dir).env("FILES", FILES).env("FULL", if args.full { "1" } else { "" });
}

/// One server, one client.
fn attempt(args: &Args, entry: &Entry, place: &Place, dir: &Path) -> Result<Found> {
    // Servers of the way before may still be ending.
    let port = entry.port + PORTS_OF_A_WAY * place.way as u16;
    let script = |end: End, script: Script| {
        let mut command = place.script(end, &entry.script(script));
        environment(&mut command, args, dir);
        command.env("ADDRESS", place.server()).env("PORT", port.to_string()).env("WAY", place.way.name());
        command
    };
    let log = dir.join(format!("server-{}.log", place.way.name()));
    let mut serving = Serving::start(&mut script(End::Server, Script::Server), &log)?;
    place.wait_port(port, || serving.has_ended()).map_err(|error| error.context(serving.last_words()))?;
    let limit = if args.full { CLIENT_LIMIT_FULL } else { CLIENT_LIMIT };
    let watch = serving::watch(place);
    let ended = child::run_quiet(&mut script(End::Client, Script::Client), limit)?;
    let seen = watch.end();
    if !ended.success() {
        bail!("the client: {}\n{}\nthe server: {}", ended.describe(), last_words(&ended), serving.last_words());
    }
    let speed = ended.text(Stream::Out).lines().rev().find_map(speed_line);
    Ok(Found { speed, seen })
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
}

//! Judge `groups`: a group of three hosts or more, each in a network namespace with clocks of its own, whose programs,
//! daemons and links fail in every way that [`Kind`] names, again and again, while clients ask.
//!
//! Owns what must hold: the group goes on, no two lead in one term, and one order of one call at a time explains what all
//! clients saw. So nothing that was told to be done is lost or done twice, and no read tells what was.

mod clients;
mod hub;
pub mod liar;
mod lies;
pub mod member;
mod nemesis;
mod place;
mod power;
mod scribbles;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::host::{Host, Program};
use crate::verdict::Verdict;
use clients::Clients;
pub use nemesis::Kind;
use place::Place;

/// Calls that end between two faults, and while one lasts, at least.
const BETWEEN: u32 = 10;
/// The group goes on within that, on however busy a machine.
const GOES_ON: Duration = Duration::from_secs(240);
/// Longest wait for members to say what they know.
const STATES: Duration = Duration::from_secs(10);
/// Longest wait for a line: clients ask again as often.
const TURN: Duration = Duration::from_millis(2);
/// Between two requests to change the members.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const LIMITS: &str = "[limits]\npeer_return_ms = 3600000\nconnect_timeout_ms = 60000\n";
/// Leases of two groups of three, in milliseconds.
const LEASE_MS: std::ops::Range<u64> = 20..400;
/// Numbers of calls that are no client's begin behind this one.
const OPERATORS: u64 = 1 << 60;

/// What is done to how large a group.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Hosts, from 3 to 9.
    pub hosts: usize,
    /// In this order.
    pub kinds: Vec<Kind>,
    /// Faults of each kind.
    pub count: u32,
    /// Whether members have files though power does not go.
    pub is_synced: bool,
    /// Why there are no namespaces here.
    pub no_namespaces: Option<String>,
}

/// Runs it.
pub fn run(raas: Program<'_>, seed: u64, plan: &Plan, verdict: &mut Verdict) -> Result<()> {
    // What lies in a memory without a file ends with that memory.
    let needs_files = |kind: &Kind| *kind == Kind::Power || plan.is_synced && !kind.is_of_liars();
    let (synced, others): (Vec<Kind>, Vec<Kind>) = plan.kinds.iter().copied().partition(needs_files);
    for (kinds, is_synced) in [(others, false), (synced, true)] {
        if !kinds.is_empty() {
            run_group(raas, seed, plan, (&kinds, is_synced), verdict)?;
        }
    }
    Ok(())
}

fn run_group(
    raas: Program<'_>,
    seed: u64,
    plan: &Plan,
    (kinds, is_synced): (&[Kind], bool),
    verdict: &mut Verdict,
) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let place = match &plan.no_namespaces {
        Some(why) => Err(anyhow::anyhow!("{why}")),
        None => Place::namespaces(plan.hosts, seed),
    };
    let place = place.unwrap_or_else(|why| {
        println!("SKIP groups, faults of links: {why:#}");
        Place::one_host(plan.hosts)
    });
    let has_links = place.hub.is_some();
    let clocks = if place.has_clocks() { "clocks that are days apart" } else { "one clock" };
    let mut field = Field::start(raas, dir.path(), place, (seed, is_synced))?;
    let worth = if is_synced { "synced-majority" } else { "ram-majority" };
    let lease = format!("{worth}, leases of {} ms", field.lease_ms);
    for kind in kinds.iter().copied().filter(|kind| has_links || !kind.is_of_links()) {
        let went_on = field.all_of(kind, plan.count);
        let is_over = went_on.is_err();
        verdict.case(&format!("the group goes on: {kind:?}"), went_on);
        if is_over {
            break;
        }
    }
    let told = field.end().map(|told| format!("{told}, {} hosts with {clocks}, {lease}", plan.hosts));
    verdict.case("one order explains what all clients saw: nothing lost, doubled or stale", told);
    Ok(())
}

/// A member's process.
struct Member {
    life: u64,
    child: Child,
    stdin: Option<ChildStdin>,
}

/// What a member says.
struct Said {
    member: usize,
    life: u64,
    line: String,
}

struct Field<'a> {
    raas: Program<'a>,
    dir: &'a Path,
    daemons: Vec<Option<Host>>,
    members: Vec<Option<Member>>,
    place: Place,
    says: Receiver<Said>,
    heard: Sender<Said>,
    lives: u64,
    /// For how long a leader answers reads by itself, in milliseconds. 0: it does not.
    lease_ms: u64,
    /// Whether members have files.
    is_synced: bool,
    /// Who lies now.
    liar: Option<Child>,
    clients: Clients,
    rng: SmallRng,
    leader: Option<usize>,
    /// The term in which it leads: round and member.
    led: (u64, u64),
    /// Who said that it is a candidate, since this was looked at.
    candidates: Vec<usize>,
    /// Who leads in a term, in which life.
    terms: BTreeMap<String, (usize, u64)>,
    /// By member, as of this life: what it has applied, and the members that it knows.
    applied: Vec<(u64, String)>,
    /// Requests to change the members that have not ended, by their numbers: of which life they were asked.
    requests: BTreeMap<u64, u64>,
    /// The last one.
    request: u64,
    /// The index of the last command, as somebody said who leads.
    last_command: Option<u64>,
    /// Who was asked for it behind this request.
    last_asked_behind: u64,
    /// By member: what it said when it was asked why.
    states: BTreeMap<usize, String>,
}

impl<'a> Field<'a> {
    fn start(raas: Program<'a>, dir: &'a Path, place: Place, (seed, is_synced): (u64, bool)) -> Result<Self> {
        let (heard, says) = channel();
        let count = place.ips.len();
        let mut rng = SmallRng::seed_from_u64(seed);
        let lease_ms = if rng.random_range(0..3) == 0 { 0 } else { rng.random_range(LEASE_MS) };
        let mut field = Self {
            raas,
            dir,
            daemons: vec![],
            members: vec![],
            place,
            says,
            heard,
            lives: 0,
            lease_ms,
            is_synced,
            liar: None,
            clients: Clients::new(seed),
            rng,
            leader: None,
            led: (0, 0),
            candidates: vec![],
            terms: BTreeMap::new(),
            applied: vec![(0, String::new()); count],
            requests: BTreeMap::new(),
            request: OPERATORS,
            last_command: None,
            last_asked_behind: OPERATORS,
            states: BTreeMap::new(),
        };
        for host in 0..count {
            let daemon = field.start_daemon(host)?;
            field.daemons.push(Some(daemon));
        }
        for host in 0..count {
            let joined = field.join(host)?;
            field.members.push(Some(joined));
        }
        field.go_on()?;
        Ok(field)
    }

    fn start_daemon(&self, host: usize) -> Result<Host> {
        let command = self.place.command(host, self.raas.path);
        Host::start_by(command, self.raas, self.dir, self.place.ips[host], LIMITS, &[])
    }

    fn join(&mut self, host: usize) -> Result<Member> {
        self.lives += 1;
        let life = self.lives;
        let mut command = self.member_command(host, "member")?;
        command.args(["--lease-ms", &self.lease_ms.to_string()]);
        if self.is_synced {
            command.arg("--dir").arg(power::directory(self.dir, host));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().context("its output")?);
        let heard = self.heard.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if heard.send(Said { member: host, life, line }).is_err() {
                    return;
                }
            }
        });
        self.applied[host] = (0, String::new());
        Ok(Member { life, child, stdin })
    }

    /// A program of this one's on a member's host, which learns who the members are.
    fn member_command(&self, host: usize, what: &str) -> Result<Command> {
        let socket = self.dir.join(format!("{}.sock", self.place.ips[host]));
        let mut command = self.place.command(host, std::env::current_exe()?);
        command.arg(what).arg("--socket").arg(socket).args(["--me", &(host + 1).to_string()]);
        self.place.ips.iter().for_each(|ip| _ = command.args(["--host", &ip.to_string()]));
        Ok(command)
    }

    /// So many faults of a kind.
    fn all_of(&mut self, kind: Kind, count: u32) -> Result<String> {
        let (before, mut whose) = (self.terms.len(), BTreeMap::<String, u32>::new());
        for number in 0..count {
            let _first = self.clients.turn();
            let told = self.suffer(kind).map_err(|why| {
                let states = self.states();
                why.context(format!("fault {number}, {kind:?}{}\n{states}", self.words()))
            })?;
            *whose.entry(told).or_default() += 1;
        }
        let told = whose.iter().map(|(told, count)| format!("{count}{told}")).collect::<Vec<_>>().join(", ");
        Ok(format!("{told}; {} new leaders", self.terms.len() - before))
    }

    fn words(&self) -> String {
        let of = |host: &Option<Host>| host.as_ref().map(Host::words).unwrap_or_default();
        self.daemons.iter().map(|host| format!("\n{}", of(host))).collect()
    }

    /// What each member knows, in its own words.
    fn states(&mut self) -> String {
        self.states.clear();
        (0..self.members.len()).for_each(|member| self.tell(member, "describe 0"));
        let begin = Instant::now();
        while self.states.len() < self.members.len() && begin.elapsed() < STATES {
            if self.turn().is_err() {
                break;
            }
        }
        self.states.iter().map(|(member, state)| format!("\nmember {}: {state}", member + 1)).collect()
    }

    /// Clients ask what is due, and a line is heard if one comes.
    fn turn(&mut self) -> Result<()> {
        for (member, line) in self.clients.due(self.members.len(), self.leader) {
            self.tell(member, &line);
        }
        match self.says.recv_timeout(TURN) {
            Ok(said) => self.hear(&said),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => bail!("all members have ended"),
        }
    }

    /// To one that is dead nothing is said; one that stands still may hear it later.
    fn tell(&mut self, member: usize, line: &str) {
        let stdin = self.members.get_mut(member).and_then(Option::as_mut).and_then(|member| member.stdin.as_mut());
        if let Some(stdin) = stdin {
            let _ = writeln!(stdin, "{line}");
        }
    }

    fn hear(&mut self, said: &Said) -> Result<()> {
        let (what, rest) = said.line.split_once(' ').unwrap_or((&said.line, ""));
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        let is_alive = self.members.get(said.member).is_some_and(|member| {
            // One that joins now is not among them yet.
            member.as_ref().is_some_and(|member| member.life == said.life)
        });
        if matches!(what, "found" | "unknown" | "refused") && self.requests.remove(&first.parse()?).is_some() {
            return Ok(());
        }
        match (what, first) {
            ("found", call) => self.clients.on_found(call.parse()?, second.parse()?),
            ("unknown" | "refused", call) => self.clients.on_refused(call.parse()?),
            ("role", "leader") => {
                let who = (said.member, said.life);
                let first = *self.terms.entry(second.to_owned()).or_insert(who);
                ensure!(first == who, "{first:?} and {who:?} lead in term {second}");
                // What one says late of a term that is over changes nothing.
                let term = round_and_member(second)?;
                if is_alive && term > self.led {
                    (self.leader, self.led) = (Some(said.member), term);
                }
            }
            // What was asked before is of a time before.
            ("last", call) if call.parse::<u64>()? > self.last_asked_behind => {
                self.last_command = Some(second.parse()?)
            }
            ("role", "candidate") if is_alive => self.candidates.push(said.member),
            ("members", _) if is_alive => rest.clone_into(&mut self.applied[said.member].1),
            ("state", _) if is_alive => _ = self.states.insert(said.member, second.to_owned()),
            ("applied", index) if is_alive => self.applied[said.member].0 = index.parse()?,
            _ => {}
        }
        Ok(())
    }

    /// Turns until something holds.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) -> Result<()> {
        let begin = Instant::now();
        while !holds(self) {
            ensure!(begin.elapsed() < GOES_ON, "never: {what}; {:?}", self.applied);
            self.turn()?;
        }
        Ok(())
    }

    fn pass(&mut self, time: Duration) -> Result<()> {
        let begin = Instant::now();
        self.until("time passes", |_| begin.elapsed() >= time)
    }

    /// Until some calls have ended that were asked from here on.
    fn go_on(&mut self) -> Result<()> {
        self.clients.mark();
        self.until("calls end", |field| field.clients.since_mark() >= BETWEEN)
    }

    fn last_applied(&self) -> u64 {
        self.applied.iter().map(|(applied, _)| *applied).max().unwrap_or(0)
    }

    /// Until every memory has what is committed now: then another may be lost.
    fn become_whole(&mut self) -> Result<()> {
        let all: String = (1..=self.place.ips.len()).map(|id| format!("{id} ")).collect();
        let last = self.last_applied();
        let is_there = |(applied, members): &(u64, String)| *applied > last && members == all.trim_end();
        self.until("all members have the same", |field| field.applied.iter().all(is_there))
    }

    /// One that campaigns, or has done so with success meanwhile: another may have led already.
    fn wait_candidate(&mut self, but: usize) -> Result<usize> {
        self.candidates.clear();
        let mut found = None;
        self.until("somebody campaigns", |field| {
            let leader = field.leader.filter(|leader| *leader != but);
            found = field.candidates.drain(..).find(|candidate| *candidate != but).or(leader);
            found.is_some()
        })?;
        found.context("a candidate")
    }

    /// Adds or removes a member, whoever leads. Done it is when most say so of an entry that came later: one that has just
    /// begun, and one that was removed, know the members of old. No request is left that somebody could carry out later.
    fn alter(&mut self, host: usize, is_added: bool) -> Result<()> {
        let id = (host + 1).to_string();
        let last = self.last_applied();
        let mut asked: Option<Instant> = None;
        self.until("the members change", |field| {
            let is_done = say_so(&field.applied, last, (&id, is_added));
            if !is_done && asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                asked = Some(Instant::now());
                field.ask_all(&id, is_added);
            }
            is_done
        })?;
        self.until("requests to change the members end", |field| field.is_answered())
    }

    /// Each has one request at a time.
    fn ask_all(&mut self, id: &str, is_added: bool) {
        let what = if is_added { "add" } else { "remove" };
        for member in 0..self.members.len() {
            let life = self.members[member].as_ref().map(|member| member.life);
            if let Some(life) = life.filter(|life| !self.requests.values().any(|asked| asked == life)) {
                self.request += 1;
                self.requests.insert(self.request, life);
                self.tell(member, &format!("{what} {} {id}", self.request));
            }
        }
    }

    /// Whether all requests have ended, those of the dead with them.
    fn is_answered(&mut self) -> bool {
        let lives: Vec<u64> = self.members.iter().flatten().map(|member| member.life).collect();
        self.requests.retain(|_, life| lives.contains(life));
        self.requests.is_empty()
    }

    /// Has every call end, and judges all.
    fn end(&mut self) -> Result<String> {
        self.wake_all();
        self.clients.finish();
        self.until("all calls end", |field| field.clients.is_over())?;
        for mut member in std::mem::take(&mut self.members).into_iter().flatten() {
            drop(member.stdin.take());
            ensure!(member.child.wait()?.success(), "the member of life {} failed", member.life);
        }
        self.clients.judge()
    }
}

/// Of a term as it is printed.
fn round_and_member(term: &str) -> Result<(u64, u64)> {
    let (round, member) = term.split_once('/').with_context(|| format!("`{term}` is no term"))?;
    Ok((round.parse()?, member.parse()?))
}

/// Whether most have applied more than `last`, and say by this that a host is a member, or is none.
fn say_so(applied: &[(u64, String)], last: u64, (id, is_added): (&str, bool)) -> bool {
    let says =
        |(index, members): &&(u64, String)| *index > last && members.split(' ').any(|member| member == id) == is_added;
    applied.iter().filter(says).count() > applied.len() / 2
}

impl Drop for Field<'_> {
    fn drop(&mut self) {
        self.liar.iter_mut().for_each(kill_now);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        kill_now(&mut self.child);
    }
}

fn kill_now(child: &mut Child) {
    // It may have ended.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_compared_by_their_rounds() {
        assert_eq!(round_and_member("10/2").unwrap(), (10, 2));
        assert!(
            round_and_member("10/2").unwrap() > round_and_member("9/5").unwrap() && round_and_member("10").is_err()
        );
    }

    #[test]
    fn members_of_old_are_said_by_one_that_has_just_begun_and_by_one_that_was_removed() {
        let said = |index, members: &str| (index, members.to_owned());
        let mut all = [said(90, "1 3"), said(70, "1 2 3"), said(0, "1 2 3")];
        assert!(!say_so(&all, 90, ("2", true)), "the second was removed, and the third has just begun");
        all[0] = said(95, "1 2 3");
        assert!(!say_so(&all, 90, ("2", true)));
        all[1] = said(93, "1 2 3");
        assert!(say_so(&all, 90, ("2", true)) && !say_so(&all, 90, ("2", false)));
    }
}

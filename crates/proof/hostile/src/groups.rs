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

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use crate::host::{Host, Program};
use crate::verdict::Verdict;
use clients::Clients;
pub use nemesis::Kind;
use place::Place;

/// Calls that end between two faults, and while one lasts, at least.
const BETWEEN: u32 = 10;
/// The group goes on within that, on however busy a machine.
const GOES_ON: Duration = Duration::from_secs(240);
/// Longest wait for a line: clients ask again as often.
const TURN: Duration = Duration::from_millis(2);
/// Between two requests to change the members.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const LIMITS: &str = "[limits]\npeer_return_ms = 3600000\nconnect_timeout_ms = 60000\n";
/// Numbers of calls that are no client's.
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
    /// Why there are no namespaces here.
    pub no_namespaces: Option<String>,
}

/// Runs it.
pub fn run(raas: Program<'_>, seed: u64, plan: &Plan, verdict: &mut Verdict) -> Result<()> {
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
    let mut field = Field::start(raas, dir.path(), place, seed)?;
    for kind in plan.kinds.iter().copied().filter(|kind| has_links || !kind.is_of_links()) {
        let went_on = field.all_of(kind, plan.count);
        let is_over = went_on.is_err();
        verdict.case(&format!("the group goes on: {kind:?}"), went_on);
        if is_over {
            break;
        }
    }
    let told = field.end().map(|told| format!("{told}, {} hosts with {clocks}", plan.hosts));
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
    /// Who lies now.
    liar: Option<Child>,
    clients: Clients,
    rng: SmallRng,
    leader: Option<usize>,
    /// Who said that it is a candidate, since this was looked at.
    candidates: Vec<usize>,
    /// Who leads in a term, in which life.
    terms: BTreeMap<String, (usize, u64)>,
    /// By member, as of this life: what it has applied, and the members that it knows.
    applied: Vec<(u64, String)>,
}

impl<'a> Field<'a> {
    fn start(raas: Program<'a>, dir: &'a Path, place: Place, seed: u64) -> Result<Self> {
        let (heard, says) = channel();
        let count = place.ips.len();
        let mut field = Self {
            raas,
            dir,
            daemons: vec![],
            members: vec![],
            place,
            says,
            heard,
            lives: 0,
            liar: None,
            clients: Clients::new(seed),
            rng: SmallRng::seed_from_u64(seed),
            leader: None,
            candidates: vec![],
            terms: BTreeMap::new(),
            applied: vec![(0, String::new()); count],
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
        let mut child = self.member_command(host, "member")?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
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
            self.clients.turn();
            let told = self.suffer(kind).with_context(|| format!("fault {number}, {kind:?}{}", self.words()))?;
            *whose.entry(told).or_default() += 1;
        }
        let told = whose.iter().map(|(told, count)| format!("{count}{told}")).collect::<Vec<_>>().join(", ");
        Ok(format!("{told}; {} new leaders", self.terms.len() - before))
    }

    fn words(&self) -> String {
        let of = |host: &Option<Host>| host.as_ref().map(Host::words).unwrap_or_default();
        self.daemons.iter().map(|host| format!("\n{}", of(host))).collect()
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
        match (what, first) {
            ("found", call) => self.clients.on_found(call.parse()?, second.parse()?),
            ("unknown" | "refused", call) => self.clients.on_refused(call.parse()?),
            ("role", "leader") => {
                let who = (said.member, said.life);
                let first = *self.terms.entry(second.to_owned()).or_insert(who);
                ensure!(first == who, "{first:?} and {who:?} lead in term {second}");
                self.leader = Some(said.member).filter(|_| is_alive).or(self.leader);
            }
            ("role", "candidate") if is_alive => self.candidates.push(said.member),
            ("members", _) if is_alive => rest.clone_into(&mut self.applied[said.member].1),
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

    /// Until every memory has what is committed now: then another may be lost.
    fn become_whole(&mut self) -> Result<()> {
        let all: String = (1..=self.place.ips.len()).map(|id| format!("{id} ")).collect();
        let last = self.applied.iter().map(|(applied, _)| *applied).max().unwrap_or(0);
        let is_there = |(applied, members): &(u64, String)| *applied > last && members == all.trim_end();
        self.until("all members have the same", |field| field.applied.iter().all(is_there))
    }

    fn wait_candidate(&mut self, but: usize) -> Result<usize> {
        self.candidates.clear();
        let mut found = None;
        self.until("somebody campaigns", |field| {
            found = field.candidates.drain(..).find(|candidate| *candidate != but);
            found.is_some()
        })?;
        found.context("a candidate")
    }

    /// Adds or removes a member, whoever leads. Done it is when most say so: one that has just begun knows the members of
    /// old.
    fn alter(&mut self, host: usize, is_added: bool) -> Result<()> {
        let id = (host + 1).to_string();
        let line = format!("{} {OPERATORS} {id}", if is_added { "add" } else { "remove" });
        let mut asked: Option<Instant> = None;
        self.until("the members change", |field| {
            let says = |(_, members): &&(u64, String)| members.split(' ').any(|member| member == id) == is_added;
            let is_done = field.applied.iter().filter(says).count() > field.applied.len() / 2;
            if !is_done && asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                asked = Some(Instant::now());
                (0..field.members.len()).for_each(|member| field.tell(member, &line));
            }
            is_done
        })
    }

    /// Has every call end, and judges all.
    fn end(&mut self) -> Result<String> {
        self.clients.finish();
        self.until("all calls end", |field| field.clients.is_over())?;
        for mut member in std::mem::take(&mut self.members).into_iter().flatten() {
            drop(member.stdin.take());
            ensure!(member.child.wait()?.success(), "the member of life {} failed", member.life);
        }
        self.clients.judge()
    }
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

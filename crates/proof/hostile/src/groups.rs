//! Judge `groups`: a group of three hosts, whose leader's program or daemon is killed or stands still, again and again.
//!
//! Owns what must hold: every command that a member was told to be committed is in the state of the group, once, and those of
//! one member in their order; and the group goes on after each fault.

pub mod member;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};

use crate::host::{Host, Program, address};
use crate::verdict::Verdict;

const HOSTS: usize = 3;
/// Commands that are committed between two faults, at least.
const BETWEEN: u32 = 10;
/// The group goes on within that, on however busy a machine.
const GOES_ON: Duration = Duration::from_secs(240);
/// Longest time that a fault lasts beyond the first commits without the leader.
const LONGER_MS_MAX: u64 = 200;
const LIMITS: &str = "[limits]\npeer_return_ms = 3600000\nconnect_timeout_ms = 60000\n";

/// What happens to whoever leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    ProgramKilled,
    ProgramStill,
    DaemonKilled,
    DaemonStill,
}

const FAULTS: [Fault; 4] = [Fault::ProgramKilled, Fault::ProgramStill, Fault::DaemonKilled, Fault::DaemonStill];

/// Runs it: so many faults, of all kinds in an order that the seed decides.
pub fn run(raas: Program<'_>, seed: u64, count: u32, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut field = Field::start(raas, dir.path())?;
    let mut times: BTreeMap<Fault, Vec<Duration>> = BTreeMap::new();
    let mut went_on = Ok(());
    for number in 0..count {
        let fault = FAULTS[rng.random_range(0..FAULTS.len())];
        let longer = Duration::from_millis(rng.random_range(0..LONGER_MS_MAX));
        let begin = Instant::now();
        went_on = field.suffer(fault, longer).with_context(|| format!("fault {number}, {fault:?}"));
        if went_on.is_err() {
            break;
        }
        times.entry(fault).or_default().push(begin.elapsed());
    }
    let told = times.iter().map(|(fault, all)| format!("{} x {fault:?}", all.len())).collect::<Vec<_>>().join(", ");
    verdict.case("the group goes on whatever becomes of its leader", went_on.map(|()| told));
    verdict.case("what was committed is there, once and in its order", field.judge());
    Ok(())
}

/// A member's process.
struct Member {
    client: u64,
    child: Child,
    stdin: Option<ChildStdin>,
}

/// What a member says.
struct Said {
    member: usize,
    client: u64,
    line: String,
}

struct Field<'a> {
    raas: Program<'a>,
    dir: &'a Path,
    ips: [IpAddr; HOSTS],
    daemons: Vec<Option<Host>>,
    members: Vec<Option<Member>>,
    says: Receiver<Said>,
    heard: Sender<Said>,
    last_client: u64,
    /// By client: the numbers that it was told to be committed.
    done: BTreeMap<u64, BTreeSet<u64>>,
    leader: Option<usize>,
}

impl<'a> Field<'a> {
    fn start(raas: Program<'a>, dir: &'a Path) -> Result<Self> {
        let ips = [address(), address(), address()];
        let (heard, says) = channel();
        let daemons = ips.iter().map(|ip| Host::start(raas, dir, *ip, LIMITS).map(Some)).collect::<Result<_>>()?;
        let (members, last_client, done, leader) = (Vec::new(), 0, BTreeMap::new(), None);
        let mut field = Self { raas, dir, ips, daemons, members, says, heard, last_client, done, leader };
        for member in 0..HOSTS {
            let joined = field.join(member)?;
            field.members.push(Some(joined));
        }
        field.wait_commits(None)?;
        Ok(field)
    }

    fn join(&mut self, member: usize) -> Result<Member> {
        self.last_client += 1;
        let client = self.last_client;
        let socket = &self.daemons[member].as_ref().context("its daemon")?.socket;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("member").arg("--socket").arg(socket);
        command.args(["--me", &(member + 1).to_string(), "--client", &client.to_string()]);
        self.ips.iter().for_each(|ip| _ = command.args(["--host", &ip.to_string()]));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().context("its output")?);
        let heard = self.heard.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if heard.send(Said { member, client, line }).is_err() {
                    return;
                }
            }
        });
        Ok(Member { client, child, stdin })
    }

    /// Takes what members say until some commands were committed by others than `but`.
    fn wait_commits(&mut self, but: Option<usize>) -> Result<()> {
        let (begin, mut seen) = (Instant::now(), 0);
        while seen < BETWEEN {
            ensure!(begin.elapsed() < GOES_ON, "nothing is committed{}", self.words());
            match self.says.recv_timeout(Duration::from_millis(100)) {
                Ok(said) => seen += u32::from(self.hear(&said)? && Some(said.member) != but),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("all members have ended"),
            }
        }
        Ok(())
    }

    fn words(&self) -> String {
        let of = |host: &Option<Host>| host.as_ref().map(Host::words).unwrap_or_default();
        self.daemons.iter().map(|host| format!("\n{}", of(host))).collect()
    }

    /// Whether it was a commit.
    fn hear(&mut self, said: &Said) -> Result<bool> {
        let (what, rest) = said.line.split_once(' ').unwrap_or((&said.line, ""));
        match what {
            "leads" => self.leader = Some(said.member),
            "done" => {
                ensure!(self.done.entry(said.client).or_default().insert(rest.parse()?), "told twice: {}", said.line);
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    /// A fault of whoever leads, until the others go on, and its end.
    fn suffer(&mut self, fault: Fault, longer: Duration) -> Result<()> {
        let at = self.leader.context("nobody has led")?;
        let pid = match fault {
            Fault::ProgramKilled | Fault::ProgramStill => self.members[at].as_ref().map(|member| member.child.id()),
            Fault::DaemonKilled | Fault::DaemonStill => self.daemons[at].as_ref().map(Host::pid),
        };
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).context("its process")?;
        match fault {
            Fault::ProgramStill | Fault::DaemonStill => kill_process(pid, Signal::STOP)?,
            Fault::ProgramKilled => {
                let mut member = self.members[at].take().context("a member")?;
                member.child.kill()?;
                member.child.wait()?;
            }
            Fault::DaemonKilled => self.daemons[at].take().context("a daemon")?.kill()?,
        }
        let went_on = self.wait_commits(Some(at));
        if matches!(fault, Fault::ProgramStill | Fault::DaemonStill) {
            std::thread::sleep(longer);
            kill_process(pid, Signal::CONT)?;
        }
        went_on?;
        if fault == Fault::ProgramKilled {
            let member = self.join(at)?;
            self.members[at] = Some(member);
        }
        if fault == Fault::DaemonKilled {
            self.daemons[at] = Some(Host::start(self.raas, self.dir, self.ips[at], LIMITS)?);
        }
        self.wait_commits(None)
    }

    /// Compares what the group has with what members were told.
    fn judge(&mut self) -> Result<String> {
        let begin = Instant::now();
        let all = loop {
            ensure!(begin.elapsed() < GOES_ON, "nobody tells what the group has{}", self.words());
            for member in self.members.iter_mut().flatten() {
                if let Some(stdin) = &mut member.stdin {
                    writeln!(stdin, "tell")?;
                }
            }
            // What is told from here on may be behind the answer.
            let known = self.done.clone();
            if let Some(all) = self.wait_told()? {
                break judge(&all, &known)?;
            }
        };
        for mut member in std::mem::take(&mut self.members).into_iter().flatten() {
            drop(member.stdin.take());
            let client = member.client;
            ensure!(member.child.wait()?.success(), "the member of client {client} failed");
        }
        Ok(all)
    }

    fn wait_told(&mut self) -> Result<Option<Vec<(u64, u64)>>> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            let Ok(said) = self.says.recv_timeout(Duration::from_millis(100)) else { continue };
            self.hear(&said)?;
            if let Some(rest) = said.line.strip_prefix("applied ") {
                let pair = |word: &str| {
                    let (client, number) = word.split_once(':').context("a pair")?;
                    Ok((client.parse()?, number.parse()?))
                };
                return rest.split_whitespace().map(pair).collect::<Result<_>>().map(Some);
            }
        }
        Ok(None)
    }
}

fn judge(all: &[(u64, u64)], done: &BTreeMap<u64, BTreeSet<u64>>) -> Result<String> {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut there: BTreeSet<(u64, u64)> = BTreeSet::new();
    for &(client, number) in all {
        ensure!(there.insert((client, number)), "command {number} of client {client} was applied twice");
        let before = last.insert(client, number).unwrap_or(0);
        ensure!(before < number, "command {number} of client {client} was applied behind {before}");
    }
    let mut count = 0;
    for (&client, numbers) in done {
        for &number in numbers {
            ensure!(
                there.contains(&(client, number)),
                "command {number} of client {client} was committed, and is lost"
            );
            count += 1;
        }
    }
    ensure!(count > 0, "nothing was committed");
    Ok(format!("{count} commands that were told to be committed, of {} applied", all.len()))
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_doubled_or_out_of_order_is_found() {
        let done = BTreeMap::from([(1, BTreeSet::from([1, 3])), (2, BTreeSet::from([1]))]);
        assert!(judge(&[(1, 1), (2, 1), (1, 2), (1, 3)], &done).is_ok());
        for wrong in [&[(1, 1), (2, 1)][..], &[(1, 1), (2, 1), (1, 3), (1, 3)], &[(1, 3), (2, 1), (1, 1)]] {
            assert!(judge(wrong, &done).is_err(), "{wrong:?}");
        }
    }
}

//! Members of a group as processes, each at an end of its own: ours, openraft's or etcd's. Owns how each is started, and
//! how its leader ends. All take the same orders on their standard input (bench/src/agreebench.rs).

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::place::{End, Place, at};
use crate::process::{Beside, READY_WITHIN};
use harness::repo::Repo;

/// The program over openraft, in a build directory of its own.
pub(super) const OPENRAFT: &str = "target/openraft/release/openraft-member";
/// Its threads: one, since a commit's steps wait for each other.
const OPENRAFT_THREADS: &str = "0";
const OPENRAFT_PORT: u16 = 21_000;
const ETCD_PORTS: [u16; 2] = [2379, 2380];
/// A leader is there within that, and a load has ended that long after its time.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Whose group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Raas,
    OpenRaft,
    Etcd,
}

impl Side {
    pub(super) const ALL: [Self; 3] = [Self::Raas, Self::OpenRaft, Self::Etcd];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Raas => "raas-group",
            Self::OpenRaft => "openraft over TCP",
            Self::Etcd => "etcd on tmpfs",
        }
    }
}

/// The ends at which members are: all but the first, where the switch between them is.
pub(super) fn ends(place: &Place) -> Vec<End> {
    place.ends().split_off(1)
}

/// A member.
struct Member {
    end: End,
    /// What takes orders.
    program: Beside,
    /// What replicates, where that is another process.
    server: Option<Beside>,
}

impl Member {
    fn pid(&self) -> u32 {
        self.server.as_ref().unwrap_or(&self.program).pid()
    }
}

/// See the head of this file.
pub(super) struct Cluster<'a> {
    place: &'a Place,
    repo: &'a Repo,
    side: Side,
    members: Vec<Member>,
    leader: usize,
    token: u64,
}

impl<'a> Cluster<'a> {
    /// Starts one, and waits for its leader.
    pub(super) fn start(place: &'a Place, repo: &'a Repo, side: Side) -> Result<Self> {
        if side == Side::Etcd {
            // Nothing of the round before.
            let _absent = std::fs::remove_dir_all(place.memory("etcd"));
        }
        let mut cluster = Self { place, repo, side, members: vec![], leader: 0, token: 0 };
        for end in ends(place) {
            let member = cluster.member(end)?;
            cluster.members.push(member);
        }
        cluster.members.iter_mut().try_for_each(|m| m.program.wait_line("ready", READY_WITHIN).map(drop))?;
        if side == Side::OpenRaft {
            cluster.members[0].program.say("found")?;
        }
        cluster.find_leader()?;
        Ok(cluster)
    }

    fn member(&self, end: End) -> Result<Member> {
        let (place, me) = (self.place, end.number().to_string());
        let hosts: Vec<&str> = ends(place).into_iter().map(|end| place.address(end)).collect();
        let bench = place.program("bench");
        let mut words: Vec<String> = match self.side {
            Side::Raas => [&bench, "agreebench", "member", "--group", "bench", "--me", &me].map(str::to_owned).into(),
            Side::OpenRaft => {
                let program = self.repo.root.join(OPENRAFT).display().to_string();
                vec![program, OPENRAFT_THREADS.to_owned(), me]
            }
            Side::Etcd => {
                let to = at(place.address(end), ETCD_PORTS[0]);
                [&bench, "agreebench", "etcd", "--at", &to].map(str::to_owned).into()
            }
        };
        match self.side {
            Side::Raas => words.extend(hosts.iter().flat_map(|host| ["--host".to_owned(), (*host).to_owned()])),
            Side::OpenRaft => words.extend(hosts.iter().map(|host| at(host, OPENRAFT_PORT))),
            Side::Etcd => {}
        }
        let start = |words: &[String]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Beside::start(&mut place.command(end, &words))
        };
        let server = if self.side == Side::Etcd { Some(start(&etcd(place, end, &hosts))?) } else { None };
        Ok(Member { end, program: start(&words)?, server })
    }

    /// Waits until one of them leads.
    fn find_leader(&mut self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            for (number, member) in self.members.iter_mut().enumerate() {
                member.program.say("role")?;
                if member.program.wait_line("role ", PATIENCE)? == "leader" {
                    self.leader = number;
                    return Ok(());
                }
            }
            std::thread::sleep(LOOK);
        }
        bail!("{}: nobody leads", self.side.name())
    }

    /// The leader's end, and those of the others.
    pub(super) fn leader_and_others(&self) -> (End, Vec<End>) {
        let mut ends: Vec<End> = self.members.iter().map(|member| member.end).collect();
        (ends.remove(self.leader), ends)
    }

    /// Processes of the leader, and of the others.
    pub(super) fn pids(&self) -> (u32, Vec<u32>) {
        let mut pids: Vec<u32> = self.members.iter().map(Member::pid).collect();
        (pids.remove(self.leader), pids)
    }

    /// So many clients commit beside the leader for so long: `rate` commits a second, or with 0 as many as can be.
    pub(super) fn load(&mut self, clients: u32, seconds: f64, rate: f64) -> Result<Value> {
        self.order(&format!("load {clients} {seconds} {rate}"), "loaded ", Duration::from_secs_f64(seconds))
    }

    /// The leader's program fences the writer of a region on another member's host, so often.
    pub(super) fn fence(&mut self, count: u32) -> Result<Value> {
        let other = *self.leader_and_others().1.first().context("a member beside the leader")?;
        self.order(&format!("fence {} {count}", self.place.address(other)), "fenced ", Duration::ZERO)
    }

    /// A thread of the leader's program does verbs at regions of so many other members' hosts at a time, for so long:
    /// `write`, `accept`, `prepare`.
    pub(super) fn verbs(&mut self, what: &str, hosts: usize, seconds: f64) -> Result<Value> {
        let others = self.leader_and_others().1;
        let hosts: Vec<&str> = others.iter().take(hosts).map(|end| self.place.address(*end)).collect();
        self.order(&format!("{what} {seconds} {}", hosts.join(" ")), "ended ", Duration::from_secs_f64(seconds))
    }

    fn order(&mut self, order: &str, answer: &str, takes: Duration) -> Result<Value> {
        let leader = &mut self.members[self.leader].program;
        leader.say(order)?;
        let line = leader.wait_line(answer, PATIENCE + takes).with_context(|| self.side.name())?;
        serde_json::from_str(&line).with_context(|| format!("no JSON: {line}"))
    }

    /// Kills the leader's process: milliseconds until another member has committed something.
    pub(super) fn fail_over(&mut self) -> Result<f64> {
        self.token += 1;
        let order = format!("first {}", self.token);
        let (leader, others): (Vec<_>, Vec<_>) =
            self.members.iter_mut().enumerate().partition(|(number, _)| *number == self.leader);
        let mut others: Vec<(usize, &mut Member)> = others;
        others.iter_mut().try_for_each(|(_, other)| other.program.say(&order))?;
        // They have the order.
        std::thread::sleep(LOOK);
        let pid = leader.first().and_then(|(_, leader)| Pid::from_raw(i32::try_from(leader.pid()).ok()?));
        let begin = now_ns();
        kill_process(pid.context("the leader's process")?, Signal::KILL)?;
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            for (number, other) in &mut others {
                if let Ok(at) = other.program.wait_line(&format!("{order} "), LOOK) {
                    let took = at.parse::<i64>()? - begin;
                    ensure!(took > 0, "{}: somebody else committed before the leader ended", self.side.name());
                    self.leader = *number;
                    return Ok(took as f64 / 1e6);
                }
            }
        }
        bail!("{}: nobody commits after the leader's end", self.side.name())
    }

    /// Starts the member that was killed again.
    pub(super) fn restore(&mut self) -> Result<()> {
        for number in 0..self.members.len() {
            if self.members[number].program.has_ended() {
                let mut member = self.member(self.members[number].end)?;
                member.program.wait_line("ready", READY_WITHIN)?;
                self.members[number] = member;
            }
        }
        self.find_leader()
    }
}

fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// An etcd member with its defaults, but for where it is.
fn etcd(place: &Place, end: End, hosts: &[&str]) -> Vec<String> {
    let url = |host: &str, port: u16| format!("http://{}", at(host, port));
    let all: Vec<String> = (1..).zip(hosts).map(|(n, host)| format!("m{n}={}", url(host, ETCD_PORTS[1]))).collect();
    let (name, own) = (format!("m{}", end.number()), place.address(end));
    let dir = place.memory("etcd").join(&name).display().to_string();
    let (client, peer) = (url(own, ETCD_PORTS[0]), url(own, ETCD_PORTS[1]));
    let words = [
        ("--name", name.as_str()),
        ("--data-dir", &dir),
        ("--listen-client-urls", &client),
        ("--advertise-client-urls", &client),
        ("--listen-peer-urls", &peer),
        ("--initial-advertise-peer-urls", &peer),
        ("--initial-cluster", &all.join(",")),
        ("--logger", "zap"),
        ("--log-level", "error"),
    ];
    ["etcd"].into_iter().chain(words.iter().flat_map(|(key, value)| [*key, *value])).map(str::to_owned).collect()
}

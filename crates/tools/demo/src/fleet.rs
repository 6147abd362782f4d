//! The demo's application processes as one thing: start them, order all of them to do the next step, wait until each
//! has answered. If any of them fails or ends, the step ends.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::{ChildStdin, Command as Process};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::cleanup::Cleanup;
use super::corpus::Corpus;
use super::host::log;
use super::plan::{Connection, part_of};
use super::protocol::{Answer, Command, Flowed, Seat, Setup, Small, Transferred, Via};
use super::traffic::monotonic_ns;

/// How often a waiting parent looks around.
const TICK: Duration = Duration::from_millis(100);
/// How long after the first error others are listened to, and errors that are reported.
const LAST_WORDS: Duration = Duration::from_millis(500);
const ERRORS_MAX: usize = 8;
/// How long applications may take to end after their last word.
const END_LIMIT: Duration = Duration::from_secs(5);
/// How long bytes flow before something is broken under them, and after that.
const FLOW_BEFORE: Duration = Duration::from_millis(200);
const FLOW_AFTER: Duration = Duration::from_millis(300);

/// What all applications of a part are started with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cast<'a> {
    pub(crate) seats: &'a [Seat],
    /// The hosts' addresses.
    pub(crate) hosts: [IpAddr; 2],
    /// How each host's applications connect.
    pub(crate) via: &'a [Via; 2],
    /// Which application connects to which.
    pub(crate) links: &'a [Connection],
    /// What is sent.
    pub(crate) corpus: &'a Corpus,
}

/// All application processes of one transport.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    cleanup: &'a Cleanup,
    cast: Cast<'a>,
    members: BTreeMap<Seat, Member>,
    sender: mpsc::Sender<(u32, Option<Answer>)>,
    answers: mpsc::Receiver<(u32, Option<Answer>)>,
    deadline: Instant,
    /// An application found bytes that nobody sent.
    pub(crate) is_unverified: bool,
}

#[derive(Debug)]
struct Member {
    pid: u32,
    stdin: ChildStdin,
    at: Option<SocketAddr>,
    /// Bytes of files that came so far.
    received: u64,
    /// It said its last word: its end is no surprise.
    is_over: bool,
}

/// A flow under which something was broken.
#[derive(Debug)]
pub(crate) struct Flow {
    /// When it began and when something was broken, by the monotonic clock.
    pub(crate) begin_ns: u64,
    pub(crate) broken_ns: u64,
    /// What each application saw that is still there.
    pub(crate) told: Vec<Flowed>,
}

impl<'a> Fleet<'a> {
    /// Starts the processes; all listen then.
    pub(crate) fn start(cleanup: &'a Cleanup, cast: Cast<'a>, deadline: Instant) -> Result<Self, String> {
        let (sender, answers) = mpsc::channel();
        let members = BTreeMap::new();
        let mut fleet = Self { cleanup, cast, members, sender, answers, deadline, is_unverified: false };
        cast.seats.iter().try_for_each(|&seat| fleet.start_at(seat))?;
        fleet.listening(cast.seats)?;
        Ok(fleet)
    }

    fn start_at(&mut self, seat: Seat) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("{}: {e}", name_of(seat));
        let mut command = Process::new(std::env::current_exe().map_err(failed)?);
        command.args(["demo-app", "--parent", &std::process::id().to_string()]);
        log(&mut command, None);
        let sender = self.sender.clone();
        // `None` is its end.
        let on_line = move |pid, line: Option<String>| {
            let _ = sender.send((pid, line.map(|line| serde_json::from_str(&line).unwrap_or_else(strange))));
        };
        let (pid, stdin) = self.cleanup.spawn(&mut command, on_line).map_err(failed)?;
        self.members.insert(seat, Member { pid, stdin, at: None, received: 0, is_over: false });
        let host = seat.host as usize % 2;
        let setup = Setup {
            name: format!("demo-{}-{}", seat.host + 1, seat.app + 1),
            via: self.cast.via[host].clone(),
            ip: self.cast.hosts[host],
            links: part_of(seat, self.cast.links, self.cast.corpus),
        };
        self.send(seat, &Command::Setup(Box::new(setup)))
    }

    fn listening(&mut self, who: &[Seat]) -> Result<(), String> {
        for (seat, answer) in self.gather(who, |_| {})? {
            let Answer::Listening(at) = answer else { return Err(out_of_step(seat)) };
            self.members.entry(seat).and_modify(|member| member.at = Some(at));
        }
        Ok(())
    }

    fn all(&self) -> Vec<Seat> {
        self.members.keys().copied().collect()
    }

    fn send(&mut self, seat: Seat, command: &Command) -> Result<(), String> {
        let Some(member) = self.members.get_mut(&seat) else { return Err(format!("there is no {}", name_of(seat))) };
        let mut line = serde_json::to_vec(command).map_err(|e| e.to_string())?;
        line.push(b'\n');
        member.stdin.write_all(&line).map_err(|e| format!("{} does not listen: {e}", name_of(seat)))
    }

    /// Has some do something, and waits for their answers.
    fn ask(
        &mut self,
        who: &[Seat],
        command: &Command,
        tick: impl FnMut(u64),
    ) -> Result<BTreeMap<Seat, Answer>, String> {
        who.iter().try_for_each(|&seat| self.send(seat, command))?;
        self.gather(who, tick)
    }

    /// Has all connections opened that are not.
    pub(crate) fn open(&mut self) -> Result<(), String> {
        let peers = self.members.iter().filter_map(|(seat, member)| Some((*seat, member.at?))).collect();
        self.ask(&self.all(), &Command::Open(peers), |_| {}).map(drop)
    }

    /// The largest number of descriptors that an application has open, as the kernel says.
    pub(crate) fn descriptors_max(&self) -> Option<usize> {
        let of = |m: &Member| Some(std::fs::read_dir(format!("/proc/{}/fd", m.pid)).ok()?.count());
        self.members.values().map(of).max().flatten()
    }

    /// Has small messages measured on the first connection.
    pub(crate) fn small(&mut self) -> Result<Small, String> {
        let ends = self.cast.links.first().ok_or("no connections")?.ends;
        let answers = self.ask(&ends, &Command::Small(0), |_| {})?;
        let told = answers.into_values().find_map(|answer| if let Answer::Small(told) = answer { told } else { None });
        told.ok_or_else(|| "neither end measured".into())
    }

    /// Has bytes flow on every connection, and breaks something in the middle.
    pub(crate) fn flow(&mut self, disturb: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<Flow, String> {
        let begin_ns = monotonic_ns();
        self.all().into_iter().try_for_each(|seat| self.send(seat, &Command::Flow))?;
        self.watch_for(FLOW_BEFORE)?;
        let broken_ns = monotonic_ns();
        disturb(self)?;
        self.watch_for(FLOW_AFTER)?;
        let answers = self.ask(&self.all(), &Command::Stop, |_| {})?;
        let told =
            answers.into_values().filter_map(|a| if let Answer::Flowed(flowed) = a { Some(flowed) } else { None });
        Ok(Flow { begin_ns, broken_ns, told: told.collect() })
    }

    /// Waits; an application that fails meanwhile ends the wait.
    fn watch_for(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if let Some((seat, _)) = self.next(left)? {
                return Err(out_of_step(seat));
            }
        }
        Ok(())
    }

    /// Kills the application at `seat` as the kernel does in want of memory.
    pub(crate) fn kill(&mut self, seat: Seat) {
        if let Some(member) = self.members.remove(&seat) {
            self.cleanup.kill(member.pid);
        }
    }

    /// Starts another one in its place, and has its connections made again.
    pub(crate) fn replace(&mut self, seat: Seat) -> Result<(), String> {
        self.start_at(seat)?;
        self.listening(&[seat])?;
        self.open()
    }

    /// Has all files sent; gives what each application says of it.
    pub(crate) fn transfer(&mut self, tick: impl FnMut(u64)) -> Result<Vec<(Seat, Transferred)>, String> {
        let answers = self.ask(&self.all(), &Command::Transfer, tick)?;
        let done = |(seat, answer)| match answer {
            Answer::Transferred(done) => Ok((seat, done)),
            _ => Err(out_of_step(seat)),
        };
        answers.into_iter().map(done).collect()
    }

    /// Has everything closed, and waits for the ends of the processes.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        self.ask(&self.all(), &Command::Finish, |_| {})?;
        let deadline = Instant::now() + END_LIMIT;
        for (seat, member) in &self.members {
            match self.cleanup.wait(member.pid, deadline) {
                Some(status) if status.success() => {}
                Some(status) => return Err(format!("{} ended with {status}", name_of(*seat))),
                None => return Err(format!("{} did not end and was killed", name_of(*seat))),
            }
        }
        Ok(())
    }

    /// Waits until each of `who` has answered; calls `tick` meanwhile with the bytes of files that came.
    fn gather(&mut self, who: &[Seat], mut tick: impl FnMut(u64)) -> Result<BTreeMap<Seat, Answer>, String> {
        let mut answers = BTreeMap::new();
        while answers.len() < who.len() {
            let left = self.deadline.checked_duration_since(Instant::now());
            let left = left.ok_or(crate::TIME_IS_UP)?;
            match self.next(TICK.min(left))? {
                Some((seat, _)) if !who.contains(&seat) => return Err(out_of_step(seat)),
                Some((seat, answer)) => drop(answers.insert(seat, answer)),
                None => tick(self.members.values().map(|member| member.received).sum()),
            }
        }
        Ok(answers)
    }

    /// The next answer within that time.
    fn next(&mut self, within: Duration) -> Result<Option<(Seat, Answer)>, String> {
        let Ok((pid, answer)) = self.answers.recv_timeout(within) else { return Ok(None) };
        self.heed(pid, answer).map_err(|first| self.with_others(first))
    }

    fn heed(&mut self, pid: u32, answer: Option<Answer>) -> Result<Option<(Seat, Answer)>, String> {
        // Who was killed has no seat.
        let Some((&seat, member)) = self.members.iter_mut().find(|(_, member)| member.pid == pid) else {
            return Ok(None);
        };
        match answer {
            Some(Answer::Failed { message, is_unverified }) => {
                member.is_over = true;
                self.is_unverified |= is_unverified;
                Err(format!("{}: {message}", name_of(seat)))
            }
            Some(Answer::Received(bytes)) => {
                member.received = bytes;
                Ok(None)
            }
            None if member.is_over => Ok(None),
            None => {
                let status = self.cleanup.wait(pid, Instant::now() + END_LIMIT);
                let how = status.map_or("and was killed".to_owned(), |s| s.to_string());
                Err(format!("{} ended in the middle of the run: {how}", name_of(seat)))
            }
            Some(answer) => {
                member.is_over = matches!(answer, Answer::Bye);
                Ok(Some((seat, answer)))
            }
        }
    }

    /// Adds what other applications say shortly after the first error: the first to speak is seldom the cause.
    fn with_others(&mut self, first: String) -> String {
        let mut errors = vec![first];
        let until = Instant::now() + LAST_WORDS;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|_| errors.len() < ERRORS_MAX) {
            let Ok((pid, answer)) = self.answers.recv_timeout(left) else { break };
            errors.extend(self.heed(pid, answer).err());
        }
        errors.join("; ")
    }
}

fn name_of(seat: Seat) -> String {
    format!("application {} of host {}", seat.app + 1, seat.host + 1)
}

fn out_of_step(seat: Seat) -> String {
    format!("{} is out of step", name_of(seat))
}

fn strange(e: serde_json::Error) -> Answer {
    Answer::Failed { message: format!("said something strange: {e}"), is_unverified: false }
}

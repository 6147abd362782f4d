//! The demo's application processes as one thing: start them, order all of them to do the next step, wait until each
//! has done it. If any of them fails or ends, the step ends.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command as Process, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::cleanup::Cleanup;
use super::clock::monotonic_ns;
use super::corpus::Corpus;
use super::plan::{Link, Seat};
use super::protocol::{AppLink, Command, Event, Flowed, Setup, Transferred, Via};

/// Bound of each wait of an application on one connection; the run as a whole has a bound of its own.
const STREAM_TIMEOUT_SECONDS: u64 = 60;
/// How often a waiting parent looks around.
const TICK: Duration = Duration::from_millis(100);
/// How long after the first error others are listened to.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Errors that are reported.
const ERRORS_MAX: usize = 8;
/// How long applications may take to end after their last word.
const END_LIMIT: Duration = Duration::from_secs(5);

/// All application processes of one transport.
#[derive(Debug)]
pub(crate) struct Fleet {
    cleanup: Cleanup,
    members: Vec<Member>,
    events: mpsc::Receiver<(usize, Option<Event>)>,
    deadline: Instant,
    /// An application found bytes that nobody sent.
    is_unverified: bool,
}

#[derive(Debug)]
struct Member {
    seat: Seat,
    pid: u32,
    stdin: ChildStdin,
    received_bytes: u64,
    /// Events of a step that others have not reached yet.
    early: VecDeque<Event>,
    /// It said its last word: its end is no surprise.
    is_over: bool,
}

/// What all applications of a run are started with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cast<'a> {
    /// The applications.
    pub(crate) seats: &'a [Seat],
    /// The hosts' addresses.
    pub(crate) hosts: [IpAddr; 2],
    /// How each host's applications connect.
    pub(crate) via: [&'a Via; 2],
    /// Which application connects to which.
    pub(crate) links: &'a [Link],
    /// What is sent.
    pub(crate) corpus: &'a Corpus,
}

impl Fleet {
    /// Starts the processes and gives each its part.
    pub(crate) fn start(cleanup: &Cleanup, cast: Cast<'_>, deadline: Instant) -> Result<Self, String> {
        let (sender, events) = mpsc::channel();
        let mut members = Vec::new();
        for &seat in cast.seats {
            let (pid, (stdin, stdout)) = start_process(cleanup).map_err(|e| format!("{}: {e}", name_of(seat)))?;
            let number = members.len();
            let sender = sender.clone();
            std::thread::spawn(move || read_events(number, stdout, &sender));
            members.push(Member { seat, pid, stdin, received_bytes: 0, early: VecDeque::new(), is_over: false });
        }
        let mut fleet = Self { cleanup: cleanup.clone(), members, events, deadline, is_unverified: false };
        for member in &mut fleet.members {
            send(member, &Command::Setup(Box::new(part_of(member.seat, cast))))?;
        }
        Ok(fleet)
    }

    /// Whether an application failed because bytes arrived that nobody sent.
    pub(crate) fn is_unverified(&self) -> bool {
        self.is_unverified
    }

    /// The largest number of descriptors that an application has open, as the kernel says.
    pub(crate) fn descriptors_max(&self) -> Option<usize> {
        let of = |m: &Member| Some(std::fs::read_dir(format!("/proc/{}/fd", m.pid)).ok()?.count());
        self.members.iter().map(of).max().flatten()
    }

    fn all(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&m| !self.members[m].is_over).collect()
    }

    /// Waits until all listen; gives the addresses by host.
    pub(crate) fn listening(&mut self) -> Result<[Vec<SocketAddr>; 2], String> {
        let all = self.all();
        let at =
            self.gather(&all, |_| {}, |event| if let Event::Listening { at } = event { Some(at) } else { None })?;
        let mut by_host = [Vec::new(), Vec::new()];
        for (member, at) in self.members.iter().zip(at) {
            by_host[member.seat.host as usize % 2].push(at);
        }
        Ok(by_host)
    }

    /// Has all connections opened.
    pub(crate) fn open(&mut self, listeners: &[Vec<SocketAddr>; 2]) -> Result<(), String> {
        for member in &mut self.members {
            send(member, &Command::Open { peers: listeners.clone() })?;
        }
        let all = self.all();
        self.gather(&all, |_| {}, |event| matches!(event, Event::Opened).then_some(()))?;
        Ok(())
    }

    /// Has the latency of a connection measured; half round trips in nanoseconds.
    pub(crate) fn ping(&mut self, connection: u32, link: &Link) -> Result<Vec<u64>, String> {
        let take =
            |event| if let Event::Pinged { half_round_trips_ns } = event { Some(half_round_trips_ns) } else { None };
        Ok(self.at_ends(link, &Command::Ping { connection }, take)?.concat())
    }

    /// Has the rate of messages on a connection measured; how many arrived in how many nanoseconds.
    pub(crate) fn rate(&mut self, connection: u32, link: &Link) -> Result<(u64, u64), String> {
        let take = |event| if let Event::Rated { messages } = event { Some(messages) } else { None };
        let told = self.at_ends(link, &Command::Rate { connection }, take)?;
        told.into_iter().flatten().next().ok_or_else(|| "neither end measured".into())
    }

    /// Has both ends of a connection do something.
    fn at_ends<R>(
        &mut self,
        link: &Link,
        command: &Command,
        take: impl FnMut(Event) -> Option<R>,
    ) -> Result<Vec<R>, String> {
        let ends: Vec<usize> = self.all().into_iter().filter(|&m| link.has(self.members[m].seat)).collect();
        for &end in &ends {
            send(&mut self.members[end], command)?;
        }
        self.gather(&ends, |_| {}, take)
    }

    /// Has bytes flow on every connection for `before`, calls `disturb`, has them flow for `after`, and stops. Gives
    /// what each application saw that is still there.
    pub(crate) fn flow<D>(
        &mut self,
        before: Duration,
        disturb: impl FnOnce(&mut Self) -> Result<D, String>,
        after: Duration,
    ) -> Result<(D, Vec<(Seat, Flowed)>), String> {
        for member in &mut self.members {
            send(member, &Command::Flow)?;
        }
        self.watch_for(before)?;
        let disturbed = disturb(self)?;
        self.watch_for(after)?;
        let left = self.all();
        for &member in &left {
            send(&mut self.members[member], &Command::Stop)?;
        }
        let take = |event| if let Event::Flowed(flowed) = event { Some(*flowed) } else { None };
        let told = self.gather(&left, |_| {}, take)?;
        Ok((disturbed, left.iter().map(|&m| self.members[m].seat).zip(told).collect()))
    }

    /// Waits; an application that fails meanwhile ends the wait.
    fn watch_for(&mut self, time: Duration) -> Result<(), String> {
        let until = (Instant::now() + time).min(self.deadline);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match self.events.recv_timeout(left) {
                Ok((number, event)) => self.on_event(number, event).map_err(|first| self.with_others(first))?,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err("all applications ended".into()),
            }
        }
        Ok(())
    }

    /// Kills the application at `seat` as the kernel does in want of memory; when, by the monotonic clock.
    pub(crate) fn kill(&mut self, seat: Seat) -> Result<u64, String> {
        let member = self.members.iter_mut().find(|m| m.seat == seat).ok_or("no such application")?;
        member.is_over = true;
        let now = monotonic_ns();
        self.cleanup.kill(member.pid);
        Ok(now)
    }

    /// Has everything sent; calls `tick` with the bytes received so far. Gives the time until the last application was
    /// complete, and the records by seat.
    pub(crate) fn transfer(
        &mut self,
        mut tick: impl FnMut(u64),
    ) -> Result<(Duration, Vec<(Seat, Transferred)>), String> {
        let all = self.all();
        let begin = Instant::now();
        for member in &mut self.members {
            send(member, &Command::Transfer)?;
        }
        self.gather(&all, &mut tick, |event| matches!(event, Event::Complete).then_some(()))?;
        let took = begin.elapsed();
        let take = |event| if let Event::Transferred(t) = event { Some(*t) } else { None };
        let records = self.gather(&all, &mut tick, take)?;
        Ok((took, self.members.iter().map(|m| m.seat).zip(records).collect()))
    }

    /// Has everything closed, and waits for the ends of the processes.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let all = self.all();
        for &member in &all {
            send(&mut self.members[member], &Command::Finish)?;
        }
        self.gather(&all, |_| {}, |event| matches!(event, Event::Bye).then_some(()))?;
        let deadline = Instant::now() + END_LIMIT;
        for member in all.into_iter().filter_map(|m| self.members.get(m)) {
            match self.cleanup.wait(member.pid, deadline) {
                Some(status) if status.success() => {}
                Some(status) => return Err(format!("{} ended with {status}", name_of(member.seat))),
                None => return Err(format!("{} did not end and was killed", name_of(member.seat))),
            }
        }
        Ok(())
    }

    /// Waits until each of `who` has sent an event that `take` accepts; returns them in the order of `who`.
    fn gather<R>(
        &mut self,
        who: &[usize],
        mut tick: impl FnMut(u64),
        mut take: impl FnMut(Event) -> Option<R>,
    ) -> Result<Vec<R>, String> {
        let mut results: Vec<Option<R>> = who.iter().map(|_| None).collect();
        let mut last_tick = Instant::now();
        loop {
            for (result, &number) in results.iter_mut().zip(who).filter(|(r, _)| r.is_none()) {
                let Some(member) = self.members.get_mut(number) else { return Err("no such application".into()) };
                let Some(event) = member.early.pop_front() else { continue };
                *result = Some(take(event).ok_or_else(|| format!("{} is out of step", name_of(member.seat)))?);
            }
            let now = Instant::now();
            let complete = results.iter().all(Option::is_some);
            if complete || now.duration_since(last_tick) >= TICK {
                last_tick = now;
                tick(self.members.iter().map(|m| m.received_bytes).sum());
            }
            if complete {
                return Ok(results.into_iter().flatten().collect());
            }
            if now >= self.deadline {
                return Err("the time limit (--seconds-max) is reached".into());
            }
            match self.events.recv_timeout(TICK.min(self.deadline - now)) {
                Ok((number, event)) => self.on_event(number, event).map_err(|first| self.with_others(first))?,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err("all applications ended".into()),
            }
        }
    }

    fn on_event(&mut self, number: usize, event: Option<Event>) -> Result<(), String> {
        let Some(member) = self.members.get_mut(number) else { return Ok(()) };
        match event {
            Some(Event::Progress { received_bytes }) => member.received_bytes = received_bytes,
            Some(Event::Error { message, is_unverified }) => {
                member.is_over = true;
                self.is_unverified |= is_unverified;
                return Err(format!("{}: {message}", name_of(member.seat)));
            }
            None if member.is_over => {}
            None => return Err(self.describe_end(number)),
            Some(event) => {
                member.is_over |= matches!(event, Event::Bye);
                member.early.push_back(event);
            }
        }
        Ok(())
    }

    /// Adds what other applications say shortly after the first error: the first to speak is seldom the cause.
    fn with_others(&mut self, first: String) -> String {
        let mut errors = vec![first];
        let until = Instant::now() + LAST_WORDS;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|_| errors.len() < ERRORS_MAX) {
            match self.events.recv_timeout(left) {
                Ok((number, event)) => errors.extend(self.on_event(number, event).err()),
                Err(_) => break,
            }
        }
        errors.join("; ")
    }

    fn describe_end(&self, number: usize) -> String {
        let Some(member) = self.members.get(number) else { return "an application ended".into() };
        let status = self.cleanup.wait(member.pid, Instant::now() + END_LIMIT);
        let how = status.map_or("and was killed".to_owned(), |s| s.to_string());
        format!("{} ended in the middle of the run: {how}", name_of(member.seat))
    }
}

fn name_of(seat: Seat) -> String {
    format!("application {} of host {}", seat.app + 1, seat.host + 1)
}

fn start_process(cleanup: &Cleanup) -> std::io::Result<(u32, (ChildStdin, ChildStdout))> {
    let mut command = Process::new(std::env::current_exe()?);
    command.args(["demo-app", "--parent", &std::process::id().to_string()]);
    // Ctrl-C on the terminal is for the parent process, which ends its children quietly.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let (pid, pipes) = cleanup.spawn(&mut command, |c| c.stdin.take().zip(c.stdout.take()))?;
    Ok((pid, pipes.ok_or_else(|| std::io::Error::other("no pipes to the new process"))?))
}

fn send(member: &mut Member, command: &Command) -> Result<(), String> {
    let mut line = serde_json::to_vec(command).map_err(|e| e.to_string())?;
    line.push(b'\n');
    member.stdin.write_all(&line).map_err(|e| format!("{} does not listen: {e}", name_of(member.seat)))
}

/// Passes an application's events on; `None` is its end.
fn read_events(number: usize, stdout: ChildStdout, sender: &mpsc::Sender<(usize, Option<Event>)>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let event = serde_json::from_str(&line)
            .unwrap_or_else(|e| Event::Error { message: format!("said something strange: {e}"), is_unverified: false });
        if sender.send((number, Some(event))).is_err() {
            return;
        }
    }
    let _ = sender.send((number, None));
}

/// What the application at `seat` must know.
fn part_of(seat: Seat, cast: Cast<'_>) -> Setup {
    let mut links = Vec::new();
    let mut wanted = std::collections::BTreeSet::new();
    for (connection, link) in (0u32..).zip(cast.links) {
        let Some(files) = link.files_of(seat) else { continue };
        let connects = link.from == seat;
        let peer = if connects { link.to } else { link.from };
        wanted.extend(files);
        links.push(AppLink { connection, peer, connects, files: files.to_vec() });
    }
    let host = seat.host as usize % 2;
    Setup {
        name: format!("demo-{}-{}", seat.host + 1, seat.app + 1),
        via: cast.via[host].clone(),
        ip: cast.hosts[host],
        files: wanted.into_iter().filter_map(|f| Some((f, cast.corpus.files.get(f as usize)?.clone()))).collect(),
        links,
        timeout_seconds: STREAM_TIMEOUT_SECONDS,
    }
}

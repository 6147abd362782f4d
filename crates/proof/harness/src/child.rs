//! Child processes under a watchdog: each has a limit after which its whole process group is ended, so no hang outlives
//! it. Owns spawning, reading of output and ending. It never waits without a bound and never touches a process it did
//! not start.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Lines kept for the caller: the last ones, as what a program says of its run comes at the end. The line handler sees
/// all of them.
const KEPT_LINES_MAX: usize = 200_000;
/// How often the child's end is looked for while it prints nothing.
const POLL: Duration = Duration::from_millis(50);
/// Time for output to drain after the child has ended: a grandchild may hold the pipe open.
const DRAIN: Duration = Duration::from_secs(3);
/// Time between the polite and the final signal.
const GRACE: Duration = Duration::from_secs(5);

/// Which of the child's outputs a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// How a child ended.
#[derive(Debug)]
pub struct Ended {
    /// `None` if the watchdog ended it.
    pub status: Option<ExitStatus>,
    pub took: Duration,
    /// The last 200,000 lines that it printed, in the order read.
    pub lines: Vec<(Stream, String)>,
}

impl Ended {
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// One sentence about an end that was not a success.
    pub fn describe(&self) -> String {
        match self.status {
            Some(status) => format!("{status}"),
            None => format!("still running after {:.0} s, ended by the watchdog", self.took.as_secs_f64()),
        }
    }

    /// Everything printed on one stream.
    pub fn text(&self, stream: Stream) -> String {
        let lines: Vec<&str> = self.lines.iter().filter(|(s, _)| *s == stream).map(|(_, line)| line.as_str()).collect();
        lines.join("\n")
    }
}

/// Runs `command` for at most `limit`, with no standard input; each line goes to `on_line` as it comes.
pub fn run(command: &mut Command, limit: Duration, mut on_line: impl FnMut(Stream, &str)) -> Result<Ended> {
    let mut running = spawn(command)?;
    running.wait(&|took| took >= limit, &mut on_line)
}

/// Runs `command` and shows nothing; the caller looks at the kept lines.
pub fn run_quiet(command: &mut Command, limit: Duration) -> Result<Ended> {
    run(command, limit, |_, _| {})
}

/// A started child with its output readers.
#[derive(Debug)]
pub struct Running {
    child: Child,
    lines: Receiver<(Stream, String)>,
    /// Lines that [`Self::wait_for`] saw.
    early: Vec<(Stream, String)>,
    start: Instant,
}

/// Starts `command` in a process group of its own; where `setpriv` exists it dies with this process.
pub fn spawn(command: &mut Command) -> Result<Running> {
    let mut command = tied_to_parent(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let (sender, lines) = channel();
    if let Some(out) = child.stdout.take() {
        forward(Stream::Out, out, sender.clone());
    }
    if let Some(err) = child.stderr.take() {
        forward(Stream::Err, err, sender);
    }
    Ok(Running { child, lines, early: Vec::new(), start: Instant::now() })
}

impl Running {
    /// The child, and its process group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a line has `text` in it; the child goes on. An error if it ends, or is silent for `limit`, before.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < limit && self.early.len() < KEPT_LINES_MAX {
            match self.lines.recv_timeout(POLL) {
                Ok((stream, line)) => {
                    let is_it = line.contains(text);
                    self.early.push((stream, line));
                    if is_it {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let said: Vec<&str> = self.early.iter().map(|(_, line)| line.as_str()).collect();
        anyhow::bail!("no line with {text:?} came within {limit:?}, but: {}", said.join("\n"))
    }

    /// Waits for the end, or until `expired` says so of the time since the start; then the child is ended.
    pub fn wait(&mut self, expired: &dyn Fn(Duration) -> bool, on_line: &mut dyn FnMut(Stream, &str)) -> Result<Ended> {
        let mut kept = VecDeque::new();
        let mut take = |stream: Stream, line: String| {
            on_line(stream, &line);
            if kept.len() == KEPT_LINES_MAX {
                kept.pop_front();
            }
            kept.push_back((stream, line));
        };
        self.early.drain(..).for_each(|(stream, line)| take(stream, line));
        let mut status = None;
        while !expired(self.start.elapsed()) {
            match self.lines.recv_timeout(POLL) {
                Ok((stream, line)) => take(stream, line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL),
            }
            status = self.child.try_wait().context("cannot wait for a child")?;
            if status.is_some() {
                break;
            }
        }
        if status.is_none() {
            self.end();
        }
        let drained = Instant::now();
        while drained.elapsed() < DRAIN {
            match self.lines.recv_timeout(POLL) {
                Ok((stream, line)) => take(stream, line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(Ended { status, took: self.start.elapsed(), lines: kept.into() })
    }

    /// Ends the child's process group: politely, then for certain. The child is not waited for
    /// in between: until then its id, which is the group's, cannot belong to another process.
    fn end(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        for signal in [Signal::TERM, Signal::KILL] {
            if let Some(group) = group {
                // The group is gone already if this fails, which is what is wanted.
                let _ = kill_process_group(group, signal);
            }
            let sent = Instant::now();
            while sent.elapsed() < GRACE && self.alive() {
                std::thread::sleep(POLL);
            }
        }
        // Collects the exit status; a child stuck in the kernel is left to it.
        let _ = self.child.try_wait();
    }

    /// Whether the child still runs, without collecting its exit status.
    fn alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

fn forward(stream: Stream, pipe: impl Read + Send + 'static, lines: Sender<(Stream, String)>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while matches!(reader.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            bytes.clear();
            if lines.send((stream, line)).is_err() {
                return;
            }
        }
    });
}

/// The same command behind `setpriv --pdeathsig TERM`, so that an interrupted run leaves no child behind.
fn tied_to_parent(command: &Command) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    let mut tied = if setpriv.exists() {
        let mut tied = Command::new(setpriv);
        tied.args(["--pdeathsig", "TERM", "--"]).arg(command.get_program());
        tied
    } else {
        Command::new(command.get_program())
    };
    tied.args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        tied.current_dir(dir);
    }
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(key, value),
            None => tied.env_remove(key),
        };
    }
    tied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_exit_code_come_back() {
        let ended =
            run_quiet(&mut shell("echo one; echo two >&2; exit 3"), Duration::from_secs(60)).expect("sh starts");
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
        assert_eq!(ended.text(Stream::Out), "one");
        assert_eq!(ended.text(Stream::Err), "two");
    }

    #[test]
    fn a_line_is_waited_for_and_the_child_goes_on() {
        let mut running = spawn(&mut shell("echo first; echo ready; sleep 0.2; echo last; exit 3")).unwrap();
        running.wait_for("ready", Duration::from_secs(60)).unwrap();
        let ended = running.wait(&|took| took > Duration::from_secs(60), &mut |_, _| {}).unwrap();
        assert_eq!(ended.text(Stream::Out), "first\nready\nlast");
        let mut other = spawn(&mut shell("echo nothing")).unwrap();
        let error = other.wait_for("ready", Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("nothing"), "{error}");
    }

    #[test]
    fn of_too_many_lines_the_last_are_kept() {
        let mut seen = 0;
        let ended = run(&mut shell("seq 200005"), Duration::from_secs(60), |_, _| seen += 1).expect("sh starts");
        assert_eq!(seen, 200_005);
        assert_eq!(ended.lines.len(), KEPT_LINES_MAX);
        assert_eq!(ended.lines.last(), Some(&(Stream::Out, "200005".to_owned())));
    }

    #[test]
    fn a_hang_and_its_grandchildren_are_ended() {
        let script = "sleep 1000 & echo $!; wait";
        let ended = run_quiet(&mut shell(script), Duration::from_secs(5)).expect("sh starts");
        assert!(ended.status.is_none(), "{ended:?}");
        let pid: u32 = ended.text(Stream::Out).parse().expect("the shell printed a process id");
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        let asked = Instant::now();
        while !gone() && asked.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(POLL);
        }
        assert!(gone(), "the grandchild {pid} still runs");
    }
}

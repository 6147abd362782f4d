//! One run of one case: its two sides as two processes, their transcripts, and the watchdog.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::place::{End, Place, Way};

/// No case takes that long, on a slow machine either; those that wait in vain say so after ten seconds.
const CASE_LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(16);
/// How long a side goes on alone when a signal has ended the other: it would wait in vain.
const ALONE_LIMIT: Duration = Duration::from_secs(3);
/// What the last line of each side says.
const LAST: &str = " end";

/// What both sides of a case wrote.
#[derive(Debug)]
pub(super) struct Transcript {
    /// Side A's lines, then side B's.
    pub(super) text: String,
    /// The watchdog ended it.
    hangs: bool,
    /// Ends of connections that were warm before they were used, and those of them that went where the place has them go.
    pub(super) warm: usize,
    pub(super) as_wanted: usize,
    /// The last words beside the transcripts.
    said: String,
    pub(super) took: Duration,
}

impl Transcript {
    /// Why this is not a whole transcript.
    pub(super) fn trouble(&self) -> Option<String> {
        let sides = ["A", "B"].map(|side| self.text.lines().any(|line| line == format!("{side}{LAST}")));
        let broken = self.text.lines().find(|line| line.contains(" broken: ") || line.contains(" waited in vain"));
        match (self.hangs, broken, sides) {
            (true, ..) => Some(format!("hangs; the last lines: {} {}", self.last_lines(), self.said)),
            (_, Some(line), _) => Some(format!("{line} {}", self.said)),
            (.., [true, true]) => None,
            _ => Some(format!("a side ended before its end: {} {}", self.last_lines(), self.said)),
        }
    }

    fn last_lines(&self) -> String {
        let last = |side: &str| self.text.lines().rfind(|line| line.starts_with(side)).unwrap_or("(nothing)");
        format!("`{}` and `{}`", last("A"), last("B"))
    }
}

/// Runs a case to its end.
pub(super) fn run(program: &Path, case: &str, place: &Place, warm: bool) -> Result<Transcript> {
    let dir = tempfile::Builder::new().prefix("case-").tempdir_in(place.dir())?;
    let sides = [("A", End::Client), ("B", End::Server)];
    let mut children = vec![];
    for (side, end) in sides {
        let words = [&program.to_string_lossy(), side, &dir.path().to_string_lossy(), place.server(), case];
        let mut command = place.command(end, &words.map(|word| word as &str));
        if warm {
            command.env("SOCKETS_WARM", "1");
        }
        command.stdout(File::create(dir.path().join(side))?).stdin(Stdio::null());
        command.stderr(File::create(dir.path().join(format!("{side}.said")))?);
        children.push(start(&mut command)?);
    }
    let begin = Instant::now();
    let mut hangs = false;
    // Most cases take a few milliseconds, and many wait for tenths of a second.
    let mut pause = POLL;
    let mut crashed_at: Option<Instant> = None;
    while !all_ended(&mut children)? {
        if crashed_at.is_none() && any_crashed(&mut children)? {
            crashed_at = Some(Instant::now());
        }
        if crashed_at.is_some_and(|at| at.elapsed() > ALONE_LIMIT) {
            children.iter_mut().for_each(end_group);
        }
        if begin.elapsed() > CASE_LIMIT {
            hangs = true;
            children.iter_mut().for_each(end_group);
        }
        std::thread::sleep(pause);
        pause = POLL_MAX.min(pause * 2);
    }
    let took = begin.elapsed();
    let read = |name: &str| -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(dir.path().join(name))?).into_owned())
    };
    let said = read("A.said")? + &read("B.said")?;
    let paths: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("path ")).collect();
    let wanted = if place.way == Way::Polled { "3" } else { "2" };
    let (count, as_wanted) = (paths.len(), paths.iter().filter(|path| **path == wanted).count());
    let said: Vec<&str> = said.lines().filter(|line| !line.starts_with("path ")).collect();
    Ok(Transcript { text: read("A")? + &read("B")?, hangs, warm: count, as_wanted, said: said.join(" / "), took })
}

fn start(command: &mut Command) -> Result<Child> {
    command.process_group(0).spawn().with_context(|| format!("cannot start {command:?}"))
}

fn all_ended(children: &mut [Child]) -> Result<bool> {
    let mut all = true;
    for child in children {
        all &= child.try_wait()?.is_some();
    }
    Ok(all)
}

fn any_crashed(children: &mut [Child]) -> Result<bool> {
    let mut any = false;
    for child in children {
        any |= child.try_wait()?.is_some_and(|status| status.signal().is_some());
    }
    Ok(any)
}

/// Ends a side and what it started. A side that has not been waited for keeps its number.
fn end_group(child: &mut Child) {
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It is gone already if this fails, which is what is wanted.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

//! What the kernel says about threads of processes: time on a processor, time in the queue for one, and switches. Reads
//! /proc only.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// A thread since its start.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Thread {
    pub(super) name: String,
    pub(super) ran_ns: f64,
    /// It could run and had no processor.
    pub(super) queued_ns: f64,
    /// It left its processor to sleep. Each ended with a wake.
    pub(super) slept: f64,
    /// It left its processor although it could have gone on: it yielded, or another one went before it.
    pub(super) gave_way: f64,
}

/// Threads of a process, by their number.
pub(super) fn of(pid: u32) -> Result<BTreeMap<u32, Thread>> {
    let dir = format!("/proc/{pid}/task");
    let mut threads = BTreeMap::new();
    for task in std::fs::read_dir(&dir).with_context(|| format!("process {pid} is gone"))?.flatten() {
        let id = task.file_name().to_string_lossy().parse().context("a thread has a number")?;
        // A thread may end between the listing and the look.
        if let Ok(thread) = read(&task.path()) {
            threads.insert(id, thread);
        }
    }
    ensure!(!threads.is_empty(), "process {pid} is gone");
    Ok(threads)
}

fn read(task: &Path) -> Result<Thread> {
    let text = |file: &str| read_to_string(task.join(file)).with_context(|| task.join(file).display().to_string());
    parse(text("comm")?.trim(), &text("schedstat")?, &text("status")?).context("what the kernel says about a thread")
}

fn parse(name: &str, schedstat: &str, status: &str) -> Option<Thread> {
    let mut times = schedstat.split_whitespace().map(|word| word.parse().ok());
    let switches = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    Some(Thread {
        name: name.to_owned(),
        ran_ns: times.next()??,
        queued_ns: times.next()??,
        slept: switches("voluntary_ctxt_switches:")?,
        gave_way: switches("nonvoluntary_ctxt_switches:")?,
    })
}

impl Thread {
    /// What was added since.
    pub(super) fn since(&self, before: Option<&Self>) -> Self {
        let of = |part: fn(&Self) -> f64| part(self) - before.map_or(0.0, part);
        Self {
            name: self.name.clone(),
            ran_ns: of(|t| t.ran_ns),
            queued_ns: of(|t| t.queued_ns),
            slept: of(|t| t.slept),
            gave_way: of(|t| t.gave_way),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        let thread = parse("raas-engine", "1000 20 7\n", status).expect("a thread");
        assert_eq!((thread.ran_ns, thread.queued_ns, thread.slept, thread.gave_way), (1000.0, 20.0, 12.0, 3.0));
        let later = Thread { ran_ns: 1500.0, slept: 14.0, ..thread.clone() };
        let added = later.since(Some(&thread));
        assert_eq!((added.ran_ns, added.queued_ns, added.slept, added.gave_way), (500.0, 0.0, 2.0, 0.0));
        assert_eq!(later.since(None), later);
        assert_eq!(parse("x", "1000", status), None);
    }

    #[test]
    fn a_sleep_of_ones_own_is_seen() -> Result<()> {
        let me = std::process::id();
        let all = |threads: BTreeMap<u32, Thread>| threads.values().map(|t| t.slept).sum::<f64>();
        let before = all(of(me)?);
        (0..5).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
        assert!(all(of(me)?) >= before + 5.0);
        assert!(of(u32::MAX).is_err());
        Ok(())
    }
}

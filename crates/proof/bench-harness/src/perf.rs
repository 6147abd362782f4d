//! The program `perf`: how often threads call the kernel, and which thread wakes which. Owns its command lines and the
//! reading of what it prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::place::has;
use harness::child::{self, Stream};

/// Kinds of calls, and the system calls of each.
pub(super) const CALLS: [(&str, &[&str]); 5] = [
    ("yields", &["sched_yield"]),
    ("futexes", &["futex", "futex_wait", "futex_wake", "futex_waitv"]),
    ("waits", &["epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll"]),
    ("sends", &["sendmmsg", "sendmsg", "sendto", "write", "writev"]),
    ("receives", &["recvmmsg", "recvmsg", "recvfrom", "read", "readv"]),
];
/// Where the kernel lists them.
const EVENTS: &str = "/sys/kernel/tracing/events/syscalls";
const WAKING: &str = "sched:sched_waking";
const LIMIT: Duration = Duration::from_secs(120);

/// Why it cannot be used; none if it can.
pub(super) fn missing() -> Option<String> {
    if !has("perf") {
        return Some("the program perf is not here".to_owned());
    }
    let mut command = Command::new("perf");
    let tried = child::run_quiet(command.args(["stat", "--all-cpus", "--event", WAKING, "true"]), LIMIT);
    match tried {
        Ok(ended) if ended.success() && Path::new(EVENTS).is_dir() => None,
        Ok(ended) if ended.success() => Some(format!("{EVENTS} is not there")),
        Ok(ended) => Some(format!("perf may not count: {}", ended.text(Stream::Err).trim())),
        Err(e) => Some(e.to_string()),
    }
}

/// Calls that each thread of the processes makes in so many seconds, by kind.
pub(super) fn calls(pids: &[u32], seconds: f64) -> Result<BTreeMap<u32, BTreeMap<&'static str, f64>>> {
    let names = CALLS.iter().flat_map(|(_, calls)| calls.iter());
    let there = names.filter(|call| Path::new(EVENTS).join(format!("sys_enter_{call}")).is_dir());
    let events = there.map(|call| format!("syscalls:sys_enter_{call}")).collect::<Vec<_>>().join(",");
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let seconds = seconds.to_string();
    let mut command = Command::new("perf");
    command.args(["stat", "--field-separator", ",", "--per-thread", "--pid", &pids, "--event", &events]);
    let ended = child::run_quiet(command.args(["--", "sleep", &seconds]), LIMIT)?;
    let text = ended.text(Stream::Err);
    ensure!(ended.success(), "perf stat: {}\n{text}", ended.describe());
    Ok(parse_calls(&text))
}

/// Lines `name-number,count,,syscalls:sys_enter_call,...`.
fn parse_calls(text: &str) -> BTreeMap<u32, BTreeMap<&'static str, f64>> {
    let mut threads: BTreeMap<u32, BTreeMap<&'static str, f64>> = BTreeMap::new();
    for line in text.lines() {
        let mut cells = line.split(',');
        let (Some(thread), Some(count), _, Some(event)) = (cells.next(), cells.next(), cells.next(), cells.next())
        else {
            continue;
        };
        let number = thread.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
        let call = event.strip_prefix("syscalls:sys_enter_");
        let kind = CALLS.iter().find(|(_, calls)| call.is_some_and(|call| calls.contains(&call)));
        if let (Some(number), Some((kind, _)), Ok(count)) = (number, kind, count.parse::<f64>()) {
            *threads.entry(number).or_default().entry(*kind).or_default() += count;
        }
    }
    threads
}

/// Writes down all wakes of the machine for so many seconds.
pub(super) fn record_wakes(file: &Path, seconds: f64) -> Result<()> {
    let (seconds, file) = (seconds.to_string(), text(file)?);
    let mut command = Command::new("perf");
    command.args(["record", "--quiet", "--all-cpus", "--event", WAKING, "--output", file]);
    let ended = child::run_quiet(command.args(["--", "sleep", &seconds]), LIMIT)?;
    ensure!(ended.success(), "perf record: {}\n{}", ended.describe(), ended.text(Stream::Err));
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// How often each thread (0: an idle processor, so an interrupt) woke which other one while it was written down.
pub(super) fn wakes(file: &Path) -> Result<BTreeMap<(u32, u32), f64>> {
    let mut command = Command::new("perf");
    let ended = child::run_quiet(command.args(["script", "--input", text(file)?, "--fields", "tid,trace"]), LIMIT)?;
    ensure!(ended.success(), "perf script: {}\n{}", ended.describe(), ended.text(Stream::Err));
    Ok(parse_wakes(&ended.text(Stream::Out)))
}

/// Lines `waker comm=name pid=woken prio=...`.
fn parse_wakes(text: &str) -> BTreeMap<(u32, u32), f64> {
    let mut wakes = BTreeMap::new();
    for line in text.lines() {
        let waker = line.split_whitespace().next().and_then(|word| word.parse().ok());
        // A name may have blanks and signs in it, so the last such word counts.
        let woken = line.rsplit_once(" pid=").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        if let (Some(waker), Some(woken)) = (waker, woken) {
            *wakes.entry((waker, woken)).or_default() += 1.0;
        }
    }
    wakes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_calls_are_added_by_kind_and_thread() {
        let text = "raas-engine-12,5,,syscalls:sys_enter_sched_yield,6,100.00,,\n\
                    raas-engine-12,2,,syscalls:sys_enter_sendmmsg,6,100.00,,\n\
                    raas-engine-12,1,,syscalls:sys_enter_write,6,100.00,,\n\
                    a-b-13,<not counted>,,syscalls:sys_enter_write,0,0.00,,\n\
                    a-b-13,7,,syscalls:sys_enter_futex,6,100.00,,\n\nnoise\n";
        let found = parse_calls(text);
        assert_eq!(found[&12], BTreeMap::from([("yields", 5.0), ("sends", 3.0)]));
        assert_eq!(found[&13], BTreeMap::from([("futexes", 7.0)]));
    }

    #[test]
    fn wakes_are_counted_by_who_woke_whom() {
        let text = "11285 comm=migration/0 pid=18 prio=0 target_cpu=000\n    0 comm=a pid=7 b pid=19 prio=120\n\
                    \n0 comm=x pid=19 prio=120 target_cpu=001\n";
        assert_eq!(parse_wakes(text), BTreeMap::from([((11_285, 18), 1.0), ((0, 19), 2.0)]));
    }
}

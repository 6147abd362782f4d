//! The program `perf`: how often threads call the kernel, and which thread wakes which. Owns its command lines and the
//! reading of what it prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::process::Beside;
use super::with_priority;
use harness::child::{self, Stream};
use harness::packages;

/// Kinds of calls, and the system calls of each.
pub(super) const CALLS: [(&str, &[&str]); 5] = [
    ("yields", &["sched_yield"]),
    ("futexes", &["futex", "futex_wait", "futex_wake", "futex_waitv"]),
    ("waits", &["epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll"]),
    ("sends", &["sendmmsg", "sendmsg", "sendto", "write", "writev"]),
    ("receives", &["recvmmsg", "recvmsg", "recvfrom", "read", "readv"]),
];
/// Calls of each thread, by kind.
pub(super) type Calls = BTreeMap<u32, BTreeMap<&'static str, f64>>;
/// How often one thread woke another, by waker and woken.
pub(super) type Wakes = BTreeMap<(u32, u32), f64>;

/// Where the kernel lists them.
const EVENTS: &str = "/sys/kernel/tracing/events/syscalls";
const WAKING: &str = "sched:sched_waking";
const LIMIT: Duration = Duration::from_secs(120);

/// Why it cannot be used; none if it can.
pub(super) fn missing() -> Option<String> {
    if !packages::is_here("perf") {
        return Some("the program perf is not here".to_owned());
    }
    let tried = child::run_quiet(&mut perf(&["stat", "--all-cpus", "--event", WAKING, "true"]), LIMIT);
    match tried {
        Ok(ended) if ended.success() && Path::new(EVENTS).is_dir() => None,
        Ok(ended) if ended.success() => Some(format!("{EVENTS} is not there")),
        Ok(ended) => Some(format!("perf may not count: {}", ended.text(Stream::Err).trim())),
        Err(e) => Some(e.to_string()),
    }
}

/// Ahead of other work, as the measured programs are: they leave it nothing.
fn perf(words: &[&str]) -> Command {
    let words = [&["perf"], words].concat();
    let words = with_priority(&words);
    let (program, arguments) = words.split_first().unwrap_or((&"perf", &[]));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Counts for so many seconds, and calls `measure` when that begins and when it ends: `perf` needs time to start and
/// to end too.
fn counting<T>(words: &[&str], seconds: f64, mut measure: impl FnMut() -> Result<T>) -> Result<[T; 2]> {
    let script = format!("echo begin; sleep {seconds}; echo end");
    let mut process = Beside::start(perf(words).args(["--", "sh", "-c", &script]))?;
    process.wait_line("begin", LIMIT).context("perf")?;
    let begin = measure()?;
    process.wait_line("end", LIMIT).context("perf")?;
    let end = measure()?;
    process.finish(LIMIT).context("perf")?;
    Ok([begin, end])
}

/// Calls that each thread of the processes makes in so many seconds, by kind.
pub(super) fn calls<T>(
    pids: &[u32],
    file: &Path,
    seconds: f64,
    measure: impl FnMut() -> Result<T>,
) -> Result<([T; 2], Calls)> {
    let names = CALLS.iter().flat_map(|(_, calls)| calls.iter());
    let there = names.filter(|call| Path::new(EVENTS).join(format!("sys_enter_{call}")).is_dir());
    let events = there.map(|call| format!("syscalls:sys_enter_{call}")).collect::<Vec<_>>().join(",");
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let words = ["stat", "--field-separator", ",", "--per-thread", "--pid", &pids, "--event", &events];
    let measured = counting(&[&words[..], &["--output", text(file)?]].concat(), seconds, measure)?;
    let text = std::fs::read_to_string(file).context("perf stat wrote nothing")?;
    let found = parse_calls(&text);
    ensure!(!found.is_empty(), "perf stat counted nothing: {text}");
    Ok((measured, found))
}

/// Lines `name-number,count,,syscalls:sys_enter_call,...`.
fn parse_calls(text: &str) -> Calls {
    let mut threads = Calls::new();
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

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// How often each thread (0: an idle processor, so an interrupt) woke which other one in so many seconds, on the whole
/// machine.
pub(super) fn wakes<T>(file: &Path, seconds: f64, measure: impl FnMut() -> Result<T>) -> Result<([T; 2], Wakes)> {
    let words = ["record", "--quiet", "--all-cpus", "--event", WAKING, "--output", text(file)?];
    let measured = counting(&words, seconds, measure)?;
    let ended = child::run_quiet(&mut perf(&["script", "--input", text(file)?, "--fields", "tid,trace"]), LIMIT)?;
    ensure!(ended.success(), "perf script: {}\n{}", ended.describe(), ended.text(Stream::Err));
    Ok((measured, parse_wakes(&ended.text(Stream::Out))))
}

/// Lines `waker comm=name pid=woken prio=...`.
fn parse_wakes(text: &str) -> Wakes {
    let mut wakes = Wakes::new();
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

//! Processor time of process groups and of daemons while they run, as the kernel counts it in /proc.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks, and the width of a slot of the figure.
const LOOK: Duration = Duration::from_millis(100);

/// Processor time in ticks, of a group with all that it has waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    pub(super) user: u64,
    pub(super) system: u64,
}

/// Whose time is counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Watched {
    /// Process groups.
    pub(super) groups: Vec<u32>,
    /// Single processes.
    pub(super) pids: Vec<u32>,
}

/// A process as `/proc/PID/stat` tells of it.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    group: u32,
    own: Ticks,
    /// Of children that it has waited for.
    waited: Ticks,
}

impl Watched {
    /// What they have used up to now.
    pub(super) fn ticks(&self) -> Ticks {
        let mut all = Ticks::default();
        for stat in processes() {
            let is_in_group = self.groups.contains(&stat.group);
            if is_in_group || self.pids.contains(&stat.pid) {
                all.user += stat.own.user;
                all.system += stat.own.system;
            }
            if is_in_group {
                all.user += stat.waited.user;
                all.system += stat.waited.system;
            }
        }
        all
    }

    /// Looks while `work` runs: part of one processor in use, in each slot of a tenth of a second from its begin on.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<f64>) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut looks = vec![(Instant::now(), self.ticks())];
                loop {
                    let is_last = is_over.load(Ordering::Relaxed);
                    std::thread::sleep(LOOK);
                    looks.push((Instant::now(), self.ticks()));
                    if is_last {
                        return slots(&looks);
                    }
                }
            });
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            (done, looking.join().expect("it reads files"))
        })
    }
}

/// Processors in use between two looks. A process that ended takes its time along until it is waited for, so what would
/// be less than nothing is nothing.
fn slots(looks: &[(Instant, Ticks)]) -> Vec<f64> {
    let all = |ticks: Ticks| seconds(ticks.user + ticks.system);
    let used = |pair: &[(Instant, Ticks)]| {
        let time = (pair[1].0 - pair[0].0).as_secs_f64();
        (all(pair[1].1) - all(pair[0].1)).max(0.0) / time
    };
    looks.windows(2).map(used).collect()
}

/// Ticks in seconds.
pub(super) fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn processes() -> Vec<Stat> {
    let Ok(all) = std::fs::read_dir("/proc") else { return vec![] };
    let names = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    names.filter_map(|pid| stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// Reads `PID (NAME) STATE PPID GROUP ...`; the name may have blanks and brackets.
fn stat(text: &str) -> Option<Stat> {
    let (pid, rest) = text.split_once(" (")?;
    let fields: Vec<&str> = rest.rsplit_once(") ")?.1.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(Stat {
        pid: pid.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        own: Ticks { user: number(11)?, system: number(12)? },
        waited: Ticks { user: number(13)?, system: number(14)? },
    })
}

/// Means of values at equal places of several rounds, by seconds: rounds that are over used nothing.
pub(super) fn by_time(rounds: &[Vec<f64>], width: usize) -> Vec<(f64, Vec<f64>)> {
    let longest = rounds.iter().map(Vec::len).max().unwrap_or_default();
    let mut found: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for from in (0..longest).step_by(width.max(1)) {
        for round in rounds {
            let part = round.get(from..(from + width).min(round.len())).unwrap_or_default();
            found.entry(from).or_default().push(part.iter().sum::<f64>() / width as f64);
        }
    }
    let slot = LOOK.as_secs_f64();
    found.into_iter().map(|(from, values)| ((from as f64 * slot * 10.0).round() / 10.0, values)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let text = "42 (a) b (c) S 1 40 40 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5";
        let wanted =
            Stat { pid: 42, group: 40, own: Ticks { user: 10, system: 20 }, waited: Ticks { user: 30, system: 40 } };
        assert_eq!(stat(text), Some(wanted));
        assert_eq!(stat("42 (cut"), None);
    }

    #[test]
    fn work_of_a_group_is_seen() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get() as u32;
        let watched = Watched { groups: vec![group], pids: vec![] };
        let before = watched.ticks();
        let ((), used) = watched.during(|| {
            let begin = Instant::now();
            // Until the kernel has counted some of it, however busy the machine is.
            while watched.ticks() == before && begin.elapsed() < Duration::from_secs(30) {
                std::hint::black_box((0..100_000u64).sum::<u64>());
            }
        });
        assert!(watched.ticks().user + watched.ticks().system > before.user + before.system);
        assert!(!used.is_empty());
    }

    #[test]
    fn slots_of_several_rounds_are_joined() {
        let joined = by_time(&[vec![1.0, 1.0, 0.5, 0.5], vec![2.0]], 2);
        assert_eq!(joined, [(0.0, vec![1.0, 1.0]), (0.2, vec![0.5, 0.0])]);
    }
}

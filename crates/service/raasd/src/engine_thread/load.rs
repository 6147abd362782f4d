//! How busy the engine and its host are, and the engine's share of a processor.
//!
//! Owns two sums of working time: one that peers are told of, and one that is kept within the operator's budget
//! (`engine_cpu_max`). Time is an argument. It must never make the engine pause while its budget lasts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use verbs::Time;

/// Over so long a time the engine's load is measured: longer than many round trips, and short beside what a person
/// waits for.
const LOAD_WINDOW: Duration = Duration::from_millis(100);
/// The budget holds in each time of this length, so a pause is no longer. Shorter ones would be spent on waking up.
const BUDGET_WINDOW: Duration = Duration::from_millis(10);
/// The host's memory is looked at so often.
const MEMORY_EVERY: Duration = Duration::from_secs(1);
/// All of a processor.
pub(crate) const CPU_ALL: u32 = 100;

/// Working time since a moment.
#[derive(Debug, Clone, Copy)]
struct Sum {
    since: Time,
    worked: Duration,
}

impl Sum {
    fn new(since: Time) -> Self {
        Self { since, worked: Duration::ZERO }
    }
}

/// The two sums.
#[derive(Debug)]
pub(crate) struct Meter {
    load: Sum,
    budget: Sum,
    /// Percent of a processor.
    cpu_max: u32,
    /// Times that the engine paused because of its budget.
    pauses: u64,
}

impl Meter {
    /// `cpu_max`: percent of a processor that the engine may use, [`CPU_ALL`] for no bound.
    pub(crate) fn new(now: Time, cpu_max: u32) -> Self {
        Self { load: Sum::new(now), budget: Sum::new(now), cpu_max, pauses: 0 }
    }

    /// A round that worked took so long.
    #[inline]
    pub(crate) fn on_work(&mut self, took: Duration) {
        self.load.worked += took;
        self.budget.worked += took;
    }

    /// The engine's load in percent, once for each [`LOAD_WINDOW`].
    #[inline]
    pub(crate) fn take_load(&mut self, now: Time) -> Option<u8> {
        let time = now.saturating_since(self.load.since);
        if time < LOAD_WINDOW {
            return None;
        }
        let percent = self.load.worked.as_nanos() * 100 / time.as_nanos().max(1);
        self.load = Sum::new(now);
        Some(u8::try_from(percent.min(100)).unwrap_or(100))
    }

    /// For how long the engine must pause now, to keep within its budget.
    #[inline]
    pub(crate) fn pause(&mut self, now: Time) -> Option<Duration> {
        if self.cpu_max >= CPU_ALL {
            return None;
        }
        let time = now.saturating_since(self.budget.since);
        let allowed = BUDGET_WINDOW * self.cpu_max / CPU_ALL;
        if self.budget.worked >= allowed && time < BUDGET_WINDOW {
            self.pauses += 1;
            return Some(BUDGET_WINDOW - time);
        }
        if time >= BUDGET_WINDOW {
            // A round that took longer than the window is paid for in those that follow.
            let over = self.budget.worked.saturating_sub(allowed);
            self.budget = Sum { since: now, worked: over };
            if over >= allowed {
                self.pauses += 1;
                return Some(BUDGET_WINDOW);
            }
        }
        None
    }

    /// Times that the engine paused because of its budget.
    pub(crate) fn pauses(&self) -> u64 {
        self.pauses
    }
}

/// The host's memory in use, as the kernel estimates it.
#[derive(Debug)]
pub(crate) struct HostMemory {
    file: Option<File>,
    looked: Option<Time>,
    percent: u8,
}

impl HostMemory {
    pub(crate) fn new() -> Self {
        Self { file: File::open("/proc/meminfo").ok(), looked: None, percent: 0 }
    }

    /// Percent of the memory that could not be had without swapping. 0 if the system does not say it.
    pub(crate) fn percent(&mut self, now: Time) -> u8 {
        if self.looked.is_none_or(|at| now.saturating_since(at) >= MEMORY_EVERY) {
            self.looked = Some(now);
            let mut text = [0; 256];
            let read = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
            let told = read.and_then(|len| std::str::from_utf8(&text[..len]).ok()).and_then(in_use);
            self.percent = told.unwrap_or(0);
        }
        self.percent
    }
}

/// `MemTotal` and `MemAvailable` stand in the first lines of the file.
fn in_use(text: &str) -> Option<u8> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, available) = (value("MemTotal")?, value("MemAvailable")?);
    let used = total.checked_sub(available)?.checked_mul(100)?.checked_div(total)?;
    u8::try_from(used).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of this length that work, with pauses as they are asked for, for a second of virtual time: the working
    /// time, and how often the engine paused.
    fn worked_in_a_second(cpu_max: u32, round: Duration) -> (Duration, u64) {
        let (mut now, mut worked) = (Time::ZERO, Duration::ZERO);
        let mut meter = Meter::new(now, cpu_max);
        while now < Time::ZERO + Duration::from_secs(1) {
            now = now + round;
            worked += round;
            meter.on_work(round);
            while let Some(pause) = meter.pause(now) {
                assert!(pause <= BUDGET_WINDOW);
                now = now + pause;
            }
        }
        (worked, meter.pauses())
    }

    #[test]
    fn an_engine_keeps_within_its_budget_and_uses_it() {
        for round in [Duration::from_micros(3), Duration::from_micros(700), Duration::from_millis(4)] {
            for cpu_max in [10, 25, 50, 90] {
                let (worked, pauses) = worked_in_a_second(cpu_max, round);
                let budget = Duration::from_secs(1) * cpu_max / CPU_ALL;
                // A round is never cut, and what it took too long is paid back in the next windows.
                assert!(worked <= budget + 3 * BUDGET_WINDOW, "{worked:?} of {budget:?}, rounds of {round:?}");
                assert!(worked + 3 * BUDGET_WINDOW >= budget / 2, "{worked:?} of {budget:?}, rounds of {round:?}");
                assert!(pauses > 0);
            }
            assert_eq!(worked_in_a_second(CPU_ALL, round).1, 0, "no bound, no pause");
        }
    }

    #[test]
    fn an_engine_that_rarely_works_never_pauses() {
        let mut meter = Meter::new(Time::ZERO, 10);
        for step in 1..10_000_u64 {
            if step % 20 == 0 {
                meter.on_work(Duration::from_micros(100));
            }
            assert_eq!(meter.pause(Time(step * 100_000)), None, "5% of the time at step {step}");
        }
    }

    #[test]
    fn the_load_is_the_share_of_working_time() {
        for (busy_of_ten, percent) in [(0, 0), (3, 30), (10, 100)] {
            let mut meter = Meter::new(Time::ZERO, CPU_ALL);
            let mut told = Vec::new();
            for step in 1..=1000_u64 {
                if step % 10 < busy_of_ten {
                    meter.on_work(Duration::from_millis(1));
                }
                told.extend(meter.take_load(Time(step * 1_000_000)));
            }
            assert_eq!(told, [percent; 10]);
        }
    }

    #[test]
    fn memory_is_what_the_kernel_says_and_nonsense_is_nothing() {
        let text = "MemTotal:       1000 kB\nMemFree:    1 kB\nMemAvailable:    250 kB\nBuffers";
        assert_eq!(in_use(text), Some(75));
        for text in ["", "MemTotal: 5 kB", "MemTotal: 0 kB\nMemAvailable: 0 kB\n", "MemTotal: 1 kB\nMemAvailable: 2 kB"]
        {
            assert_eq!(in_use(text), None, "{text}");
        }
        assert!(HostMemory::new().percent(Time(1)) <= 100);
    }
}

//! What the kernel says about a process: resident memory and processor time, read from /proc.
//!
//! Values of a process that ended meanwhile are `None`, never a made-up number.

use std::time::Duration;

/// Resident memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// VmRSS: all pages, private and shared.
    pub total_bytes: u64,
    /// RssShmem: the part that is shared memory, such as the rings that applications map too.
    pub shared_bytes: u64,
}

/// Resident memory of process `pid`.
pub fn resident(pid: u32) -> Option<Resident> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Resident {
        total_bytes: status_bytes(&status, "VmRSS:")?,
        shared_bytes: status_bytes(&status, "RssShmem:").unwrap_or(0),
    })
}

/// A line of /proc/PID/status in KiB, as bytes.
fn status_bytes(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(key))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Processor time (user and system, all threads that live) of process `pid`.
///
/// Read per thread from /proc/PID/task/TID/schedstat, in nanoseconds: /proc/PID/stat counts in ticks of 10 ms. Threads
/// that ended meanwhile are lost from the sum; daemons keep theirs.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
        let ns: u64 = text.split_whitespace().next()?.parse().ok()?;
        total += Duration::from_nanos(ns);
    }
    Some(total)
}

/// Processor time (user and system, all threads, ended ones too) of this process.
pub fn own_cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(t).unwrap_or(Duration::ZERO)
}

/// Raises the soft limit of open descriptors to the hard one: thousands of connections need more than the usual 1024.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves the old limit; running out of descriptors later names itself.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_memory_and_time() {
        let me = std::process::id();
        assert!(resident(me).unwrap().total_bytes > 100_000);
        let mut x = 1u64;
        for i in 0..3_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(i | 1));
        }
        assert!(own_cpu_time() > Duration::ZERO);
        assert!(cpu_time(me).unwrap() > Duration::ZERO);
        assert!(resident(u32::MAX).is_none() && cpu_time(u32::MAX).is_none());
    }

    #[test]
    fn status_lines_are_kib() {
        let text = "Name:\tx\nVmRSS:\t    1234 kB\nRssShmem:\t 8 kB\n";
        assert_eq!(status_bytes(text, "VmRSS:"), Some(1234 * 1024));
        assert_eq!(status_bytes(text, "RssShmem:"), Some(8192));
        assert_eq!(status_bytes(text, "VmSwap:"), None);
    }
}

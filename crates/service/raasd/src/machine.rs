//! What the machine gives: descriptors and memory, and how many programs fit.
//!
//! Owns the numbers for limits that are not set. It must never refuse a start: if there is too little, the limits are
//! small, and the text says why.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that one application costs at most: its control socket, its wake socket, segments on their way to it.
/// Each engine beyond the first has one more wake socket.
const DESCRIPTORS_PER_APP: u64 = 8;
/// Descriptors for everything else: the device, listeners, control links to other hosts.
const DESCRIPTORS_RESERVED: u64 = 512;
/// Memory of one application in which nothing moves, rounded up generously.
const MEMORY_PER_APP: u64 = 1 << 20;
/// Applications for which there is room by default, where the machine has plenty. A quarter of it is one user's.
const APPS_PLENTY: u64 = 4096;
/// Fewest applications for which room is made; with fewer there is no point in a daemon.
const APPS_FEWEST: u64 = 16;
/// The part of the memory that receive buffers of all engines may take, unless that is more than [`SRQ_BYTES_PLENTY`].
const SRQ_PART: u64 = 16;
/// Receive buffers for 4,096 lanes at rest, and as many again for lanes that speak.
const SRQ_BYTES_PLENTY: u64 = 256 << 20;
/// Most of either limit.
const MOST: u64 = 65_536;

/// What this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// Descriptors that the process may open; `u64::MAX` is without limit.
    pub descriptors: u64,
    /// Bytes of memory, of the machine or of the process's control group if that has less; `u64::MAX` is unknown.
    pub memory_bytes: u64,
    /// Bytes that the process's control group may have; `u64::MAX` is without limit.
    pub group_bytes: u64,
}

impl Machine {
    /// This process on this machine.
    pub fn here() -> Self {
        Self::of_process(None, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    /// A process that may open so many descriptors; none: this one.
    pub fn of_process(pid: Option<u32>, descriptors: u64) -> Self {
        let group_bytes = group_bytes(&pid.map_or_else(|| "self".into(), |pid| pid.to_string()));
        Self { group_bytes, ..Self::new(descriptors, memory_bytes(group_bytes)) }
    }

    /// A machine of which this is known.
    pub fn new(descriptors: u64, memory_bytes: u64) -> Self {
        Self { descriptors, memory_bytes, group_bytes: u64::MAX }
    }
}

/// Limits that fit a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fit {
    /// `apps_max`: as set, or as fits.
    pub apps_max: u64,
    /// `clients_max`: as set, or as fits.
    pub clients_max: u64,
    /// `srq_bytes_max`, of each engine: as set, or as fits.
    pub srq_bytes_max: u64,
    /// What was chosen and why, a line for each limit.
    pub words: Vec<String>,
    /// Limits that do not fit, and what to do.
    pub too_much: Vec<String>,
}

impl Fit {
    /// `apps`, `clients` and `srq_bytes` are what somebody set; 0 or none is to fit. All else that programs can make the
    /// daemon's control group pay for is `held_bytes`.
    pub(crate) fn new(
        machine: Machine,
        engines: u32,
        (apps, clients, srq_bytes): (Option<u64>, u64, Option<u64>),
        held_bytes: u64,
    ) -> Self {
        let engines = u64::from(engines.max(1));
        let per_app = DESCRIPTORS_PER_APP + engines - 1;
        let by_descriptors = machine.descriptors.saturating_sub(DESCRIPTORS_RESERVED) / per_app;
        let by_memory = machine.memory_bytes / MEMORY_PER_APP;
        let room = by_descriptors.min(by_memory);
        let apps_max = apps.filter(|n| *n > 0).unwrap_or_else(|| room.clamp(APPS_FEWEST, APPS_PLENTY));
        let clients_max = if clients > 0 { clients } else { (2 * apps_max).min(MOST) };
        let held = format!(
            "{} descriptors hold {by_descriptors} applications, {} of memory {by_memory}",
            unbounded(machine.descriptors),
            mebibytes(machine.memory_bytes),
        );
        let why = match apps {
            Some(1..) => "as configured".to_string(),
            _ if room > APPS_PLENTY => format!("the default; {held}"),
            _ => format!("what fits: {held}"),
        };
        let of_clients = if clients > 0 { "as configured" } else { "twice apps_max, for tools" };
        let too_many = (apps_max > room).then(|| {
            format!(
                "apps_max is {apps_max}, but {held}: raise the descriptor limit (LimitNOFILE=, ulimit -Hn) or lower apps_max"
            )
        });
        let part = SRQ_PART * engines;
        let fitting = (machine.memory_bytes / part).clamp(engine::SRQ_BYTES_MIN, SRQ_BYTES_PLENTY);
        let srq_bytes_max = srq_bytes.unwrap_or(fitting);
        let of_srq = match srq_bytes {
            Some(_) => "as configured".into(),
            None if fitting == SRQ_BYTES_PLENTY => "the default".into(),
            None => format!("a part in {part} of {} of memory", mebibytes(machine.memory_bytes)),
        };
        let needed = srq_bytes_max.saturating_mul(engines).saturating_add(held_bytes);
        let too_large = (machine.group_bytes < needed).then(|| {
            format!(
                "the daemon's control group may have {}, and programs can make it pay for {}: raise its limit \
                 (MemoryMax=, resources.limits.memory), or lower ring_memory_max, kernel_bytes_max and srq_bytes_max",
                mebibytes(machine.group_bytes),
                mebibytes(needed)
            )
        });
        let too_much = too_many.into_iter().chain(too_large).collect();
        let words = vec![
            format!("apps_max {apps_max}: {why}"),
            format!("clients_max {clients_max}: {of_clients}"),
            format!("srq_bytes_max {srq_bytes_max}: {of_srq}"),
        ];
        Self { apps_max, clients_max, srq_bytes_max, words, too_much }
    }
}

fn unbounded(n: u64) -> String {
    if n == u64::MAX { "unlimited".into() } else { n.to_string() }
}

fn mebibytes(bytes: u64) -> String {
    if bytes == u64::MAX { "an unknown amount".into() } else { format!("{} MiB", bytes >> 20) }
}

/// Raises this process's soft limit of open descriptors to the hard one; says what it is then. The command
/// `raas daemon` does this. A process with other work may have reasons for its limit, so an embedded daemon does not.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Refused (as by a sandbox), the limits fit the soft one.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Memory of the machine or of the control group, whichever is less.
fn memory_bytes(group_bytes: u64) -> u64 {
    let of_machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    of_machine.unwrap_or(u64::MAX).min(group_bytes)
}

/// The least limit of a process's control group and of those above it.
fn group_bytes(who: &str) -> u64 {
    const TREES: [(&str, &str, &str); 2] =
        [("/sys/fs/cgroup", "", "memory.max"), ("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes")];
    let own = std::fs::read_to_string(format!("/proc/{who}/cgroup")).unwrap_or_default();
    let limits = TREES.iter().flat_map(|(root, controller, file)| {
        let path = group_of(&own, controller).unwrap_or("").trim_start_matches('/').to_owned();
        let groups: Vec<_> = std::path::Path::new(&path).ancestors().map(|group| group.join(file)).collect();
        groups.into_iter().filter_map(move |file| {
            let text = std::fs::read_to_string(std::path::Path::new(root).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        })
    });
    limits.min().unwrap_or(u64::MAX)
}

/// The path of a process's control group in the tree of a controller; of none, in the one tree of version 2.
fn group_of<'a>(cgroup: &'a str, controller: &str) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|of| of == controller).then_some(path)
    })
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_fit_descriptors_and_memory() {
        let fit = |descriptors, memory: u64| Fit::new(Machine::new(descriptors, memory), 1, (None, 0, None), 0);
        let plenty = fit(1 << 20, 64 << 30);
        assert_eq!((plenty.srq_bytes_max, fit(1 << 20, 1 << 30).srq_bytes_max), (SRQ_BYTES_PLENTY, 64 << 20));
        assert_eq!((plenty.apps_max, plenty.clients_max), (APPS_PLENTY, 2 * APPS_PLENTY));
        assert!(plenty.apps_max.div_ceil(4) >= 300, "300 processes of one ordinary user");
        let few = fit(1024, 64 << 30);
        assert_eq!((few.apps_max, few.too_much.len()), (64, 0));
        assert!(few.words[0].contains("1024 descriptors hold 64"), "{:?}", few.words);
        assert_eq!(fit(u64::MAX, 1 << 30).apps_max, 1024);
        let four = Fit::new(Machine::new(1024, 1 << 30), 4, (None, 0, None), 0);
        assert_eq!(
            (four.apps_max, four.srq_bytes_max),
            (512 / 11, 16 << 20),
            "four engines share memory and descriptors"
        );
        let tiny = fit(64, 1 << 20);
        assert_eq!(tiny.apps_max, APPS_FEWEST);
        assert_eq!(tiny.too_much.len(), 1);
    }

    #[test]
    fn what_was_set_stays_and_is_told_where_it_does_not_fit() {
        let fit = Fit::new(Machine::new(4096, 8 << 30), 1, (Some(7), 9, Some(1 << 20)), 0);
        assert_eq!((fit.apps_max, fit.clients_max, fit.srq_bytes_max, fit.too_much.len()), (7, 9, 1 << 20, 0));
        let fit = Fit::new(Machine::new(4096, 8 << 30), 1, (Some(60_000), 0, None), 0);
        assert_eq!((fit.apps_max, fit.clients_max), (60_000, MOST));
        assert!(fit.too_much[0].contains("apps_max is 60000"));
    }

    #[test]
    fn a_small_control_group_is_told() {
        let group = |group_bytes| Machine { group_bytes, ..Machine::new(4096, 8 << 30) };
        let fit = |group_bytes| Fit::new(group(group_bytes), 2, (None, 0, Some(1 << 20)), 6 << 20).too_much;
        assert_eq!((fit(u64::MAX).len(), fit(8 << 20).len()), (0, 0));
        let words = fit((8 << 20) - 1);
        assert!(words[0].contains("may have 7 MiB") && words[0].contains("pay for 8 MiB"), "{words:?}");
        let own = "12:cpu,memory:/a/b\n1:name=systemd:/c\n0::/system.slice/raasd.service\n";
        assert_eq!(group_of(own, ""), Some("/system.slice/raasd.service"));
        assert_eq!((group_of(own, "memory"), group_of(own, "io")), (Some("/a/b"), None));
    }

    #[test]
    fn the_machine_is_read() {
        assert_eq!(total_of("MemTotal:        1024 kB\nMemFree: 1 kB\n"), Some(1 << 20));
        assert_eq!(total_of("nothing"), None);
        assert!(Machine::here().memory_bytes > 1 << 20);
        let raised = raise_descriptor_limit();
        assert_eq!(Some(raised), Some(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)));
    }
}

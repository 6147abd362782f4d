//! Every bound of the daemon, with its name in the configuration, its meaning, range and default.
//!
//! Owns the table behind `[limits]`; the bounds of the data path belong to the engine, whose check decides. It fits
//! limits that are not set to the machine (`machine.rs`). docs/operate/configuration.md lists the same names. What no
//! operator has a reason to set is not in the table: a constant beside the code that it bounds, or a field here for tests.

use std::ops::RangeInclusive;
use std::time::Duration;

use control::UserShare;
use engine::EngineConfig;
use plane::{AdmissionConfig, DirectoryConfig};

/// Bounds of the control plane; those of connections are in [`DataPath`]. A field that [`LIMITS`] does not name has its
/// default everywhere but in tests.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DaemonLimits {
    /// What one user may have of each limit, in percent of it; 100: no bound but the limit itself.
    pub user_share_percent: u64,
    /// Programs attached to the control socket at a time, tools included. 0: as many as fit the machine.
    pub clients_max: u64,
    /// Control messages that may wait for a program that does not read them. One more detaches the program.
    pub client_queue_max: u64,
    /// Bytes of such messages, of all programs.
    pub client_queue_bytes_max: u64,
    /// Pairs of processes of this host that share memory.
    pub pairs_max: u64,
    /// Time in milliseconds for a process to make its segment for a pair.
    pub pair_answer_ms: u64,
    /// Control links that have not yet proven the key; from one address half of them.
    pub handshakes_max: u64,
    /// Time in milliseconds for a control link to prove the key, and for a program's first message.
    pub handshake_ms: u64,
    /// Control messages that may wait for a peer that does not read them; one more closes the link.
    pub link_queue_max: u64,
    /// Attempts to reach a peer's daemon for one connect.
    pub dial_attempts_max: u64,
    /// Time in milliseconds for two daemons to set up a lane on a control link.
    pub lane_setup_ms: u64,
    /// Regions of the host.
    pub regions_max: u64,
    /// Bytes of all regions.
    pub region_bytes_max: u64,
    /// Handles of all programs to regions of this host, and as many to regions of other hosts.
    pub region_handles_max: u64,
    /// Bytes that user kernels cost the daemon.
    pub kernel_bytes_max: u64,
    /// Leased lanes of this host's programs, and as many of other hosts' programs to regions here.
    pub leased_lanes_max: u64,
    /// Time in milliseconds for the owner of a region to move it when it is revoked; a large one gets more.
    pub region_move_ms: u64,
    /// Percent of a processor that each engine may use; 100: no bound.
    pub engine_cpu_max: u64,
}

impl Default for DaemonLimits {
    fn default() -> Self {
        Self {
            user_share_percent: 25,
            clients_max: 0,
            client_queue_max: 4096,
            client_queue_bytes_max: 64 << 20,
            pairs_max: 4096,
            pair_answer_ms: 10_000,
            handshakes_max: 64,
            handshake_ms: 5_000,
            link_queue_max: 1024,
            dial_attempts_max: 3,
            lane_setup_ms: 10_000,
            regions_max: 4096,
            region_bytes_max: 64 << 30,
            region_handles_max: 1 << 18,
            kernel_bytes_max: 256 << 20,
            leased_lanes_max: 16,
            region_move_ms: 10_000,
            engine_cpu_max: 100,
        }
    }
}

impl DaemonLimits {
    /// What one user may have of a limit.
    pub(crate) fn user_share(&self) -> UserShare {
        UserShare::percent(self.user_share_percent)
    }
    pub(crate) fn pair_answer(&self) -> Duration {
        Duration::from_millis(self.pair_answer_ms)
    }
    pub(crate) fn handshake(&self) -> Duration {
        Duration::from_millis(self.handshake_ms)
    }
    /// Bounds of the directory; `owner_uid` is the daemon's user.
    pub(crate) fn directory(&self, owner_uid: u32) -> DirectoryConfig {
        let small = |limit| u32::try_from(limit).unwrap_or(u32::MAX);
        let of_user = |limit| self.user_share().of(limit);
        DirectoryConfig {
            regions_max: small(self.regions_max),
            regions_per_user_max: small(of_user(self.regions_max)),
            bytes_max: self.region_bytes_max,
            bytes_per_user_max: of_user(self.region_bytes_max),
            handles_max: self.region_handles_max,
            handles_per_user_max: of_user(self.region_handles_max),
            leased_lanes_max: small(self.leased_lanes_max),
            leased_lanes_per_user_max: small(of_user(self.leased_lanes_max)),
            owner_uid,
            answer: Duration::from_millis(self.region_move_ms),
            ..DirectoryConfig::default()
        }
    }
    pub(crate) fn lane_setup(&self) -> Duration {
        Duration::from_millis(self.lane_setup_ms)
    }
}

/// Sizes of a ring in bytes; powers of two.
pub(crate) const RING_BYTES: RangeInclusive<u32> = shm::RING_BYTES_MIN..=shm::RING_BYTES_MAX;

/// A number of a range, or why not.
pub(crate) fn check_range(value: impl Into<i128>, min: u64, max: u64) -> Result<u64, String> {
    let value = value.into();
    let fits = u64::try_from(value).ok().filter(|v| (min..=max).contains(v));
    fits.ok_or_else(|| format!("{value} is not allowed, {min}..={max} is"))
}

/// A queue length or table size as the machine counts.
pub(crate) fn count(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// What the limits of connections are set in: what the control plane grants, and what the engine holds.
#[derive(Debug, Clone)]
pub struct DataPath {
    /// Who gets what.
    pub admission: AdmissionConfig,
    /// The engine's tables and tunables.
    pub engine: EngineConfig,
}

/// One name under `[limits]`.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// The key.
    pub key: &'static str,
    /// Least allowed value.
    pub min: u64,
    /// Most allowed value.
    pub max: u64,
    /// Whether only powers of two are allowed.
    pub power_of_two: bool,
    pub(crate) target: Target,
}

/// Where a limit's value lives.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    DataPath { set: fn(&mut DataPath, u64), value: fn(&DataPath) -> u64 },
    Daemon(fn(&mut DaemonLimits) -> &mut u64),
}

/// A limit of the parts that are named, which have the same value.
macro_rules! limit_of {
    ($first:ident $(and $second:ident)?, $key:ident, $min:expr, $max:expr) => {
        limit_of!($first $(and $second)?, $key, $min, $max, false)
    };
    ($first:ident $(and $second:ident)?, $key:ident, $min:expr, $max:expr, $power:expr) => {
        Limit {
            key: stringify!($key),
            min: $min,
            max: $max,
            power_of_two: $power,
            target: Target::DataPath {
                // The table's range fits the field's type; a test sets every limit to its maximum.
                set: |c, v| {
                    c.$first.$key = v.try_into().unwrap_or(c.$first.$key);
                    $(c.$second.$key = c.$first.$key;)?
                },
                value: |c| c.$first.$key.into(),
            },
        }
    };
}

macro_rules! daemon_limit {
    ($key:ident, $min:expr, $max:expr) => {
        Limit {
            key: stringify!($key),
            min: $min,
            max: $max,
            power_of_two: false,
            target: Target::Daemon(|l| &mut l.$key),
        }
    };
}

const HOUR_MS: u64 = 3_600_000;

/// Every name under `[limits]`.
pub const LIMITS: &[Limit] = &[
    limit_of!(engine and admission, ring_bytes_max, shm::RING_BYTES_MIN as u64, shm::RING_BYTES_MAX as u64, true),
    limit_of!(engine and admission, apps_max, 0, 65_536),
    limit_of!(engine and admission, connections_max, 1, engine::TABLE_MAX as u64),
    limit_of!(admission, connections_per_app_max, 1, 65_536),
    limit_of!(admission, listeners_max, 1, 65_536),
    limit_of!(engine, ring_memory_per_app_max, 1 << 20, 1 << 44),
    limit_of!(engine, ring_memory_max, 1 << 20, 1 << 44),
    limit_of!(engine and admission, lanes_max, 1, 65_536),
    limit_of!(engine, lane_credits, engine::LANE_CREDITS_MIN as u64, engine::LANE_CREDITS_MAX as u64),
    limit_of!(engine, srq_bytes_max, 0, engine::SRQ_BYTES_MAX),
    limit_of!(engine, lane_inflight_bytes_max, engine::FLIGHT_BYTES_MIN, engine::FLIGHT_BYTES_MAX),
    Limit {
        key: "pinned_max",
        min: 1 << 20,
        max: 1 << 44,
        power_of_two: false,
        target: Target::DataPath { set: |c, v| c.engine.pins.bytes_max = v, value: |c| c.engine.pins.bytes_max },
    },
    Limit {
        key: "connect_timeout_ms",
        min: 10,
        max: HOUR_MS,
        power_of_two: false,
        target: Target::DataPath {
            set: |c, v| c.engine.connect_timeout = Duration::from_millis(v),
            value: |c| u64::try_from(c.engine.connect_timeout.as_millis()).unwrap_or(u64::MAX),
        },
    },
    Limit {
        key: "peer_return_ms",
        min: 0,
        max: HOUR_MS,
        power_of_two: false,
        target: Target::DataPath {
            set: |c, v| c.engine.peer_return = Duration::from_millis(v),
            value: |c| u64::try_from(c.engine.peer_return.as_millis()).unwrap_or(u64::MAX),
        },
    },
    Limit {
        key: "lane_rest_ms",
        // 0, or longer than a message takes on any path; the configuration's check refuses what is in between.
        min: 0,
        max: HOUR_MS,
        power_of_two: false,
        target: Target::DataPath {
            set: |c, v| c.engine.lane_rest_after = (v > 0).then(|| Duration::from_millis(v)),
            value: |c| c.engine.lane_rest_after.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
        },
    },
    limit_of!(engine, kernel_fuel_max, 1_000, 1 << 40),
    daemon_limit!(clients_max, 0, 65_536),
    daemon_limit!(client_queue_bytes_max, 1 << 20, 1 << 44),
    daemon_limit!(pairs_max, 1, 1 << 20),
    daemon_limit!(handshakes_max, 1, 65_536),
    daemon_limit!(handshake_ms, 10, HOUR_MS),
    daemon_limit!(regions_max, 1, 65_536),
    daemon_limit!(region_bytes_max, 4096, 1 << 44),
    daemon_limit!(region_handles_max, 1, 1 << 24),
    daemon_limit!(kernel_bytes_max, 1 << 20, 1 << 44),
    daemon_limit!(leased_lanes_max, 0, 1024),
    daemon_limit!(region_move_ms, 10, HOUR_MS),
    daemon_limit!(engine_cpu_max, 1, 100),
    daemon_limit!(user_share_percent, 1, 100),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Else one user has all of the engine's table, within its share of the daemon's.
    #[test]
    fn an_engine_has_handles_for_the_shares_of_several_users() {
        let of_user = DaemonLimits::default().directory(0).handles_per_user_max;
        assert!(
            of_user * 4 <= u64::from(engine::REGION_HANDLES_MAX) + 1,
            "{of_user} of {}",
            engine::REGION_HANDLES_MAX
        );
    }
}

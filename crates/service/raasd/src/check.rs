//! What a start needs, checked before anything is started: limits, device, group.
//!
//! Owns [`prepare`], which the start runs and `--check` runs too, so that neither accepts what the other refuses. It
//! must never change anything that others see.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use control::Successor;
use engine::SetupError;
use plane::Policy;
use shm::SessionShape;

use crate::config::Config;
use crate::config_error::ConfigError;
use crate::device::{self, Decision, Found};
use crate::error::DaemonError;
use crate::key;
use crate::machine::{Fit, Machine};
use crate::policy_file::load_policy;
use crate::socket_group::{SocketGroup, group_of};
use crate::socket_place::SocketPlace;

/// A configuration that will do.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// With numbers for the limits that are to fit the machine, and with the device that was chosen.
    pub(crate) config: Config,
    pub(crate) fit: Fit,
    pub(crate) device: Found,
    pub(crate) group: Option<SocketGroup>,
    pub(crate) policy: Policy,
}

/// Checks limits, device and group of a configuration.
pub(crate) fn prepare(config: Config) -> Result<Prepared, DaemonError> {
    config.check_limits().map_err(limit)?;
    config.check_standby().map_err(ConfigError::one)?;
    let (mut config, mut fit) = config.fitted(Machine::here());
    let group = config.socket_group.as_deref().map(group_of).transpose()?;
    let policy = config.policy.as_deref().map(load_policy).transpose()?.unwrap_or_default();
    let device = device::find(&config)?;
    let engine = config.data_path().engine;
    let room = engine.check_device(&device.room).map_err(|e| match e {
        SetupError::Config(what) => limit(what),
        other => other.into(),
    })?;
    if room.lanes < engine.lanes_max {
        let (wanted, held) = (engine.lanes_max, room.lanes);
        fit.words.push(format!("lanes_max {held}, not {wanted}: what srq_bytes_max and {} hold", device.room.name));
    }
    config.device = device.decision.device.clone();
    config.device_reason.clone_from(&device.decision.reason);
    Ok(Prepared { config, fit, device, group, policy })
}

fn limit(what: String) -> DaemonError {
    ConfigError::one(format!("limits: {what}")).into()
}

/// What a daemon with a configuration would choose.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// The device, and why.
    pub decision: Decision,
    /// The limits that fit the machine.
    pub fit: Fit,
    /// The keys of control links, by their fingerprints.
    pub keys: String,
    /// Who serves the socket now, if anybody does.
    pub served: Option<String>,
}

/// Looks whether a daemon with this configuration could start, and changes nothing.
pub fn check(config: &Config) -> Result<Report, DaemonError> {
    let served = SocketPlace::check(config)?;
    Ok(Report { served, ..judge(config)? })
}

/// As [`check`], of all but the place of the socket.
fn judge(config: &Config) -> Result<Report, DaemonError> {
    let Prepared { config, fit, device, .. } = prepare(config.clone())?;
    let beside = config.socket.parent().unwrap_or(Path::new("."));
    let keys = if config.key_file.is_none() && !beside.join(key::KEY_FILE_NAME).exists() {
        format!("no key_file: the first start makes {}", beside.join(key::KEY_FILE_NAME).display())
    } else {
        key::words(&config, &key::read_all(&config, beside)?)
    };
    let address = SocketAddr::new(config.listen, 0);
    TcpListener::bind(address).map_err(|source| DaemonError::peer_port(address, source))?;
    Ok(Report { decision: device.decision, fit, keys, served: None })
}

/// What a daemon with this configuration would say to the one that serves its socket, to take its place. Looks at all that
/// [`check`] looks at, and changes nothing.
pub fn successor(config: &Config) -> Result<Successor, DaemonError> {
    judge(config)?;
    SocketPlace::look(&config.socket)?;
    let connections = config.data_path().admission.connections_per_app_max;
    let SessionShape { slots, engines } = SessionShape::for_engines(config.engines, connections);
    Ok(Successor { slots, engines, peer_address: config.own_peer_address() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::new([127, 0, 0, 1].into())
    }

    #[test]
    fn limits_of_a_device_are_checked_before_the_start() {
        let mut config = config();
        config.set_limit("lane_credits", u64::from(engine::LANE_CREDITS_MAX)).unwrap();
        config.set_limit("connections_max", u64::from(engine::TABLE_MAX)).unwrap();
        let report = check(&config);
        // That many for one lane is what a lane may ask for, and not what it has.
        assert!(report.is_ok(), "{report:?}");
        assert!(config.set_limit("connections_max", 1_000_000).unwrap_err().contains("connections_max"));
        config.path_limits.insert("connections_max", 1_000_000);
        let refused = check(&config).unwrap_err().to_string();
        assert!(refused.contains("connections_max is 1000000"), "{refused}");
    }

    #[test]
    fn lanes_that_receive_buffers_do_not_hold_are_told() {
        let mut config = config();
        assert!(config.set_limit("srq_bytes_max", 1 << 60).unwrap_err().contains("srq_bytes_max"));
        config.set_limit("lanes_max", 4096).unwrap();
        config.set_limit("srq_bytes_max", 8 << 20).unwrap();
        let words = check(&config).unwrap().fit.words.join("\n");
        assert!(words.contains("srq_bytes_max 8388608: as configured"), "{words}");
        assert!(words.contains("lanes_max 128, not 4096"), "{words}");
        config.set_limit("srq_bytes_max", 1000).unwrap();
        let refused = check(&config).unwrap_err().to_string();
        assert!(refused.contains("srq_bytes_max is 1000"), "{refused}");
    }

    #[test]
    fn a_group_that_does_not_exist_is_refused() {
        let mut config = config();
        config.socket_group = Some("no-such-group-here".into());
        let refused = check(&config).unwrap_err().to_string();
        assert!(refused.contains("no-such-group-here") && refused.contains("getent group"), "{refused}");
    }
}

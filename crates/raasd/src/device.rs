//! The device of the daemon. Owns which choices this build has, and what to say about the others.

use softnic::{Progress, SoftNic, SoftNicConfig};

use crate::config::DeviceChoice;
use crate::{Config, DaemonError};

/// Whether this build has the device; does not open it.
pub(crate) fn check(choice: &DeviceChoice) -> Result<(), DaemonError> {
    match choice {
        DeviceChoice::SoftNic => Ok(()),
        DeviceChoice::RdmaCore(_) => Err(DaemonError::Device {
            device: choice.to_string(),
            what: "not built into this daemon yet; use --device softnic".into(),
        }),
    }
}

/// Opens the software NIC. The engine thread polls it or waits for it at all times, so it needs no thread of its own.
pub(crate) fn open_softnic(config: &Config, entropy: [u8; 32]) -> Result<SoftNic, DaemonError> {
    check(&config.device)?;
    let nic = SoftNicConfig {
        udp_port: config.udp_port,
        mtu: config.mtu,
        progress: Progress::Inline,
        pcap: config.pcap.clone(),
        entropy: Some(entropy),
        ..SoftNicConfig::new(config.listen)
    };
    SoftNic::open(nic).map_err(|e| DaemonError::Device { device: config.device.to_string(), what: e.to_string() })
}

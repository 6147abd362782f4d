//! The device of the daemon. Owns the opening of each kind, and what to say where it cannot be opened.

use rdmacore::{OpenConfig, RdmaCore};
use softnic::{Progress, SoftNic, SoftNicConfig};

use crate::config::DeviceChoice;
use crate::{Config, DaemonError};

/// An opened device.
#[derive(Debug)]
pub(crate) enum Device {
    /// The built-in software NIC.
    SoftNic(Box<SoftNic>),
    /// A device of rdma-core.
    RdmaCore(Box<RdmaCore>),
}

fn failed(config: &Config, what: String) -> DaemonError {
    DaemonError::Device { device: config.device.to_string(), what }
}

/// Opens the configured device.
pub(crate) fn open(config: &Config, entropy: [u8; 32]) -> Result<Device, DaemonError> {
    match &config.device {
        DeviceChoice::SoftNic => open_softnic(config, entropy).map(|nic| Device::SoftNic(Box::new(nic))),
        DeviceChoice::RdmaCore(name) => open_rdma_core(config, name.clone()).map(|d| Device::RdmaCore(Box::new(d))),
    }
}

/// The engine thread polls the NIC or waits for it at all times, so it needs no thread of its own.
fn open_softnic(config: &Config, entropy: [u8; 32]) -> Result<SoftNic, DaemonError> {
    let nic = SoftNicConfig {
        udp_port: config.udp_port,
        mtu: config.mtu,
        progress: Progress::Inline,
        pcap: config.pcap.clone(),
        entropy: Some(entropy),
        ..SoftNicConfig::new(config.listen)
    };
    SoftNic::open(nic).map_err(|e| failed(config, e.to_string()))
}

fn open_rdma_core(config: &Config, name: Option<String>) -> Result<RdmaCore, DaemonError> {
    if config.pcap.is_some() {
        return Err(failed(
            config,
            "pcap captures the software NIC alone; leave it out, or capture with tcpdump".into(),
        ));
    }
    let device =
        RdmaCore::open(&OpenConfig { name, address: config.listen }).map_err(|e| failed(config, e.to_string()))?;
    let choice = device.choice();
    tracing::info!(device = %choice.device, port = choice.port, gid_index = choice.gid.index, why = %choice.why, "opened");
    Ok(device)
}

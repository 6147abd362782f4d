//! Which RDMA devices, ports and GIDs there are, and which of them carries an address. It is read from sysfs, so that
//! it works without rdma-core too.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use verbs::Gid;

/// Ports of one device and GIDs of one port that are looked at.
const PORTS_MAX: usize = 8;
const GIDS_MAX: usize = 1024;

/// What the kernel's software devices say of themselves unless somebody renamed them.
const SOFTWARE_DESCRIPTIONS: [&str; 3] = ["rxe", "siw", "software iWARP stack"];

/// Kind of a GID table entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand, or RoCE version 1 (not routable, no UDP).
    IbOrRoceV1,
    /// RoCE version 2.
    RoceV2,
}

/// An entry of a GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidInfo {
    /// Its index.
    pub index: u8,
    /// The GID.
    pub gid: Gid,
    /// Its kind.
    pub gid_type: GidType,
    /// Network interface behind it, if any.
    pub netdev: Option<String>,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// As sysfs says: `ACTIVE`, `DOWN`, ...
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// Non-zero entries of its GID table.
    pub gids: Vec<GidInfo>,
}

/// An RDMA device of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, as `ibv_devices` prints it.
    pub name: String,
    /// Whether the kernel does its work on a processor (rxe, siw): no RDMA hardware.
    pub software: bool,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// A device, port and GID, and why they were taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Device name.
    pub device: String,
    /// Port number.
    pub port: u8,
    /// The GID table entry.
    pub gid: GidInfo,
    /// In words.
    pub why: String,
    /// What else was looked at and why it was not taken.
    pub rejected: Vec<String>,
}

/// No device fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The kernel has no RDMA device.
    #[error(
        "this machine has no RDMA device: load a driver (for software RoCE: `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev ETH`), or use device = \"softnic\""
    )]
    NoDevice,
    /// None has the name.
    #[error("there is no RDMA device {name}; there are: {present}")]
    NoSuchDevice {
        /// Asked for.
        name: String,
        /// The names that exist.
        present: String,
    },
    /// None carries the address as a RoCEv2 GID on an active port.
    #[error("no active port has a RoCEv2 GID for {address}: {rejected}")]
    NoGid {
        /// Asked for.
        address: IpAddr,
        /// What was looked at.
        rejected: String,
    },
}

/// All RDMA devices of the machine.
pub fn list_devices() -> Vec<DeviceInfo> {
    list_devices_at(Path::new("/sys/class/infiniband"))
}

/// The devices under another root than `/sys/class/infiniband`, sorted by name.
pub fn list_devices_at(root: &Path) -> Vec<DeviceInfo> {
    let mut devices: Vec<DeviceInfo> = names_in(root)
        .into_iter()
        .map(|name| {
            let folder = root.join(&name);
            DeviceInfo { software: is_software(&folder), ports: ports(&folder.join("ports")), name }
        })
        .collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect()
}

fn line(path: &Path) -> Option<String> {
    // Entries of the GID attributes that are not in use give EINVAL.
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// rxe names the interface that it uses in `parent`. A driver of hardware has no such attribute, and its device is not
/// among the virtual ones. Older kernels put rxe beside the interface's hardware, so both are checked.
fn is_software(folder: &Path) -> bool {
    let described = line(&folder.join("node_desc")).unwrap_or_default();
    let place = fs::canonicalize(folder).unwrap_or_default();
    folder.join("parent").is_file()
        || place.starts_with("/sys/devices/virtual")
        || SOFTWARE_DESCRIPTIONS.contains(&described.as_str())
}

fn ports(folder: &Path) -> Vec<PortInfo> {
    let mut numbers: Vec<u8> = names_in(folder).iter().filter_map(|n| n.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.truncate(PORTS_MAX);
    numbers.into_iter().map(|number| port(folder, number)).collect()
}

fn port(folder: &Path, number: u8) -> PortInfo {
    let folder = folder.join(number.to_string());
    let state = line(&folder.join("state")).unwrap_or_default();
    let mut indices: Vec<u8> = names_in(&folder.join("gids")).iter().filter_map(|n| n.parse().ok()).collect();
    indices.sort_unstable();
    indices.truncate(GIDS_MAX);
    PortInfo {
        number,
        state: state.split_once(": ").map_or(state.clone(), |(_, name)| name.to_string()),
        link_layer: line(&folder.join("link_layer")).unwrap_or_default(),
        gids: indices.into_iter().filter_map(|i| gid(&folder, i)).collect(),
    }
}

fn gid(port: &Path, index: u8) -> Option<GidInfo> {
    let address: Ipv6Addr = line(&port.join("gids").join(index.to_string()))?.parse().ok()?;
    if address.is_unspecified() {
        return None;
    }
    let attrs = port.join("gid_attrs");
    let gid_type = match line(&attrs.join("types").join(index.to_string()))?.as_str() {
        "RoCE v2" => GidType::RoceV2,
        _ => GidType::IbOrRoceV1,
    };
    let netdev = line(&attrs.join("ndevs").join(index.to_string())).filter(|n| !n.is_empty());
    Some(GidInfo { index, gid: Gid(address), gid_type, netdev })
}

/// Takes the device, port and RoCEv2 GID that carry `address`; with `name`, on that device alone.
pub fn choose(devices: &[DeviceInfo], name: Option<&str>, address: IpAddr) -> Result<Choice, SelectError> {
    if devices.is_empty() {
        return Err(SelectError::NoDevice);
    }
    if let Some(name) = name
        && !devices.iter().any(|d| d.name == name)
    {
        let present = devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(SelectError::NoSuchDevice { name: name.to_string(), present });
    }
    let mut rejected = Vec::new();
    let mut choice = None;
    for device in devices.iter().filter(|d| name.is_none_or(|n| n == d.name)) {
        for port in &device.ports {
            consider(device, port, address, &mut choice, &mut rejected);
        }
    }
    match choice {
        Some(choice) => Ok(Choice { rejected, ..choice }),
        None => Err(SelectError::NoGid { address, rejected: rejected.join("; ") }),
    }
}

fn consider(
    device: &DeviceInfo,
    port: &PortInfo,
    address: IpAddr,
    choice: &mut Option<Choice>,
    rejected: &mut Vec<String>,
) {
    let place = format!("{} port {}", device.name, port.number);
    if port.state != "ACTIVE" {
        rejected.push(format!("{place} is {}", port.state));
        return;
    }
    if port.gids.is_empty() {
        rejected.push(format!("{place} has an empty GID table: its interface has no address"));
    }
    for gid in &port.gids {
        let entry = format!("{place} GID {} ({}, {:?})", gid.index, gid.gid.ip(), gid.gid_type);
        if gid.gid_type != GidType::RoceV2 {
            rejected.push(format!("{entry} is not RoCEv2"));
        } else if gid.gid.ip() != address {
            rejected.push(format!("{entry} is another address"));
        } else if choice.is_some() {
            rejected.push(format!("{entry} would do too, the first was taken"));
        } else {
            *choice = Some(Choice {
                device: device.name.clone(),
                port: port.number,
                gid: gid.clone(),
                why: format!("{entry} is the RoCEv2 GID of the listen address on an active port"),
                rejected: Vec::new(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (device, state) in [("rxe0", "4: ACTIVE\n"), ("mlx5_0", "1: DOWN\n")] {
            let port = format!("{device}/ports/1");
            put(&format!("{port}/state"), state);
            put(&format!("{port}/link_layer"), "Ethernet\n");
            put(&format!("{device}/node_desc"), "a name that somebody gave\n");
            for (i, gid, kind) in [
                (0, "fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2"),
                (1, "0000:0000:0000:0000:0000:ffff:c0a8:4d01", "IB/RoCE v1"),
                (2, "0000:0000:0000:0000:0000:ffff:c0a8:4d01", "RoCE v2"),
                (3, "0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2"),
            ] {
                put(&format!("{port}/gids/{i}"), &format!("{gid}\n"));
                put(&format!("{port}/gid_attrs/types/{i}"), &format!("{kind}\n"));
                put(&format!("{port}/gid_attrs/ndevs/{i}"), "eth0\n");
            }
        }
        dir
    }

    #[test]
    fn the_rocev2_gid_of_the_address_is_taken_and_the_rest_explained() {
        let dir = tree();
        let devices = list_devices_at(dir.path());
        assert_eq!(devices.len(), 2);
        assert!(!devices[0].software && !devices[1].software);
        fs::write(dir.path().join("rxe0/parent"), "eth0\n").unwrap();
        let with_parent = list_devices_at(dir.path());
        assert_eq!((with_parent[0].software, with_parent[1].software), (false, true), "mlx5_0, rxe0");
        assert_eq!(devices[1].ports[0].gids.len(), 3, "the zero entry is left out");
        let choice = choose(&devices, None, "192.168.77.1".parse().unwrap()).unwrap();
        assert_eq!((choice.device.as_str(), choice.port, choice.gid.index), ("rxe0", 1, 2));
        assert!(choice.rejected.iter().any(|r| r.contains("mlx5_0 port 1 is DOWN")), "{:?}", choice.rejected);
        assert!(choice.rejected.iter().any(|r| r.contains("not RoCEv2")), "{:?}", choice.rejected);
    }

    #[test]
    fn errors_say_what_there_is() {
        let dir = tree();
        let devices = list_devices_at(dir.path());
        let address = "10.0.0.9".parse().unwrap();
        let e = choose(&devices, None, address).unwrap_err().to_string();
        assert!(e.contains("10.0.0.9") && e.contains("another address"), "{e}");
        let e = choose(&devices, Some("mlx4_0"), address).unwrap_err().to_string();
        assert!(e.contains("mlx4_0") && e.contains("mlx5_0, rxe0"), "{e}");
        assert_eq!(choose(&[], None, address), Err(SelectError::NoDevice));
    }
}

//! Device, address and GID, and the interface's MTU.

use std::net::{SocketAddr, TcpListener};

use raasd::DeviceChoice;
use serde_json::json;
use verbs::PathMtu;

use super::daemon::Serving;
use super::finding::{Code, Findings};

/// Payload bytes of the largest packets.
const MTU_LARGEST: u32 = 4096;
/// Bytes that RoCEv2 needs around the payload of a packet, as [`PathMtu::for_link`] reckons.
pub(super) const OVERHEAD_BYTES: usize = 80;

/// Where the kernel has how many packets may wait for a processor's receiving half: of the first network namespace alone.
const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
/// So many are enough for rxe: 18 READs of 64 KiB at once, in packets of 1,024 bytes, lost some of 1,000.
const BACKLOG_MIN: u64 = 20_000;

/// The device of the configuration, its address, the MTU.
pub(super) fn look(serving: &Serving, findings: &mut Findings) {
    let listen = serving.listen;
    let devices = rdmacore::list_devices();
    let name = serving.config.device.to_string();
    match &serving.config.device {
        DeviceChoice::Auto => {
            let library = || rdmacore::library_present().map_err(|e| e.to_string());
            let would = raasd::decide(&DeviceChoice::Auto, listen, &devices, library);
            let (device, reason) = serving.device().unwrap_or((would.device.to_string(), would.reason));
            findings.ok("device", device, format!("chosen by itself: {reason}"));
            match would.device {
                DeviceChoice::RdmaCore(name) => rdma_core(serving, &devices, name.as_deref(), findings),
                _ => address(serving, findings),
            }
        }
        DeviceChoice::SoftNic => {
            let hardware: Vec<_> = devices.iter().filter(|device| !device.software).cloned().collect();
            let fitting =
                rdmacore::choose(&hardware, None, listen).ok().filter(|_| rdmacore::library_present().is_ok());
            match fitting {
                Some(choice) => findings.warn(
                    "device",
                    name,
                    format!("the software NIC, though {} has the address {listen}", choice.device),
                    &format!("start the daemon with --device rdma-core:{}", choice.device),
                ),
                None => findings.ok("device", name, "the software NIC: RoCEv2 over UDP, needs no hardware and no root"),
            }
            address(serving, findings);
        }
        DeviceChoice::RdmaCore(wanted) => rdma_core(serving, &devices, wanted.as_deref(), findings),
    }
    mtu(serving, findings);
}

fn rdma_core(serving: &Serving, devices: &[rdmacore::DeviceInfo], wanted: Option<&str>, findings: &mut Findings) {
    let name = serving.config.device.to_string();
    if let Err(e) = rdmacore::library_present() {
        let fix = "install libibverbs1 and ibverbs-providers, or use --device softnic";
        findings.fail("device", Code::Failed, name.as_str(), format!("libibverbs: {e}"), fix);
    }
    match rdmacore::choose(devices, wanted, serving.listen) {
        Ok(choice) => {
            if serving.config.device != DeviceChoice::Auto {
                findings.ok("device", name, format!("{} port {}", choice.device, choice.port));
            }
            let detail = format!("index {} of {}: {}", choice.gid.index, choice.device, choice.why);
            findings.ok("gid", choice.gid.index, detail);
            if devices.iter().any(|device| device.software && device.name == choice.device) {
                let said = std::fs::read_to_string(BACKLOG).ok();
                backlog(said.and_then(|said| said.trim().parse().ok()), findings);
            }
        }
        Err(e) => {
            let fix = "raas device --listen IP shows every GID; give the interface the address, or name another device";
            findings.fail("gid", Code::Failed, name, e.to_string(), fix);
        }
    }
}

/// rxe answers a READ by one packet after the other, and takes one that the kernel drops here for sent (seen with Linux
/// 6.1: the READ then completes, with bytes of an earlier one in the gap).
fn backlog(packets: Option<u64>, findings: &mut Findings) {
    match packets {
        Some(packets) if packets < BACKLOG_MIN => findings.warn(
            "rxe-backlog",
            packets,
            format!("{packets} packets may wait: where more come at once, the kernel's soft-RoCE can read wrong bytes"),
            &format!("sysctl -w net.core.netdev_max_backlog={BACKLOG_MIN}"),
        ),
        Some(packets) => findings.ok("rxe-backlog", packets, format!("{packets} packets may wait")),
        // Another namespace, which cannot see it.
        None => {}
    }
}

/// The software NIC's GID is the address itself.
fn address(serving: &Serving, findings: &mut Findings) {
    let listen = serving.listen;
    match TcpListener::bind(SocketAddr::new(listen, 0)) {
        Ok(_) if listen.is_loopback() => findings.warn(
            "gid",
            listen.to_string(),
            format!("{listen} is a loopback address: other machines cannot reach this host"),
            "start the daemon with --listen and an address of this host's network",
        ),
        Ok(_) => findings.ok("gid", listen.to_string(), format!("{listen} is an address of this host")),
        Err(e) => findings.fail(
            "gid",
            Code::Failed,
            listen.to_string(),
            format!("{listen} is no address of this host: {e}"),
            "give an interface this address, or start the daemon with --listen and one that it has",
        ),
    }
}

fn mtu(serving: &Serving, findings: &mut Findings) {
    let bytes = match softnic::link_mtu_bytes(serving.listen) {
        Ok(Some(bytes)) => bytes,
        // That no interface has the address was said above.
        Ok(None) => return,
        Err(e) => {
            let fix = "allow netlink sockets in the sandbox, and set `mtu` in the configuration";
            findings.warn("mtu", json!(null), format!("the interface's MTU cannot be asked for: {e}"), fix);
            return;
        }
    };
    let detail = |mtu: PathMtu| format!("the interface takes {bytes} bytes: packets of {} bytes", mtu.bytes());
    match PathMtu::for_link(bytes) {
        Some(mtu) if mtu.bytes() as u32 >= MTU_LARGEST => findings.ok("mtu", bytes, detail(mtu)),
        Some(mtu) => findings.ok(
            "mtu",
            bytes,
            format!(
                "{}; {} and more would carry {MTU_LARGEST}, if the whole network does",
                detail(mtu),
                MTU_LARGEST as usize + OVERHEAD_BYTES
            ),
        ),
        None => findings.fail(
            "mtu",
            Code::Failed,
            bytes,
            format!("the interface takes {bytes} bytes, less than the smallest RoCEv2 packet"),
            "raise the interface's MTU to 1500 at least",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_backlog_below_rxe_is_named_with_its_fix() {
        let mut findings = Findings::default();
        backlog(None, &mut findings);
        backlog(Some(20_000), &mut findings);
        backlog(Some(1_000), &mut findings);
        let told = findings.to_json();
        assert_eq!(told["findings"].as_array().map(Vec::len), Some(2));
        assert_eq!((&told["findings"][0]["level"], &told["findings"][1]["level"]), (&"ok".into(), &"warn".into()));
        assert!(findings.to_text().contains("net.core.netdev_max_backlog=20000"), "{}", findings.to_text());
    }
}

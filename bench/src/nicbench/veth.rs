//! Both ends on one machine without a short cut: a veth pair in the current network namespace, with each address on its
//! own end, and routing that sends packets between the two through the pair instead of over loopback. So rxe, whose
//! sockets are in the initial namespace, and the software NIC use the very same link. And the serving processes.
//!
//! The routing rules belong to the whole namespace, so this is for a guest or for `unshare --net`.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::CONTROL_PORT;
use super::end::{DeviceKind, DeviceOptions};

/// The two ends: interface, address, rxe device.
const ENDS: [(&str, Ipv4Addr, &str); 2] =
    [("bench-a", Ipv4Addr::new(10, 78, 0, 1), "rxe_bench_a"), ("bench-b", Ipv4Addr::new(10, 78, 0, 2), "rxe_bench_b")];
/// Routing table of the first end; the second has the next.
const TABLE: u32 = 7801;
/// Longest wait for an rxe device to carry its address.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How long serving processes have to end by themselves.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Masks of the processors that receive for each end when steered: the one on which that end's side runs.
const RECEIVE_CPUS: [&str; 2] = ["1", "2"];

/// Packets that wait for a processor's receiving half. With the kernel's 1,000 it drops the rest of 18 READs of 64 KiB at
/// once. rxe then completes a READ in its requester although not all of its bytes came, so what was read is wrong.
const BACKLOG: &str = "20000";

/// What the pair is like: `MTU` or `MTU:steered`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// 1500 gives packets of 1024 bytes, 4200 of 4096.
    pub(crate) mtu: u32,
    /// Whether each end's packets are received on that end's own processor (RPS), as between two machines. Without it
    /// the sender's processor does all that the kernel does for the receiver before the sender goes on.
    pub(crate) steered: bool,
}

impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (mtu, steered) = match text.split_once(':') {
            Some((mtu, "steered")) => (mtu, true),
            Some((_, other)) => bail!("{other} is not a kind of link; there is: steered"),
            None => (text, false),
        };
        Ok(Self { mtu: mtu.parse()?, steered })
    }
}

/// The pair, removed when dropped.
#[derive(Debug)]
pub(crate) struct Link;

impl Link {
    /// Makes pair, addresses and routes, and with `rxe` a device on each end.
    pub(crate) fn up(shape: &Shape, rxe: bool) -> Result<Self> {
        let mtu = shape.mtu;
        down();
        let [(a, ..), (b, ..)] = ENDS;
        ip("link set lo up")?;
        ip(&format!("link add {a} type veth peer name {b}"))?;
        let link = Self;
        for (interface, address, _) in ENDS {
            ip(&format!("link set {interface} mtu {mtu} up"))?;
            ip(&format!("addr add {address}/24 dev {interface}"))?;
        }
        // The local table answers for both addresses, so it must be asked after the rules below.
        ip("rule add preference 1000 lookup local")?;
        ip("rule del preference 0 lookup local")?;
        for ((own, peer), table) in [(0, 1), (1, 0)].into_iter().zip(TABLE..) {
            let ((interface, address, _), (peer_interface, peer_address, _)) = (ENDS[own], ENDS[peer]);
            ip(&format!("route add {peer_address} dev {interface} src {address} table {table}"))?;
            ip(&format!("rule add preference 10 iif lo from {address} to {peer_address} lookup {table}"))?;
            // An end would not answer a question whose sender is an address of its own machine.
            ip(&format!("neigh add {peer_address} lladdr {} dev {interface} nud permanent", mac(peer_interface)?))?;
        }
        for interface in ["all", ENDS[0].0, ENDS[1].0] {
            set(&format!("net/ipv4/conf/{interface}/accept_local"), "1")?;
            set(&format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
        }
        if shape.steered {
            for ((interface, ..), cpus) in ENDS.into_iter().zip(RECEIVE_CPUS) {
                let path = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
                std::fs::write(&path, cpus).with_context(|| path)?;
            }
        }
        if rxe {
            set("net/core/netdev_max_backlog", BACKLOG)?;
            for (interface, address, device) in ENDS {
                run("rdma", &format!("link add {device} type rxe netdev {interface}"))?;
                wait_for_gid(device, address.into())?;
            }
        }
        Ok(link)
    }

    pub(crate) fn client_address(&self) -> IpAddr {
        ENDS[0].1.into()
    }

    pub(crate) fn server_address(&self) -> IpAddr {
        ENDS[1].1.into()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        down();
    }
}

fn down() {
    // Whatever of it is there; nothing to do where there is none.
    for (_, _, device) in ENDS {
        let _ = run("rdma", &format!("link delete {device}"));
    }
    let _ = ip(&format!("link delete {}", ENDS[0].0));
    for table in [TABLE, TABLE + 1] {
        let _ = ip(&format!("rule del preference 10 lookup {table}"));
    }
    if ip("rule del preference 1000 lookup local").is_ok() {
        let _ = ip("rule add preference 0 lookup local");
    }
}

fn wait_for_gid(device: &str, address: IpAddr) -> Result<()> {
    let start = Instant::now();
    loop {
        match rdmacore::choose(&rdmacore::list_devices(), Some(device), address) {
            Ok(_) => return Ok(()),
            Err(e) if start.elapsed() > READY_WITHIN => return Err(e.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn mac(interface: &str) -> Result<String> {
    let path = format!("/sys/class/net/{interface}/address");
    if let Ok(address) = std::fs::read_to_string(&path) {
        return Ok(address.trim().to_owned());
    }
    // In a namespace made by `unshare --net` alone, /sys still shows the other one.
    let out = Command::new("ip").args(["-o", "link", "show", interface]).output().context("ip")?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).map(str::to_owned).with_context(|| format!("no hardware address of {interface}"))
}

fn set(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{name}");
    std::fs::write(&path, value).with_context(|| format!("cannot write {path}"))
}

fn ip(args: &str) -> Result<()> {
    run("ip", args)
}

fn run(program: &str, args: &str) -> Result<()> {
    let out = Command::new(program).args(args.split_whitespace()).output().with_context(|| program.to_owned())?;
    ensure!(out.status.success(), "{program} {args}: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

/// One serving process for each device; ended when dropped.
#[derive(Debug)]
pub(crate) struct Servers(Vec<Child>);

impl Servers {
    pub(crate) fn start(devices: &[DeviceKind], address: IpAddr, options: &DeviceOptions) -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut servers = Self(vec![]);
        for (device, port) in devices.iter().zip(CONTROL_PORT..) {
            let mut command = Command::new(&program);
            command.args(["nicbench", "server", "--device", device.name(), "--address", &address.to_string()]);
            command.args(["--control-port", &port.to_string()]);
            for (flag, wait) in [("--lat-wait", options.lat_wait), ("--bw-wait", options.bw_wait)] {
                let value = wait.to_possible_value().context("every policy has a name")?;
                command.args([flag, value.get_name()]);
            }
            servers.0.push(command.spawn().context("starting a server")?);
        }
        Ok(servers)
    }

    /// Waits until every server has ended by itself, which it does when its client is gone.
    pub(crate) fn wait(mut self) -> Result<()> {
        let mut failed = 0;
        for child in &mut self.0 {
            failed += u32::from(!child.wait()?.success());
        }
        if failed > 0 {
            bail!("{failed} servers failed");
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let start = Instant::now();
        for child in &mut self.0 {
            while matches!(child.try_wait(), Ok(None)) && start.elapsed() < END_WITHIN {
                std::thread::sleep(Duration::from_millis(20));
            }
            // An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_an_mtu_and_a_word() {
        let shape = |text: &str| text.parse::<Shape>().ok();
        assert_eq!(shape("1500"), Some(Shape { mtu: 1500, steered: false }));
        assert_eq!(shape("4200:steered"), Some(Shape { mtu: 4200, steered: true }));
        assert_eq!(shape("4200:straight"), None);
        assert_eq!(shape("many"), None);
    }
}

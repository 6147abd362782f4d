//! Two hosts on one machine: a network namespace for the software NIC, rxe in the initial one, and between them two
//! taps whose frames pass through the relay. Taps, not veth: the kernel segments before a tap, so that each RoCEv2
//! packet is lost or reordered by itself.

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rdmacore::Choice;

use crate::relay::{Faults, Relay};

/// Address family of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Names of what is made; the guest is ours alone.
const NAMESPACE: &str = "soft";
const RXE_TAP: &str = "tap-rxe";
const SOFT_TAP: &str = "tap-soft";
const RXE_DEVICE: &str = "rxe_judge";
/// Longest wait for an address to become usable.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// The link, taken down when dropped.
pub(crate) struct Link {
    relay: Relay,
    family: Family,
    /// The rxe device; none before its GID is there.
    rxe: Option<Choice>,
}

fn ip(args: &str) -> Result<()> {
    run("ip", args)
}

fn run(program: &str, args: &str) -> Result<()> {
    let out = Command::new(program).args(args.split_whitespace()).output().with_context(|| program.to_string())?;
    if !out.status.success() {
        bail!("{program} {args}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

fn tap(name: &str) -> Result<File> {
    tap::open(name).with_context(|| format!("making {name}: is the tun module loaded?"))
}

impl Link {
    /// Makes namespace, taps, addresses, the relay and the rxe device.
    pub(crate) fn up(family: Family, mtu: u32, faults: Faults, capture: Option<PathBuf>) -> Result<Self> {
        Self::down();
        ip(&format!("netns add {NAMESPACE}"))?;
        let (rxe_end, soft_end) = (tap(RXE_TAP)?, tap(SOFT_TAP)?);
        ip(&format!("link set {SOFT_TAP} netns {NAMESPACE}"))?;
        ip(&format!("link set {RXE_TAP} mtu {mtu} up"))?;
        ip(&format!("-n {NAMESPACE} link set lo up"))?;
        ip(&format!("-n {NAMESPACE} link set {SOFT_TAP} mtu {mtu} up"))?;
        let relay = Relay::start(rxe_end, soft_end, faults, capture)?;
        let mut link = Self { relay, family, rxe: None };
        let (bits, flags) = match family {
            Family::V4 => (24, ""),
            Family::V6 => (64, "nodad"),
        };
        ip(&format!("addr add {}/{bits} dev {RXE_TAP} {flags}", link.rxe_address()))?;
        ip(&format!("-n {NAMESPACE} addr add {}/{bits} dev {SOFT_TAP} {flags}", link.soft_address()))?;
        run("rdma", &format!("link add {RXE_DEVICE} type rxe netdev {RXE_TAP}"))?;
        link.rxe = Some(link.wait_for_gid()?);
        Ok(link)
    }

    fn down() {
        // Whatever of it a run before left behind; nothing to do where there is none.
        let _ = run("rdma", &format!("link delete {RXE_DEVICE}"));
        let _ = ip(&format!("link delete {RXE_TAP}"));
        let _ = ip(&format!("netns delete {NAMESPACE}"));
    }

    /// The GID of the address appears a moment after the address.
    fn wait_for_gid(&self) -> Result<Choice> {
        let start = Instant::now();
        loop {
            let devices = rdmacore::list_devices();
            match rdmacore::choose(&devices, Some(RXE_DEVICE), self.rxe_address()) {
                Ok(choice) => return Ok(choice),
                Err(e) if start.elapsed() > READY_WITHIN => return Err(e.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The rxe device with its GID.
    pub(crate) fn rxe(&self) -> Choice {
        self.rxe.clone().expect("a link that is up has waited for it")
    }

    pub(crate) fn rxe_address(&self) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::from([10, 77, 0, 1]),
            Family::V6 => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 1]),
        }
    }

    pub(crate) fn soft_address(&self) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::from([10, 77, 0, 2]),
            Family::V6 => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 2]),
        }
    }

    /// Runs `f` on a thread inside the software NIC's namespace; sockets made there stay there.
    pub(crate) fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
                let ns = std::fs::File::open(format!("/run/netns/{NAMESPACE}")).expect("the namespace was made");
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&ns), kind).expect("root may enter a namespace");
                f()
            });
            inside.join().expect("the thread in the namespace panicked")
        })
    }

    pub(crate) fn summary(&self) -> String {
        self.relay.summary()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.relay.stop();
        Self::down();
    }
}

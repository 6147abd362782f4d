//! Where the hosts of a group are: each in a network namespace with clocks of its own, or all on one host.
//!
//! Owns the processes that hold the namespaces, and the network between them. The offsets of the clocks are some days, so
//! whoever compared those of two hosts would be wrong at once.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::hub::Hub;
use crate::host::address;
use crate::namespace::run;

/// The interface of each host.
const INTERFACE: &str = "group0";
/// Seconds by which a host's clocks are ahead, at most.
const AHEAD_S_MAX: u64 = 1_000_000;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) ips: Vec<IpAddr>,
    holders: Vec<Holder>,
    /// `None`: all hosts are on one, and there is no link to cut.
    pub(super) hub: Option<Hub>,
}

/// What keeps the namespaces of a host.
#[derive(Debug)]
struct Holder {
    child: Child,
    /// Of a process that is inside.
    pid: u32,
    has_clock: bool,
}

impl Place {
    /// Hosts that are addresses of this one.
    pub(super) fn one_host(count: usize) -> Self {
        Self { ips: (0..count).map(|_| address()).collect(), holders: vec![], hub: None }
    }

    /// Hosts in namespaces, with a network between them. An error: there can be none here.
    pub(super) fn namespaces(count: usize, seed: u64) -> Result<Self> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (hub, names) = Hub::start(count, seed)?;
        let ips: Vec<IpAddr> = (1..).take(count).map(|host| Ipv4Addr::new(10, 97, 0, host).into()).collect();
        let mut place = Self { ips, holders: vec![], hub: Some(hub) };
        for (host, name) in names.iter().enumerate() {
            let ahead = rng.random_range(0..AHEAD_S_MAX);
            let holder = Holder::start(Some(ahead)).or_else(|_| Holder::start(None))?;
            let pid = holder.pid.to_string();
            place.holders.push(holder);
            run(Command::new("ip").args(["link", "set", name, "netns", &pid, "name", INTERFACE]))?;
            let address = format!("{}/24", place.ips[host]);
            run(place.command(host, "ip").args(["address", "add", &address, "dev", INTERFACE]))?;
            run(place.command(host, "ip").args(["link", "set", INTERFACE, "up"]))?;
        }
        Ok(place)
    }

    /// Whether the clocks of all hosts are apart.
    pub(super) fn has_clocks(&self) -> bool {
        !self.holders.is_empty() && self.holders.iter().all(|holder| holder.has_clock)
    }

    /// A command at a host. Its process is that of the program.
    pub(super) fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let Some(holder) = self.holders.get(host) else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg("--no-fork").arg(format!("--net=/proc/{}/ns/net", holder.pid));
        if holder.has_clock {
            command.arg(format!("--time=/proc/{}/ns/time", holder.pid));
        }
        command.arg("--").arg(program);
        command
    }
}

impl Holder {
    /// With clocks that are so many seconds ahead.
    fn start(ahead: Option<u64>) -> Result<Self> {
        let mut command = Command::new("unshare");
        command.arg("--net");
        if let Some(ahead) = ahead {
            let ahead = ahead.to_string();
            command.args(["--time", "--monotonic", &ahead, "--boottime", &ahead]);
        }
        command.args(["--fork", "--kill-child", "--", "sh", "-c", "ip link set lo up && echo $$ && exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start `unshare`")?;
        let mut line = String::new();
        if let Some(stdout) = &mut child.stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let Ok(pid) = line.trim().parse() else {
            let ended = child.wait_with_output()?;
            bail!("no namespaces for a host: {}", String::from_utf8_lossy(&ended.stderr).trim());
        };
        let holder = Self { child, pid, has_clock: ahead.is_some() };
        ensure!(pid > 0, "no process in a namespace");
        Ok(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Its own end is that of the process inside.
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

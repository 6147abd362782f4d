//! Two hosts in two network namespaces, with two networks between them of which one fails and heals. Owns the other
//! namespace, and daemons that are fresh for each case, since how soon something is tried again depends on what failed
//! before.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use raas::{Listener, Session, Stream};

use super::stream::Flow;
use super::{AROUND, PATIENCE, ms};

/// The interfaces, each in both namespaces, and the addresses of the two hosts there.
const NETWORKS: [(&str, [&str; 2]); 2] =
    [("fault0", ["10.97.1.1", "10.97.1.2"]), ("fault1", ["10.97.2.1", "10.97.2.2"])];

/// The other namespace, joined to this one.
#[derive(Debug)]
pub(crate) struct Networks {
    other: Child,
    raas: PathBuf,
    directory: PathBuf,
}

/// Runs a command that must succeed.
fn succeed(command: &mut Command) -> Result<()> {
    let ended = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
    Ok(())
}

impl Networks {
    pub(crate) fn join(raas: &std::path::Path) -> Result<Self> {
        let script = "ip link set lo up && echo ready; exec cat";
        let mut other = Command::new("unshare");
        other.args(["--net", "--", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().context("cannot run unshare")?;
        let mut line = String::new();
        BufReader::new(other.stdout.take().context("stdout is piped")?).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the other namespace said {line:?}");
        let directory = std::env::temp_dir().join(format!("raas-faultbench-paths-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let networks = Self { other, raas: raas.to_owned(), directory };
        for (name, addresses) in NETWORKS {
            let far = networks.other.id().to_string();
            succeed(Command::new("ip").args(["link", "add", name, "type", "veth", "peer", "name", "far"]))?;
            succeed(Command::new("ip").args(["link", "set", "far", "netns", &far]))?;
            succeed(networks.on(1, "ip").args(["link", "set", "far", "name", name]))?;
            for (host, address) in addresses.into_iter().enumerate() {
                succeed(networks.on(host, "ip").args(["addr", "add", &format!("{address}/24"), "dev", name]))?;
                succeed(networks.on(host, "ip").args(["link", "set", name, "up"]))?;
            }
        }
        Ok(networks)
    }

    /// A command at a host.
    fn on(&self, host: usize, program: &str) -> Command {
        if host == 0 {
            return Command::new(program);
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.other.id())).arg("--").arg(program);
        command
    }

    fn set_first(&self, up: bool) -> Result<()> {
        succeed(Command::new("ip").args(["link", "set", NETWORKS[0].0, if up { "up" } else { "down" }]))
    }

    /// The pauses of a flow when the first network fails, and when it is there again.
    pub(crate) fn interface(&self) -> Result<[f64; 2]> {
        self.interface_with("auto")
    }

    /// The same with lanes on RoCEv2.
    pub(crate) fn interface_with_roce(&self) -> Result<[f64; 2]> {
        self.interface_with("roce")
    }

    fn interface_with(&self, wire: &str) -> Result<[f64; 2]> {
        let hosts = Hosts::start(self, wire)?;
        let flow = hosts.flow()?;
        let down = hosts.pause(&flow, || self.set_first(false), NETWORKS[1].1[0])?;
        let up = hosts.pause(&flow, || self.set_first(true), NETWORKS[0].1[0])?;
        flow.finish()?;
        Ok([down, up])
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        // The interfaces go with the namespace.
        let _ = self.other.kill();
        let _ = self.other.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Fresh daemons.
struct Hosts {
    daemons: Vec<Child>,
    sessions: Vec<Session>,
    sockets: Vec<PathBuf>,
}

impl Hosts {
    fn start(networks: &Networks, wire: &str) -> Result<Self> {
        let mut hosts = Self { daemons: Vec::new(), sessions: Vec::new(), sockets: Vec::new() };
        let [first, standby] = NETWORKS.map(|(_, addresses)| addresses);
        let key = networks.directory.join("key");
        std::fs::write(&key, [7; 32])?;
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        for host in 0..2 {
            let [socket, config] = ["sock", "toml"].map(|kind| networks.directory.join(format!("{host}.{kind}")));
            let (own, peer) = (host, 1 - host);
            let text = format!(
                "listen = \"{}\"\nstandby = [\"{}\"]\nsocket = {socket:?}\nkey_file = {key:?}\nwire = \"{wire}\"\n\
                 [limits]\npeer_return_ms = 60000\n[[peer]]\naddress = \"{}\"\nstandby = [\"{}\"]\n",
                first[own], standby[own], first[peer], standby[peer]
            );
            std::fs::write(&config, text)?;
            let mut daemon = networks.on(host, &networks.raas.to_string_lossy());
            daemon.args(["daemon", "--config"]).arg(&config).env("RUST_LOG", "error");
            let mut daemon =
                daemon.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a daemon")?;
            let stdout = daemon.stdout.take().context("stdout is piped")?;
            hosts.daemons.push(daemon);
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line)?;
            ensure!(line.starts_with("ready"), "the daemon of host {host} said {line:?}");
            hosts.sessions.push(Session::connect(&socket)?);
            hosts.sockets.push(socket);
        }
        Ok(hosts)
    }

    fn flow(&self) -> Result<Flow> {
        let to: IpAddr = NETWORKS[0].1[1].parse()?;
        let listener = Listener::bind_with(&self.sessions[1], (to, 0))?;
        let stream = Stream::connect_with(&self.sessions[0], listener.local_addr()?)?;
        let (accepted, _) = listener.accept_timeout(PATIENCE)?;
        Flow::over(stream, accepted)
    }

    /// The longest time between two reads from what is `done` until the first host's lane is over that path, and a little
    /// longer.
    fn pause(&self, flow: &Flow, done: impl FnOnce() -> Result<()>, path: &str) -> Result<f64> {
        std::thread::sleep(AROUND);
        let from = Instant::now();
        done()?;
        let says = |host: usize| -> Result<bool> {
            let stat = raas::inspect::stat(Some(&self.sockets[host]))?;
            let lane = stat.lanes.first().context("there is no lane")?;
            Ok(lane.link_path.as_deref().is_some_and(|now| now.starts_with(path)) && lane.state == "up")
        };
        while !says(0)? {
            ensure!(from.elapsed() < PATIENCE, "the lane did not go over {path}");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(AROUND);
        Ok(ms(flow.longest_gap(from, from.elapsed())?))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.sessions.clear();
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

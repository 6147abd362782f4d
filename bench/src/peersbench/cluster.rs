//! A daemon and its peers, on addresses of loopback. Owns the daemons: they end with it, whatever happens.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use raas::Session;

/// Takes loopback up. Refuses a namespace that is not fresh, where the daemons' ports may be others'.
pub(crate) fn loopback_of_an_own_namespace() -> Result<()> {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    ensure!(routes.lines().count() <= 1, "not a namespace of its own: run it under `unshare --net`");
    let status = Command::new("ip").args(["link", "set", "dev", "lo", "up"]).status().context("cannot run ip")?;
    ensure!(status.success(), "ip link set dev lo up: {status}");
    Ok(())
}

/// A daemon, and a program's session with it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) address: IpAddr,
    pub(crate) session: Session,
    pub(crate) socket: PathBuf,
    daemon: Child,
}

impl Host {
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.id()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // It has ended already if this fails.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// One daemon and its peers.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) center: Host,
    pub(crate) peers: Vec<Host>,
    directory: PathBuf,
}

impl Cluster {
    /// The cluster number `place` of this process, from 0; `config` is for all of its daemons.
    pub(crate) fn start(raas: &Path, place: usize, peers: usize, config: &str) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("raas-peersbench-{}-{place}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let file = directory.join("raas.toml");
        std::fs::write(&file, config)?;
        let net = u8::try_from(20 + place).context("too many clusters")?;
        let host = |number: usize| -> Result<Host> {
            let [high, low] = u16::try_from(number + 1)?.to_be_bytes();
            start_host(raas, &directory, &file, IpAddr::from([127, net, high, low]))
                .with_context(|| format!("daemon {number}"))
        };
        let center = host(0)?;
        let peers = (1..=peers).map(host).collect::<Result<_>>()?;
        Ok(Self { center, peers, directory })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.peers.clear();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn start_host(raas: &Path, directory: &Path, config: &Path, address: IpAddr) -> Result<Host> {
    let socket = directory.join(format!("{address}.sock"));
    let mut daemon = Command::new(raas)
        .args(["daemon", "--listen", &address.to_string(), "--config"])
        .arg(config)
        .arg("--socket")
        .arg(&socket)
        .env("RUST_LOG", "error")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", raas.display()))?;
    let ready = (|| {
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().context("stdout is piped")?).read_line(&mut line)?;
        ensure!(line.starts_with("ready"), "the daemon at {address} said {line:?}");
        Ok(Session::connect(&socket)?)
    })();
    match ready {
        Ok(session) => Ok(Host { address, session, socket, daemon }),
        Err(error) => {
            let _ = daemon.kill();
            let _ = daemon.wait();
            Err(error)
        }
    }
}

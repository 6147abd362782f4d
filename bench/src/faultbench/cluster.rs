//! Two daemons on loopback, and the loopback. Owns the daemons: they end with it, whatever happens.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use raas::{Listener, Session};

use super::PATIENCE;

const HOSTS: [IpAddr; 2] =
    [IpAddr::V4(std::net::Ipv4Addr::new(127, 9, 9, 1)), IpAddr::V4(std::net::Ipv4Addr::new(127, 9, 9, 2))];

/// The only interface of the namespace.
#[derive(Debug)]
pub(crate) struct Loopback;

impl Loopback {
    /// Brings it up. Refuses a namespace that is not fresh: taking loopback down would hurt others there.
    pub(crate) fn of_an_own_namespace() -> Result<Self> {
        let links = std::fs::read_dir("/sys/class/net").context("/sys/class/net")?.count();
        let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
        let lo = Self;
        ensure!(
            routes.lines().count() <= 1,
            "not a namespace of its own ({links} interfaces): run it under `unshare --net`"
        );
        lo.set(true)?;
        Ok(lo)
    }

    pub(crate) fn set(&self, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        let status = Command::new("ip").args(["link", "set", "dev", "lo", state]).status().context("cannot run ip")?;
        ensure!(status.success(), "ip link set dev lo {state}: {status}");
        Ok(())
    }
}

/// The daemons.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) loopback: Loopback,
    /// One of each host.
    pub(crate) sessions: Vec<Session>,
    /// By host.
    daemons: Mutex<[Option<Child>; 2]>,
    raas: PathBuf,
    directory: PathBuf,
}

impl Cluster {
    pub(crate) fn start(raas: &Path, loopback: Loopback) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("raas-faultbench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let (daemons, raas) = (Mutex::default(), raas.to_owned());
        let mut cluster = Self { loopback, sessions: Vec::new(), daemons, raas, directory };
        for host in 0..HOSTS.len() {
            cluster.start_daemon(host)?;
            cluster.sessions.push(Session::connect(cluster.socket(host))?);
        }
        Ok(cluster)
    }

    fn start_daemon(&self, host: usize) -> Result<()> {
        let mut daemon = Command::new(&self.raas)
            .args(["daemon", "--listen", &HOSTS[host].to_string(), "--socket"])
            .arg(self.socket(host))
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.raas.display()))?;
        let stdout = daemon.stdout.take().context("stdout is piped")?;
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner)[host] = Some(daemon);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.starts_with("ready"), "the daemon of host {host} said {line:?}");
        Ok(())
    }

    /// Kills the daemons of these hosts, says when, and starts the next ones.
    pub(crate) fn restart(&self, hosts: &[usize], told: &mpsc::Sender<Instant>) -> Result<()> {
        let take = |host: &usize| self.daemons.lock().unwrap_or_else(PoisonError::into_inner)[*host].take();
        let mut dead: Vec<Child> = hosts.iter().filter_map(take).collect();
        for daemon in &mut dead {
            daemon.kill()?;
        }
        told.send(Instant::now())?;
        for daemon in &mut dead {
            daemon.wait()?;
        }
        hosts.iter().try_for_each(|&host| self.start_daemon(host))
    }

    /// The sessions of the other cases, which nobody follows, learn in their next call that their daemon died. That call
    /// fails.
    pub(crate) fn settle(&self) -> Result<()> {
        let from = Instant::now();
        for session in &self.sessions {
            while let Err(e) = Listener::bind_with(session, (session.addresses()[0], 0)) {
                ensure!(from.elapsed() < PATIENCE, "the session is lost: {e}");
            }
        }
        Ok(())
    }

    /// A session of each host that goes on with the next daemon while nobody calls it.
    pub(crate) fn sessions_that_return(&self) -> Result<[Session; 2]> {
        let session = |host| Session::builder().socket(self.socket(host)).background(true).connect();
        Ok([session(0)?, session(1)?])
    }

    pub(crate) fn socket(&self, host: usize) -> &'static Path {
        // Two paths for the life of the program, so that they outlive borrows of the cluster.
        static PATHS: std::sync::OnceLock<[PathBuf; 2]> = std::sync::OnceLock::new();
        &PATHS.get_or_init(|| [0, 1].map(|n| self.directory.join(format!("{n}.sock"))))[host]
    }

    /// A listener on the second host.
    pub(crate) fn listener(&self) -> Result<(Listener, SocketAddr)> {
        self.listener_of(&self.sessions[1])
    }

    /// A listener of a session of the second host.
    pub(crate) fn listener_of(&self, session: &Session) -> Result<(Listener, SocketAddr)> {
        let listener = Listener::bind_with(session, (HOSTS[1], 0))?;
        let to = listener.local_addr()?;
        Ok((listener, to))
    }

    /// Breaks the first host's end of the lane.
    pub(crate) fn reset_lane(&self) -> Result<bool> {
        Ok(raas::inspect::reset_lane(Some(self.socket(0)), HOSTS[1])?)
    }

    /// Resets of a host's lane so far.
    pub(crate) fn resets(&self, host: usize) -> Result<u64> {
        Ok(raas::inspect::stat(Some(self.socket(host)))?.lanes.iter().map(|l| l.resets).sum())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.sessions.clear();
        for daemon in self.daemons.get_mut().unwrap_or_else(PoisonError::into_inner).iter_mut().flatten() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

//! Daemons that find each other, and what each knows.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Cluster, Running, address, raas, run};

/// A daemon with a configuration of its own.
pub(crate) struct Host {
    pub(crate) ip: IpAddr,
    pub(crate) socket: PathBuf,
    pub(crate) process: Running,
    config: PathBuf,
}

/// A configuration with these lines besides. The daemon is confined, and killed for what it must not do.
pub(crate) fn configure(cluster: &Cluster, further: &str) -> (IpAddr, PathBuf, PathBuf) {
    let (ip, place) = (address(), cluster.dir.path());
    let (config, socket) = (place.join(format!("{ip}.toml")), place.join(format!("run-{ip}/raasd.sock")));
    let text = format!(
        "listen = \"{ip}\"\nsocket = {socket:?}\nkey_file = {:?}\nsandbox_violation = \"kill\"\n{further}\n",
        cluster.key()
    );
    std::fs::write(&config, text).unwrap();
    (ip, config, socket)
}

impl Host {
    pub(crate) fn start(cluster: &Cluster, further: &str) -> Self {
        Self::start_by(cluster, further, |config| {
            let mut daemon = raas();
            daemon.args(["daemon", "--until-stdin-closes", "--config"]).arg(config);
            daemon
        })
    }

    /// As [`Self::start`], by a command of the caller's.
    pub(crate) fn start_by(cluster: &Cluster, further: &str, command: impl FnOnce(&PathBuf) -> Command) -> Self {
        let (ip, config, socket) = configure(cluster, further);
        let mut process = Running::start(command(&config).stdin(Stdio::piped()));
        process.wait_for(&format!("ready socket={}", socket.display()));
        Self { ip, socket, process, config }
    }

    /// Another process takes the daemon's place.
    pub(crate) fn replace(&mut self) {
        let mut next = raas();
        next.args(["daemon", "--replace", "--until-stdin-closes", "--config"]).arg(&self.config);
        let mut next = Running::start(next.stdin(Stdio::piped()));
        next.wait_for(&format!("ready socket={}", self.socket.display()));
        let old = std::mem::replace(&mut self.process, next).end();
        assert_eq!(old.code(), 0, "{old:?}");
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = raas();
        command.args(args).env("RAAS_SOCKET", &self.socket);
        command
    }

    pub(crate) fn session(&self) -> raas::Session {
        raas::Session::builder().socket(&self.socket).name("test").connect().unwrap()
    }

    /// What `raas cluster` tells.
    pub(crate) fn cluster(&self) -> Value {
        let ended = run(&mut self.command(&["cluster", "--json"]));
        assert_eq!(ended.code(), 0, "{ended:?}");
        ended.json()
    }

    /// The addresses of all hosts that it knows, in order.
    pub(crate) fn knows(&self) -> Vec<IpAddr> {
        let told = self.cluster();
        told["hosts"].as_array().unwrap().iter().map(|row| row["address"].as_str().unwrap().parse().unwrap()).collect()
    }

    /// What is wrong with its first directory.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.cluster()["directories"][0]["error"].as_str().map(str::to_owned)
    }

    /// What `raas doctor` says of its first directory.
    pub(crate) fn finding(&self) -> Value {
        let told = run(&mut self.command(&["doctor", "--json"])).json();
        let findings = told["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["id"] == "cluster").unwrap_or_else(|| panic!("{told}")).clone()
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) {
        drop(self.process.stdin());
        let ended = self.process.end();
        assert_eq!(ended.code(), 0, "{ended:?}");
    }
}

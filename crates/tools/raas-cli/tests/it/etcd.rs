//! Daemons that find each other through a real etcd, which is killed and started again.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::rig::discovery::Host;
use crate::rig::{Cluster, Running, address, wait_until};
use raas::{Listener, Stream};

/// Of the Debian package `etcd-server`.
const ETCD: &str = "etcd";

/// Whether there is an etcd; without one the test is skipped, and fails under `CI=true`.
fn has_etcd(name: &str) -> bool {
    let asked = Command::new(ETCD).arg("--version").stdin(Stdio::null()).output();
    let found = asked.is_ok_and(|out| out.status.success());
    if !found {
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "the Debian package etcd-server is not installed");
        eprintln!("SKIP {name}: the Debian package etcd-server is not installed");
    }
    found
}

/// An etcd of one server.
struct Etcd {
    ip: IpAddr,
    data: PathBuf,
    process: Running,
}

impl Etcd {
    fn start(cluster: &Cluster) -> Self {
        let (ip, data) = (address(), cluster.dir.path().join("etcd"));
        let process = Self::run(ip, &data);
        Self { ip, data, process }
    }

    fn run(ip: IpAddr, data: &PathBuf) -> Running {
        let (clients, peers) = (format!("http://{ip}:2379"), format!("http://{ip}:2380"));
        let mut command = Command::new(ETCD);
        // What the machine's own etcd has in its environment is not this one's.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // Debian builds it for processors that its authors do not test.
        command.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("aarch64", "arm64"));
        command.args(["--name", "one", "--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("one={peers}"), "--data-dir"]).arg(data).stdin(Stdio::null());
        let mut process = Running::start(&mut command);
        process.wait_for("ready to serve client requests");
        process
    }

    /// Starts it again, after it was killed.
    fn start_again(&mut self) {
        self.process = Self::run(self.ip, &self.data);
    }

    /// A daemon that finds others here.
    fn host(&self, cluster: &Cluster, lease_seconds: u32, name: &str, services: &str) -> Host {
        let ip = self.ip;
        // The first server is not there.
        let text = format!(
            "[cluster]\nname = \"{name}\"\nservices = [{services}]\nrefresh_ms = 200\n\
             [cluster.etcd]\nendpoints = [\"http://{ip}:9\", \"http://{ip}:2379\"]\nlease_seconds = {lease_seconds}"
        );
        Host::start(cluster, &text)
    }
}

fn know_each_other(hosts: &[&Host]) {
    let mut all: Vec<IpAddr> = hosts.iter().map(|host| host.ip).collect();
    all.sort_unstable();
    for host in hosts {
        wait_until("the hosts of the cluster", || host.knows() == all);
    }
}

/// A stream to the service `name`, as `from` finds it.
fn connects_by_name(from: &Host, to: &Host, name: &str) {
    let listener = Listener::bind_with(&to.session(), (to.ip, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = format!("{name}:{port}");
    assert_eq!(from.session().lookup(&target).unwrap(), [(to.ip, port).into()]);
    let mut client: Stream = raas::ConnectOptions::new().connect_named(&from.session(), &target).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"by name").unwrap();
    let mut got = [0; 7];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"by name");
}

#[test]
fn hosts_find_each_other_and_one_that_is_killed_disappears() {
    if !has_etcd("hosts_find_each_other_and_one_that_is_killed_disappears") {
        return;
    }
    let cluster = Cluster::new();
    let etcd = Etcd::start(&cluster);
    let (a, b) = (etcd.host(&cluster, 600, "one", ""), etcd.host(&cluster, 600, "two", "\"store\", \"web\""));
    // Its lease may also run out while this machine stands still, so it is only waited for.
    let mut c = etcd.host(&cluster, 3, "three", "\"mail\"");
    wait_until("the third host", || a.knows().len() == 3 && b.knows().len() == 3);
    let told = a.cluster();
    let row = told["hosts"].as_array().unwrap().iter().find(|row| row["name"] == "two").unwrap();
    assert_eq!((&row["source"], &row["services"]), (&"etcd".into(), &serde_json::json!(["store", "web"])), "{told}");
    wait_until("a directory without trouble", || a.finding()["level"] == "ok");
    connects_by_name(&a, &b, "Store");
    connects_by_name(&a, &b, "two");
    c.process.kill();
    know_each_other(&[&a, &b]);
    assert!(matches!(a.session().lookup("mail:7000"), Err(raas::LookupError::Unknown { .. })));
}

#[test]
fn a_host_that_ends_in_order_gives_its_lease_back() {
    if !has_etcd("a_host_that_ends_in_order_gives_its_lease_back") {
        return;
    }
    let cluster = Cluster::new();
    let etcd = Etcd::start(&cluster);
    // No lease runs out while this runs.
    let (a, mut b) = (etcd.host(&cluster, 3600, "one", ""), etcd.host(&cluster, 3600, "two", ""));
    know_each_other(&[&a, &b]);
    // One that makes way for another stays listed.
    b.replace();
    wait_until("what the next daemon knows", || b.knows().len() == 2);
    assert_eq!(a.knows().len(), 2, "{}", a.cluster());
    b.stop();
    wait_until("the other to be gone", || a.knows() == [a.ip]);
}

#[test]
fn an_etcd_that_is_killed_and_started_again_loses_nobody() {
    if !has_etcd("an_etcd_that_is_killed_and_started_again_loses_nobody") {
        return;
    }
    let cluster = Cluster::new();
    let mut etcd = Etcd::start(&cluster);
    // So long that no lease runs out on a machine that stands still.
    let (a, b) = (etcd.host(&cluster, 600, "one", ""), etcd.host(&cluster, 600, "two", "\"store\""));
    know_each_other(&[&a, &b]);
    etcd.process.kill();
    let both = |host: &Host| assert_eq!(host.knows().len(), 2, "{}", host.cluster());
    for host in [&a, &b] {
        wait_until("the trouble", || {
            both(host);
            host.trouble().is_some()
        });
        let finding = host.finding();
        assert_eq!(finding["level"], "warn", "{finding}");
        assert!(finding["detail"].as_str().unwrap().contains("2379 does not answer"), "{finding}");
    }
    connects_by_name(&a, &b, "store");
    etcd.start_again();
    for host in [&a, &b] {
        wait_until("the end of the trouble", || {
            both(host);
            host.trouble().is_none()
        });
        both(host);
    }
    let c = etcd.host(&cluster, 600, "three", "");
    know_each_other(&[&a, &b, &c]);
    // One that has lost all it knew.
    etcd.process.kill();
    std::fs::remove_dir_all(&etcd.data).unwrap();
    etcd.start_again();
    let d = etcd.host(&cluster, 600, "four", "");
    know_each_other(&[&a, &b, &c, &d]);
    // And one that is away when a host ends keeps nobody.
    etcd.process.kill();
    c.stop();
}

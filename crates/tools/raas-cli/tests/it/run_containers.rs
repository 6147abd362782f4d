//! `raas run` in network namespaces of its own, as containers and pods have them: one daemon, whose socket all see, and
//! veth pairs between the namespaces. Each program has a user, mount and PID namespace of its own too.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::rig::namespace::in_namespace;
use crate::rig::{Cluster, Daemon, Running, run, wait_until};

const SIDECAR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging/kubernetes/sidecar.yaml");
const CLIENT: &str = "10.77.0.2";
const SERVER: &str = "10.77.0.3";

/// A network namespace, as long as it is there.
struct Net(Running);

impl Net {
    fn new() -> Self {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "--", "sh", "-ec", "ip link set lo up; echo here; exec sleep 1000"]).stdin(Stdio::null());
        let mut holder = Running::start(&mut holder);
        holder.wait_for("here");
        Self(holder)
    }

    /// What is added runs in it.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.pid())).arg("--").stdin(Stdio::null());
        command
    }

    fn sh(&self, script: &str) {
        let ended = run(self.enter().args(["sh", "-ec", script]));
        assert_eq!(ended.code(), 0, "{script}: {ended:?}");
    }

    /// A program in a container in this network, under `raas run` or as it is.
    fn program(&self, daemon: &Daemon, is_run: bool, words: &[&str]) -> Command {
        const ENTER: &str = "mount -t proc none /proc; mount -t tmpfs none /dev/shm; exec \"$@\"";
        let mut command = self.enter();
        command.args(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]);
        command.args(["--", "sh", "-ec", ENTER, "sh"]).env("RAAS_SOCKET", &daemon.socket);
        if is_run {
            command.arg(env!("CARGO_BIN_EXE_raas")).args(["run", "--"]);
        }
        command.args(words);
        command
    }
}

/// A veth pair between two namespaces, with an address at each end.
fn join((a, first): (&Net, &str), (b, second): (&Net, &str)) {
    static LAST: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let (x, y) = (format!("veth{n}x"), format!("veth{n}y"));
    let [p, q] = [a, b].map(|net| net.0.pid().to_string());
    let made = run(Command::new("ip")
        .args(["link", "add", &x, "netns", &p, "type", "veth", "peer", "name", &y, "netns", &q])
        .stdin(Stdio::null()));
    assert_eq!(made.code(), 0, "{made:?}");
    a.sh(&format!("ip addr add {first}/24 dev {x}; ip link set {x} up"));
    b.sh(&format!("ip addr add {second}/24 dev {y}; ip link set {y} up"));
}

fn script(name: &str) -> String {
    format!("{}/tests/it/run/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// An echo server for one connection; its port.
fn server(net: &Net, daemon: &Daemon, is_run: bool, ip: &str) -> (Running, String) {
    let mut server = Running::start(&mut net.program(daemon, is_run, &["python3", &script("echo_server.py"), ip, "1"]));
    let port = server.port();
    (server, port)
}

/// A client that ends with its stdin.
fn client(
    net: &Net,
    daemon: &Daemon,
    is_run: bool,
    (to, port): (&str, &str),
    (own, own_port): (&str, &str),
) -> Running {
    let words = ["python3", &script("bound_client.py"), to, port, own, own_port];
    Running::start(net.program(daemon, is_run, &words).stdin(Stdio::piped()))
}

fn end(mut client: Running, server: Running) {
    client.stdin().write_all(b"\n").unwrap();
    for ended in [client.end(), server.end()] {
        assert_eq!(ended.code(), 0, "{ended:?}");
    }
}

fn rows(daemon: &Daemon) -> Vec<(String, String)> {
    let rows = run(&mut daemon.command(&["ss", "--json"])).json()["connections"].as_array().unwrap().clone();
    let word = |value: &Value| value.as_str().unwrap().to_string();
    rows.iter().map(|row| (word(&row["path"]), word(&row["reason"]))).collect()
}

fn await_rows(daemon: &Daemon, path: &str, reason: &str) {
    let both = [(); 2].map(|()| (path.to_string(), reason.to_string()));
    wait_until(&format!("two rows of {path}, {reason}; {:?}", rows(daemon)), || rows(daemon) == both);
}

fn in_containers(name: &str, body: impl FnOnce(&Daemon)) {
    in_namespace(&format!("run_containers::{name}"), &[], || {
        let cluster = Cluster::new();
        let daemon = cluster.daemon();
        body(&daemon);
        daemon.stop();
    });
}

#[test]
fn programs_in_two_containers_share_memory() {
    in_containers("programs_in_two_containers_share_memory", |daemon| {
        let (a, b) = (Net::new(), Net::new());
        join((&a, CLIENT), (&b, SERVER));
        let (server, port) = server(&b, daemon, true, SERVER);
        let client = client(&a, daemon, true, (SERVER, &port), (CLIENT, "0"));
        await_rows(daemon, "shm", "same-host");
        end(client, server);
    });
}

#[test]
fn programs_of_one_container_share_memory() {
    in_containers("programs_of_one_container_share_memory", |daemon| {
        let net = Net::new();
        let (server, port) = server(&net, daemon, true, "127.0.0.1");
        let client = client(&net, daemon, true, ("127.0.0.1", &port), ("127.0.0.1", "0"));
        await_rows(daemon, "shm", "same-host");
        end(client, server);
    });
}

/// The pod of packaging/kubernetes/sidecar.yaml, with its own commands: a daemon beside two programs, each in a container
/// of its own, with one network and a directory that all may write to.
#[test]
fn programs_of_a_pod_with_a_daemon_of_its_own_share_memory() {
    in_containers("programs_of_a_pod_with_a_daemon_of_its_own_share_memory", |outer| {
        let (pod, volume) = (Net::new(), tempfile::tempdir().unwrap());
        std::fs::set_permissions(volume.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        pod.sh(&format!("ip addr add {SERVER}/32 dev lo"));
        let here = |text: &str| {
            let text = text.replace("/usr/bin/raas", env!("CARGO_BIN_EXE_raas")).replace("$(POD_IP)", SERVER);
            text.replace("/run/raas", volume.path().to_str().unwrap())
        };
        let manifest = std::fs::read_to_string(SIDECAR).unwrap();
        let commands = manifest.lines().filter_map(|line| line.trim().strip_prefix("command: "));
        let commands: Vec<Vec<String>> = commands.map(|words| serde_json::from_str(&here(words)).unwrap()).collect();
        let socket = manifest.lines().find_map(|line| line.trim().strip_prefix("value: ")).unwrap();
        let container = |words: &[String]| {
            let mut command = pod.program(outer, false, &words.iter().map(String::as_str).collect::<Vec<_>>());
            command.env("RAAS_SOCKET", here(socket));
            command
        };
        let [daemon, probe, server, client] = &commands[..] else { panic!("{commands:?}") };
        let mut daemon = Running::start(&mut container(daemon));
        daemon.wait_for("ready");
        assert_eq!(run(&mut container(probe)).code(), 0);
        let mut server = Running::start(&mut container(server));
        server.wait_for("listening");
        let client = Running::start(&mut container(client));
        let ss = ["/usr/bin/raas", "ss", "--json", "--path", "shm"].map(here);
        wait_until("both ends to share memory", || {
            run(&mut container(&ss)).json()["connections"].as_array().unwrap().len() == 2
        });
        let ended = client.end();
        assert_eq!(ended.code(), 0, "{ended:?}");
    });
}

/// The other end is in the daemon's own namespace: a program of the host, and a container.
#[test]
fn a_container_and_a_program_of_the_host_share_memory() {
    in_containers("a_container_and_a_program_of_the_host_share_memory", |daemon| {
        let net = Net::new();
        let made = run(Command::new("ip").stdin(Stdio::null()).args([
            "link",
            "add",
            "host0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            &net.0.pid().to_string(),
        ]));
        assert_eq!(made.code(), 0, "{made:?}");
        let up = "ip addr add 10.77.0.2/24 dev host0; ip link set host0 up";
        assert_eq!(run(Command::new("sh").args(["-ec", up]).stdin(Stdio::null())).code(), 0);
        net.sh("ip addr add 10.77.0.3/24 dev eth0; ip link set eth0 up");
        // In a container of the outer network.
        let host = Net(Running::start(Command::new("sleep").arg("1000").stdin(Stdio::null())));
        for (accepts, connects, at, from) in [(&net, &host, SERVER, CLIENT), (&host, &net, CLIENT, SERVER)] {
            let (server, port) = server(accepts, daemon, true, at);
            let client = client(connects, daemon, true, (at, &port), (from, "0"));
            await_rows(daemon, "shm", "same-host");
            end(client, server);
            wait_until("the rows to go", || rows(daemon).is_empty());
        }
    });
}

/// Who makes a namespace gives it the addresses of others, and a connection between them.
#[test]
fn a_namespace_with_the_addresses_of_others_gets_none_of_their_connections() {
    in_containers("a_namespace_with_the_addresses_of_others_gets_none_of_their_connections", |daemon| {
        let (a, b, thief) = (Net::new(), Net::new(), Net::new());
        join((&a, CLIENT), (&b, SERVER));
        thief.sh(&format!("ip addr add {CLIENT}/32 dev lo; ip addr add {SERVER}/32 dev lo"));
        let (true_server, port) = server(&b, daemon, false, SERVER);
        let serve = ["python3", &script("fixed_server.py"), SERVER, &port];
        let mut false_server = Running::start(&mut thief.program(daemon, true, &serve));
        false_server.port();
        let mut victim = client(&a, daemon, true, (SERVER, &port), (CLIENT, "40001"));
        let mut false_client = client(&thief, daemon, false, (SERVER, &port), (CLIENT, "40001"));
        victim.wait_for("rounds");
        false_client.wait_for("rounds");
        await_rows(daemon, "tcp", "foreign-socket");
        end(victim, true_server);
        end(false_client, false_server);
    });
}

#[test]
fn a_connection_through_address_translation_stays_on_tcp_and_says_so() {
    in_containers("a_connection_through_address_translation_stays_on_tcp_and_says_so", |daemon| {
        let (a, router, b) = (Net::new(), Net::new(), Net::new());
        join((&a, CLIENT), (&router, "10.77.0.1"));
        join((&b, "10.78.0.3"), (&router, "10.78.0.1"));
        a.sh("ip route add default via 10.77.0.1");
        router.sh("echo 1 > /proc/sys/net/ipv4/ip_forward
             iptables -t nat -A PREROUTING -d 10.77.0.1 -p tcp --dport 8000 -j DNAT --to-destination 10.78.0.3:9000
             iptables -t nat -A POSTROUTING -d 10.78.0.3 -j MASQUERADE");
        let serve = ["python3", &script("fixed_server.py"), "10.78.0.3", "9000"];
        let mut server = Running::start(&mut b.program(daemon, true, &serve));
        server.port();
        let mut client = client(&a, daemon, true, ("10.77.0.1", "8000"), (CLIENT, "0"));
        client.wait_for("rounds");
        await_rows(daemon, "tcp", "foreign-socket");
        end(client, server);
    });
}

//! `encrypt = "required"` under `raas run`: a judge hears the packets between two hosts, which has no byte of a program.

use std::io::Write;
use std::net::IpAddr;
use std::process::{ChildStdin, Command, Stdio};

use crate::rig::namespace::in_namespace;
use crate::rig::{Cluster, Daemon, Running, run, wait_until};

const HOSTS: [&str; 2] = ["10.55.0.1", "10.55.0.2"];
const CLIENT: &str = "the-client-secret";
const SERVER: &str = "the-server-secret";

fn script(name: &str) -> String {
    format!("{}/tests/it/run/{name}", env!("CARGO_MANIFEST_DIR"))
}

struct Sniffer {
    process: Running,
    stdin: ChildStdin,
}

impl Sniffer {
    fn new() -> Self {
        let mut process =
            Running::start(Command::new("python3").args(["-u", &script("sniffer.py")]).stdin(Stdio::piped()));
        process.wait_for("listens");
        let stdin = process.stdin();
        Self { process, stdin }
    }

    /// Whether the packets had these bytes.
    fn heard(&mut self, bytes: &str) -> bool {
        let before = self.process.stdout().lines().count();
        writeln!(self.stdin, "{bytes}").unwrap();
        wait_until("the sniffer", || self.process.stdout().lines().count() > before);
        self.process.stdout().lines().last().unwrap() == format!("{bytes} heard")
    }
}

fn start(cluster: &Cluster, encrypt: &str) -> [Daemon; 2] {
    HOSTS.map(|ip| {
        let ip: IpAddr = ip.parse().unwrap();
        Daemon::start_at(cluster, ip, &["--encrypt", encrypt])
    })
}

fn program(at: &Daemon, is_run: bool, words: &[&str]) -> Command {
    if is_run {
        let mut all = vec!["run", "--summary", "--"];
        all.extend(words);
        return at.command(&all);
    }
    let mut plain = Command::new(words[0]);
    plain.args(&words[1..]).stdin(Stdio::null());
    plain
}

/// A server on the second host and a client on the first, whose last words are awaited.
fn pair(hosts: &[Daemon; 2], is_run: [bool; 2], more: &[&str]) -> (Running, Running) {
    let mut words = vec!["python3".to_string(), script("secret_server.py"), HOSTS[1].to_string()];
    words.extend(more.iter().map(ToString::to_string));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server = Running::start(&mut program(&hosts[1], is_run[1], &words));
    let port = server.port();
    let words = ["python3", &script("secret_client.py"), HOSTS[1], &port, HOSTS[0]];
    let mut client = Running::start(program(&hosts[0], is_run[0], &words).stdin(Stdio::piped()));
    wait_until("the client's last words", || client.has_ended() || client.stdout().lines().count() > 0);
    (server, client)
}

fn end(mut client: Running) -> String {
    client.stdin().write_all(b"\n").unwrap();
    let ended = client.end();
    format!("{}{}", ended.stdout, ended.stderr)
}

fn reasons(at: &Daemon) -> Vec<String> {
    let rows = run(&mut at.command(&["ss", "--json"])).json()["connections"].as_array().unwrap().clone();
    rows.iter().map(|row| row["reason"].as_str().unwrap().to_string()).collect()
}

#[test]
fn no_byte_goes_in_the_clear_before_the_lane() {
    in_namespace("run_encrypted::no_byte_goes_in_the_clear_before_the_lane", &HOSTS, || {
        let cluster = Cluster::new();
        let hosts = start(&cluster, "required");
        for more in [&[][..], &["epoll"]] {
            let mut sniffer = Sniffer::new();
            let (server, client) = pair(&hosts, [true, true], more);
            let said = end(client);
            assert!(said.contains("path 2") && said.contains("1 connection: 1 lane"), "{said}");
            assert_eq!(server.end().code(), 0);
            assert!(!sniffer.heard(CLIENT) && !sniffer.heard(SERVER));
        }
    });
}

#[test]
fn the_judge_hears_what_may_be_in_the_clear() {
    in_namespace("run_encrypted::the_judge_hears_what_may_be_in_the_clear", &HOSTS, || {
        let cluster = Cluster::new();
        let hosts = start(&cluster, "off");
        let mut sniffer = Sniffer::new();
        let (server, client) = pair(&hosts, [true, true], &[]);
        let said = end(client);
        assert!(said.contains("path "), "{said}");
        assert_eq!(server.end().code(), 0);
        assert!(sniffer.heard(CLIENT) && sniffer.heard(SERVER));
    });
}

#[test]
fn an_end_alone_is_refused_and_says_why() {
    in_namespace("run_encrypted::an_end_alone_is_refused_and_says_why", &HOSTS, || {
        let cluster = Cluster::new();
        let hosts = start(&cluster, "required");
        let mut sniffer = Sniffer::new();
        let (server, client) = pair(&hosts, [true, false], &[]);
        assert_eq!(reasons(&hosts[0]), ["not-encrypted"]);
        let said = end(client);
        assert!(said.contains("failed EACCES") && said.contains("encrypt = \"required\""), "{said}");
        assert!(said.contains("1 connection: 1 tcp: not-encrypted"), "{said}");
        drop(server);
        assert!(!sniffer.heard(CLIENT), "it was sent");
        // The other end: what the plain client sends is its own, and the server says nothing to it.
        let (server, client) = pair(&hosts, [false, true], &[]);
        end(client);
        let ended = server.end();
        assert!(ended.stdout.contains("failed EACCES"), "{ended:?}");
        assert!(sniffer.heard(CLIENT) && !sniffer.heard(SERVER));
    });
}

#[test]
fn connections_of_one_host_are_not_held_up() {
    in_namespace("run_encrypted::connections_of_one_host_are_not_held_up", &HOSTS, || {
        let cluster = Cluster::new();
        let [_first, second] = start(&cluster, "required");
        let mut server =
            Running::start(&mut program(&second, false, &["python3", &script("secret_server.py"), HOSTS[1]]));
        let port = server.port();
        let words = ["python3", &script("secret_client.py"), HOSTS[1], &port, HOSTS[1]];
        let mut client = Running::start(program(&second, true, &words).stdin(Stdio::piped()));
        client.wait_for("path ");
        let said = end(client);
        assert!(said.contains("1 connection: 1 tcp: not-met"), "{said}");
    });
}

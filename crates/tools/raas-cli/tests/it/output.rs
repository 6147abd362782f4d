//! Stdout that nobody reads ends a command quietly, stdout that cannot be written fails it, and a closed stderr ends
//! nothing.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::rig::{Cluster, Daemon, Running, raas, run, wait_until};

/// Every command that ends by itself and prints something.
fn commands(a: &Daemon, b: &Daemon) -> Vec<Command> {
    let peer = b.ip.to_string();
    let server = format!("{peer}:4800");
    let commands: [&[&str]; 16] = [
        &["--help"],
        &["--version"],
        &["ss", "--help"],
        &["ss"],
        &["ss", "--json"],
        &["stat"],
        &["stat", "--json"],
        &["stat", "--watch", "0.01"],
        &["stat", "--watch", "0.01", "--json"],
        &["why", &peer],
        &["why", &peer, "--json"],
        &["device"],
        &["lane", "reset", "--json"],
        &["man"],
        &["completions", "bash"],
        &["perf", "lat", &server, "--seconds", "0.1"],
    ];
    commands.iter().map(|args| a.command(args)).collect()
}

fn server(b: &Daemon) -> Running {
    let mut server = Running::start(&mut b.command(&["perf", "server"]));
    server.wait_for("listening on");
    server
}

#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let _server = server(&b);
    for mut command in commands(&a, &b) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), &*said), (Some(0), ""), "{command:?}");
    }
    // What was found still decides.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = a.command(&["doctor", "--peer", "127.0.0.77"]).stdout(writer).output().unwrap();
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    a.stop();
    b.stop();
}

#[test]
fn a_full_disk_fails_every_command() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let _server = server(&b);
    for mut command in commands(&a, &b) {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{command:?}: {said}");
        assert!(said.contains("stdout: No space left"), "{command:?}: {said}");
    }
    a.stop();
    b.stop();
}

#[test]
fn a_closed_stderr_ends_nothing() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let target = cluster.dir.path().join("target");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = b.command(&["recv", "7000", "-o"]);
    let mut receiver = command.arg(&target).stderr(writer).spawn().unwrap();
    let at = format!("{}:7000", b.ip);
    wait_until("the receiver", || run(&mut a.command(&["send", "/proc/self/status", &at])).code() == 0);
    assert!(receiver.wait().unwrap().success());
    assert!(std::fs::read_to_string(&target).unwrap().contains("Name:\traas"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = raas().args(["ss", "--socket", "/nonexistent/s"]).stderr(writer).output().unwrap();
    assert_eq!(ended.status.code(), Some(3));
    a.stop();
    b.stop();
}

#[test]
fn a_receiver_whose_reader_leaves_ends_quietly_and_its_sender_knows() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let (reader, writer) = std::io::pipe().unwrap();
    let mut receiver = b.command(&["recv", "7000"]);
    let mut receiver = receiver.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(receiver.stderr.take().unwrap());
    let mut where_it_listens = String::new();
    said.read_line(&mut where_it_listens).unwrap();
    let mut sender = Running::start(a.command(&["send", "-", &format!("{}:7000", b.ip)]).stdin(Stdio::piped()));
    let mut stdin = sender.stdin();
    drop(reader);
    // Until the reset comes back.
    while stdin.write_all(&[7; 65_536]).is_ok() {}
    assert_eq!(sender.end().code(), 1);
    let mut more = String::new();
    said.read_to_string(&mut more).unwrap();
    assert_eq!(receiver.wait().unwrap().code(), Some(1));
    assert!(!where_it_listens.is_empty() && more.is_empty(), "only where it listened: {where_it_listens}{more}");
    a.stop();
    b.stop();
}

#[test]
fn tools_say_nothing_on_stderr_that_nobody_asked_for() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = server(&b);
    let (peer, at) = (b.ip.to_string(), format!("{}:4800", b.ip));
    for args in
        [&["why", &*peer][..], &["perf", "lat", &at, "--seconds", "0.1"], &["perf", "bw", &at, "--seconds", "0.1"]]
    {
        let ended = run(&mut a.command(args));
        assert_eq!((ended.code(), &*ended.stderr), (0, ""), "{args:?}");
    }
    assert_eq!(server.stderr(), "");
    a.stop();
    b.stop();
}

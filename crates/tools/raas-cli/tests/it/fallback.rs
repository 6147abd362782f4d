//! Connections over kernel TCP in `raas ss` and `raas why`, against a daemon that finds no other.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::rig::{Cluster, Daemon, Running, address, pattern, raas, run, wait_until};
use raas::{ConnectOptions, Fallback, FallbackCause, ListenOptions, Session};
use serde_json::{Value, json};

fn rows(at: &Daemon) -> Vec<Value> {
    run(&mut at.command(&["ss", "--json"])).json()["connections"].as_array().unwrap().clone()
}

/// The daemon learns of a connection after the program has it.
fn wait_for_rows(at: &Daemon, count: usize) -> Vec<Value> {
    wait_until("raas ss to show the connections", || rows(at).len() == count);
    rows(at)
}

#[test]
fn a_connection_over_kernel_tcp_is_shown_and_explained() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let session: Session = daemon.session("fallback");
    let peer = TcpListener::bind((address(), 0)).unwrap();
    let to = peer.local_addr().unwrap();
    let asked = ConnectOptions::new().fallback(Fallback::Tcp);
    let error = ConnectOptions::new().connect(&session, to).unwrap_err();
    assert_eq!(error.reason(), Some(raas::Reason::PeerUnreachable), "not asked for: {error:?}");
    let mut stream = asked.connect(&session, to).unwrap();
    assert_eq!(stream.fallback(), Some(FallbackCause::PeerUnreachable));
    stream.write_all(b"over the kernel").unwrap();
    let mut got = [0; 15];
    peer.accept().unwrap().0.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"over the kernel");

    let shown = wait_for_rows(&daemon, 1);
    let row = &shown[0];
    assert_eq!((&row["path"], &row["reason"]), (&json!("tcp"), &json!("tcp-fallback")), "{row}");
    assert_eq!((&row["peer"], &row["app_pid"]), (&json!(to.to_string()), &json!(std::process::id())), "{row}");
    let id = row["id"].as_u64().unwrap().to_string();
    let told = run(&mut daemon.command(&["why", &id, "--json"]));
    assert_eq!(told.code(), 0, "{told:?}");
    let told = told.json();
    assert_eq!((&told["path"], &told["reason"]), (&json!("tcp"), &json!("tcp-fallback")), "{told}");
    assert_eq!((&told["verb"], &told["lane"]), (&Value::Null, &Value::Null), "{told}");
    let others: Vec<_> = told["alternatives"].as_array().unwrap().iter().map(|a| &a["path"]).collect();
    assert_eq!(others, ["shm", "lane", "leased", "tcp-direct"]);

    // The other side of such a connection: a listener that was asked to take it.
    let listener = ListenOptions::new().fallback(Fallback::Tcp).bind(&session, (daemon.ip, 0)).unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, from) = listener.accept().unwrap();
    assert_eq!((accepted.fallback(), from), (Some(FallbackCause::Accepted), caller.local_addr().unwrap()));
    let shown = wait_for_rows(&daemon, 2);
    assert!(shown.iter().any(|row| row["peer"] == json!(from.to_string()) && row["path"] == "tcp"), "{shown:?}");
    drop(stream);
    assert_eq!(wait_for_rows(&daemon, 1)[0]["peer"], json!(from.to_string()));
    // What a program leaves open goes with it.
    drop((accepted, listener, session));
    wait_for_rows(&daemon, 0);
    daemon.stop();
}

/// The environment of a host without a daemon.
fn without(cluster: &Cluster, args: &[&str]) -> std::process::Command {
    let mut command = raas();
    command.args(args).env("RAAS_SOCKET", cluster.dir.path().join("nobody.sock"));
    command
}

#[test]
fn a_file_goes_over_kernel_tcp_where_that_was_asked_for_and_both_ends_say_so() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let (source, target) = (cluster.dir.path().join("source"), cluster.dir.path().join("target"));
    let bytes = pattern(3_000_000);
    std::fs::write(&source, &bytes).unwrap();
    let source = source.to_str().unwrap();
    let mut receiver = Running::start(daemon.command(&["recv", "7011", "--fallback", "tcp", "-o"]).arg(&target));
    receiver.wait_for("listening on ");
    let to = format!("{}:7011", daemon.ip);
    // Without asking for it: the usual error.
    assert_eq!(run(&mut without(&cluster, &["send", source, &to])).code(), 3);
    let sent = run(&mut without(&cluster, &["send", source, &to, "--fallback", "tcp"]));
    assert_eq!(sent.code(), 0, "{sent:?}");
    let said = &sent.stderr;
    assert!(said.contains("kernel TCP (tcp-fallback): there is no RaaS daemon on this host"), "{said}");
    assert_eq!(said.lines().count(), 1, "said once: {said}");
    let received = receiver.end();
    assert_eq!(received.code(), 0, "{received:?}");
    assert!(received.stderr.contains("the peer connected over kernel TCP"), "{received:?}");
    assert!(std::fs::read(&target).unwrap() == bytes, "the file arrived changed");
    // Nobody there, on either way.
    let refused = run(&mut without(&cluster, &["send", source, &to, "--fallback", "tcp"]));
    assert_eq!(refused.code(), 4, "{refused:?}");
    daemon.stop();
}

#[test]
fn a_receiver_that_dies_over_kernel_tcp_fails_the_sender() {
    let cluster = Cluster::new();
    let ip = address();
    let mut receiver = Running::start(&mut without(&cluster, &["recv", "7012", "--fallback", "tcp"]));
    // The whole line: it begins as the one before it.
    receiver.wait_for("listening on 0.0.0.0:");
    assert!(receiver.stderr().contains("kernel TCP alone"), "{}", receiver.stderr());
    let mut send = without(&cluster, &["send", "-", &format!("{ip}:7012"), "--fallback", "tcp"]);
    let mut sender = Running::start(send.stdin(std::process::Stdio::piped()));
    let mut stdin = sender.stdin();
    stdin.write_all(b"hello").unwrap();
    receiver.wait_for("hello");
    receiver.kill();
    // Everything was read, so the kernel closes in order for the dead.
    drop(stdin);
    let ended = sender.end();
    assert_eq!(ended.code(), 1, "{ended:?}");
}

#[test]
fn perf_says_path_and_reason() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let elsewhere = address();
    let mut server = Running::start(&mut without(&cluster, &["perf", "server", "4811", "--fallback", "tcp"]));
    server.wait_for("listening on ");
    let to = format!("{elsewhere}:4811");
    let ended = run(&mut daemon.command(&["perf", "lat", &to, "--fallback", "tcp", "--seconds", "0.2", "--json"]));
    assert_eq!(ended.code(), 0, "{ended:?}");
    let report = ended.json();
    assert_eq!((&report["path"], &report["cpu_client_daemon_seconds"]), (&json!("tcp"), &Value::Null), "{report}");
    assert_eq!(report["fallback"], "the peer's RaaS daemon cannot be reached");
    assert!(report["tcp_congestion"].is_string(), "{report}");
    assert!(ended.stderr.contains("over kernel TCP (tcp-fallback)"), "{ended:?}");
    assert_eq!(run(&mut daemon.command(&["perf", "lat", &to, "--seconds", "0.2"])).code(), 3);
    assert_eq!(run(&mut daemon.command(&["perf", "lat", &to, "--fallback", "udp"])).code(), 2);
    daemon.stop();
}

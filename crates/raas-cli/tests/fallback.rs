//! Connections over kernel TCP in `raas ss` and `raas why`, against a daemon that finds no other.

mod rig;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use raas::{ConnectOptions, Fallback, FallbackCause, ListenOptions, Session};
use rig::{Cluster, Daemon, address, run, wait_until};
use serde_json::{Value, json};

fn rows(at: &Daemon) -> Vec<Value> {
    run(&mut at.command(&["ss", "--json"])).json()["connections"].as_array().unwrap().clone()
}

/// The daemon hears of a connection after the program has it.
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
    assert_eq!(others, ["shm", "lane", "leased"]);

    // The other side of such a connection: a listener that was asked to take it.
    let listener = ListenOptions::new().fallback(Fallback::Tcp).bind(&session, (daemon.ip, 0)).unwrap();
    let caller = TcpStream::connect(listener.local_addr()).unwrap();
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

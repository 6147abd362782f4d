//! `raas lane reset`: connections go on, and users without the right are refused.

use std::io::{Read, Write};

use crate::rig::{Cluster, Daemon, OpenHost, address, raas, run, wait_until};
use raas::{Listener, Stream};
use serde_json::{Value, json};

fn resets(at: &Daemon) -> u64 {
    let stat = run(&mut at.command(&["stat", "--json"])).json();
    stat["lanes"].as_array().unwrap().iter().map(|lane| lane["resets"].as_u64().unwrap()).sum()
}

#[test]
fn a_lane_is_reset_under_a_connection_that_goes_on() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let listener = Listener::bind_with(&b.session("server"), (b.ip, 0)).unwrap();
    let mut client = Stream::connect_with(&a.session("client"), listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let peer = b.ip.to_string();
    for (round, args) in
        [vec!["lane", "reset", &peer, "--json"], vec!["lane", "reset", "--json"]].into_iter().enumerate()
    {
        let ended = run(&mut a.command(&args));
        assert_eq!(ended.code(), 0, "{ended:?}");
        assert_eq!(ended.json(), json!({"schema": "raas.lane/1", "reset": [peer]}));
        wait_until("both ends to count it", || resets(&a) == round as u64 + 1 && resets(&b) == resets(&a));
        client.write_all(b"still here").unwrap();
        let mut got = [0; 10];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still here");
    }
    assert!(run(&mut a.command(&["lane", "reset", &peer])).stdout.contains(&format!("the lane to {peer}")));
    let nowhere = run(&mut a.command(&["lane", "reset", &address().to_string()]));
    assert_eq!(nowhere.code(), 1, "{nowhere:?}");
    assert!(nowhere.stderr.contains("no lane to"), "{nowhere:?}");
    assert_eq!(run(&mut a.command(&["lane", "reset", "no such host"])).code(), 2);
    drop((client, server, listener));
    a.stop();
    b.stop();
}

#[test]
fn a_host_without_lanes_or_daemon_is_told_apart() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    assert_eq!(run(&mut daemon.command(&["lane", "reset", "--json"])).json()["reset"], Value::Array(Vec::new()));
    daemon.stop();
    let mut command = raas();
    command.args(["lane", "reset", "127.0.0.1", "--socket", "/nonexistent/raasd.sock"]);
    assert_eq!(run(&mut command).code(), 3);
}

#[test]
fn another_user_is_refused() {
    let cluster = Cluster::new();
    let Some(host) = OpenHost::start(&cluster, "another_user_is_refused", "") else { return };
    let refused = run(&mut host.as_nobody(&["lane", "reset", "127.0.0.1"]));
    assert_eq!(refused.code(), 4, "{refused:?}");
    assert!(refused.stderr.contains("only root and the daemon's own user"), "{refused:?}");
    // It may ask.
    assert_eq!(run(&mut host.as_nobody(&["stat"])).code(), 0);
}

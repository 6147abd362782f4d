//! `raas ss` with its filters, `raas stat --watch`, and that docs/operate/commands.md names every key that they print.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::rig::{Cluster, Daemon, Running, raas, run, wait_until};
use raas::{DatagramSocket, Listener, Stream};
use serde_json::Value;

const DOCUMENTATION: &str = include_str!("../../../../../docs/operate/commands.md");

/// Ids of the connections that `raas ss` shows with these options, in order, and how many datagram sockets.
fn shown(daemon: &Daemon, options: &[&str]) -> (Vec<u64>, usize) {
    let ended = run(daemon.command(&["ss", "--json"]).args(options));
    assert_eq!(ended.code(), 0, "{options:?}: {ended:?}");
    let told = ended.json();
    let rows = told["connections"].as_array().unwrap();
    let mut ids: Vec<u64> = rows.iter().map(|row| row["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    (ids, told["datagram_sockets"].as_array().unwrap().len())
}

#[test]
fn filters_leave_what_was_asked_for() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = Listener::bind_with(&b.session("server"), (b.ip, 7000)).unwrap();
    let mut near = Running::start(&mut a.command(&["recv", "7001"]));
    near.wait_for("listening on");
    let client = a.session("client");
    let far_stream = Stream::connect_with(&client, (b.ip, 7000)).unwrap();
    let near_stream = Stream::connect_with(&client, (a.ip, 7001)).unwrap();
    let _accepted = server.accept().unwrap();
    wait_until("the other end on this host", || shown(&a, &["--state", "established"]).0.len() == 3);
    let _socket = DatagramSocket::bind_with(&client, (a.ip, 7100)).unwrap();
    let (all, sockets) = shown(&a, &[]);
    assert_eq!((all.len(), sockets), (3, 1), "one to the other host, two ends of one on this host");
    let far = |options: &[&str]| {
        let (ids, sockets) = shown(&a, options);
        assert_eq!((ids.len(), sockets), (1, 0), "{options:?}");
    };
    let peer = b.ip.to_string();
    far(&["--peer", &peer]);
    far(&["--peer", &format!("{peer}:7000")]);
    far(&["--path", "lane"]);
    far(&["--port", "7000"]);
    assert_eq!(shown(&a, &["--peer", &format!("{peer}:7001")]).0.len(), 0);
    assert_eq!(shown(&a, &["--path", "shm"]).0.len(), 2);
    assert_eq!(shown(&a, &["--path", "shm", "--path", "lane"]), (all.clone(), 0));
    assert_eq!(shown(&a, &["--port", "7100"]), (vec![], 1));
    assert_eq!(shown(&a, &["--state", "established"]), (all.clone(), 0));
    assert_eq!(shown(&a, &["--state", "closing"]), (vec![], 0));
    let pid = std::process::id().to_string();
    let other = near.pid().to_string();
    assert_eq!(shown(&a, &["--pid", &pid]).0.len(), 2);
    assert_eq!(shown(&a, &["--pid", &other, "--pid", &pid]), (all.clone(), 1));
    assert_eq!(shown(&a, &["--pid", "1"]), (vec![], 0));
    assert_eq!(shown(&a, &["--program", "client"]), shown(&a, &["--pid", &pid]));
    assert_eq!(shown(&a, &["--program", "raas recv"]), shown(&a, &["--pid", &other]));
    far(&["--program", "client", "--path", "lane"]);
    assert_eq!(shown(&a, &["--program", "server"]), (vec![], 0));
    let text = run(&mut a.command(&["ss"])).stdout;
    assert!(text.contains("PROGRAM") && text.contains("raas recv"), "{text}");
    assert_eq!(run(a.command(&["ss"]).args(["--peer", "no such host"])).code(), 1);
    for bad in [&["--state", "asleep"][..], &["--path", "pigeon"], &["--port", "x"]] {
        assert_eq!(run(a.command(&["ss"]).args(bad)).code(), 2, "{bad:?}");
    }
    drop((far_stream, near_stream));
}

#[test]
fn narrow_terminals_get_whole_lines() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = Listener::bind_with(&b.session("server"), (b.ip, 7000)).unwrap();
    let _stream = Stream::connect_with(&a.session("client"), (b.ip, 7000)).unwrap();
    let _accepted = server.accept().unwrap();
    for columns in [60usize, 80, 120, 200] {
        for args in [&["ss"][..], &["stat"], &["doctor"], &["device"]] {
            let text = run(a.command(args).env("COLUMNS", columns.to_string())).stdout;
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns, "{args:?} at {columns}: {widest}\n{text}");
            assert!(args != ["ss"] || text.contains(&format!("{}:7000", b.ip)), "{columns}:\n{text}");
        }
    }
}

#[test]
fn stat_is_watched_until_the_reader_leaves() {
    let cluster = Cluster::new();
    let a = cluster.daemon();
    for (args, marks) in
        [(&["stat", "--watch", "0.05"][..], "last "), (&["stat", "--watch", "0.05", "--json"], "schema")]
    {
        let mut child = a.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        for _ in 0..3 {
            let line = lines.find(|line| line.contains(marks)).unwrap();
            assert!(marks == "last " || serde_json::from_str::<Value>(&line).unwrap()["schema"] == "raas.stat/1");
        }
        drop(lines);
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), ended.stderr.len()), (Some(0), 0), "{ended:?}");
    }
    for bad in ["0", "x", "-1"] {
        assert_eq!(run(raas().args(["stat", &format!("--watch={bad}")])).code(), 2);
    }
    let socket = a.socket.clone();
    a.stop();
    let ended = run(raas().args(["stat", "--watch", "--socket"]).arg(socket));
    assert_eq!(ended.code(), 3);
}

/// All keys of objects in `value`, but not below keys whose content is named by others (addresses, peers).
fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            found.push(key.clone());
            keys(value, found);
        }),
        Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn every_key_is_documented() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = Listener::bind_with(&b.session("server"), (b.ip, 7000)).unwrap();
    let client = a.session("client");
    let _stream = Stream::connect_with(&client, (b.ip, 7000)).unwrap();
    let _accepted = server.accept().unwrap();
    let _socket = DatagramSocket::bind_with(&client, (a.ip, 7100)).unwrap();
    let mut found = Vec::new();
    for args in [&["stat", "--json"][..], &["ss", "--json"]] {
        keys(&run(&mut a.command(args)).json(), &mut found);
    }
    assert!(found.len() > 100, "{found:?}");
    found.retain(|key| !DOCUMENTATION.contains(&format!("`{key}`")));
    assert!(found.is_empty(), "not in docs/operate/commands.md: {found:?}");
}

/// What a program carried by connections of one host does not become less when they are closed in order.
#[test]
fn bytes_of_one_host_stay_counted_when_their_connections_are_closed() {
    const CONNECTIONS: u64 = 5;
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let session = |name: &str| {
        let builder = raas::Session::builder().socket(&daemon.socket).name(name).background(true);
        builder.connect().unwrap()
    };
    let (server, client) = (session("server"), session("client"));
    let listener = Listener::bind_with(&server, (daemon.ip, 7000)).unwrap();
    for _ in 0..CONNECTIONS {
        let mut to = Stream::connect_with(&client, (daemon.ip, 7000)).unwrap();
        let (mut from, _) = listener.accept().unwrap();
        to.write_all(&[1; 3000]).unwrap();
        from.read_exact(&mut [0; 3000]).unwrap();
        from.write_all(&[2; 50]).unwrap();
        to.read_exact(&mut [0; 50]).unwrap();
    }
    wait_until("all are closed", || shown(&daemon, &[]).0.is_empty());
    let told = run(&mut daemon.command(&["stat", "--json"])).json();
    let of = |name: &str| {
        let app = told["apps"].as_array().unwrap().iter().find(|app| app["name"] == name).unwrap();
        [&app["tx_bytes"], &app["rx_bytes"]].map(|bytes| bytes.as_u64().unwrap())
    };
    let (asked, answered) = (CONNECTIONS * 3000, CONNECTIONS * 50);
    assert_eq!((of("client"), of("server")), ([asked, answered], [answered, asked]));
}

//! `raas trace` between two hosts: both look at the same messages, stages follow each other, and a file has all of them.
//! On one host: the bytes that connections carried.

use std::io::{Read, Write};
use std::time::Duration;

use crate::rig::{Cluster, Daemon, Running, run, wait_until};
use raas::{Listener, Stream};
use serde_json::Value;

/// Bytes of a stream from one message that is looked at to the next (docs/operate/metrics.md).
const EVERY: u64 = 16_384;

fn traced(daemon: &Daemon, options: &[&str]) -> Value {
    let ended = run(daemon.command(&["trace", "--json"]).args(options));
    assert_eq!(ended.code(), 0, "{ended:?}");
    ended.json()
}

/// Numbers of the bytes for which messages with this stage were looked at.
fn offsets(told: &Value, stage: &str) -> Vec<u64> {
    let messages = told["messages"].as_array().unwrap().iter();
    let with = messages.filter(|m| m["stages"].as_array().unwrap().iter().any(|s| s["name"] == stage));
    with.map(|m| m["offset"].as_u64().unwrap()).collect()
}

#[test]
fn both_hosts_look_at_the_same_messages() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = Listener::bind_with(&b.session("server"), (b.ip, 7000)).unwrap();
    let mut sender = Stream::connect_with(&a.session("client"), (b.ip, 7000)).unwrap();
    let (mut receiver, _) = server.accept().unwrap();
    let nothing = run(&mut a.command(&["trace"]));
    assert!(nothing.stdout.contains("no message was looked at"), "{nothing:?}");
    let message = [7; 64];
    for _ in 0..4 * EVERY / 64 {
        sender.write_all(&message).unwrap();
        receiver.read_exact(&mut [0; 64]).unwrap();
    }
    let expected: Vec<u64> = (0..4).map(|n| n * EVERY).collect();
    wait_until("the last message's end", || offsets(&traced(&a, &[]), "tx-delivery").len() == 4);
    wait_until("the last message's reading", || offsets(&traced(&b, &[]), "rx-application").len() == 4);
    let (sent, received) = (traced(&a, &[]), traced(&b, &[]));
    assert_eq!(offsets(&sent, "tx-delivery"), expected);
    assert_eq!(offsets(&received, "rx-application"), expected);
    for m in sent["messages"].as_array().unwrap() {
        let stage = |name: &str| m["stages"].as_array().unwrap().iter().find(|s| s["name"] == name).unwrap().clone();
        let (engine, device, delivery) = (stage("tx-engine"), stage("tx-device"), stage("tx-delivery"));
        let doorbell = stage("tx-doorbell");
        assert_eq!(doorbell["to_ns"], engine["from_ns"]);
        assert!(doorbell["from_ns"].as_u64() <= doorbell["to_ns"].as_u64(), "{m}");
        assert_eq!((&engine["to_ns"], &engine["to_ns"]), (&device["from_ns"], &delivery["from_ns"]));
        assert!(engine["from_ns"].as_u64() <= engine["to_ns"].as_u64(), "{m}");
        assert!(device["to_ns"].as_u64() <= delivery["to_ns"].as_u64(), "{m}");
    }
    // Both daemons are on this host, so their clocks are one: what was published there was sent before.
    let from = |told: &Value, at: usize, stage: usize, key: &str| told["messages"][at]["stages"][stage][key].as_u64();
    assert!(from(&sent, 3, 0, "from_ns") < from(&received, 3, 0, "from_ns"), "{sent} {received}");
    assert!(from(&received, 3, 0, "from_ns") < from(&sent, 3, 3, "to_ns"), "{sent} {received}");
    let whole = run(&mut a.command(&["stat", "--json"])).json();
    assert_eq!(
        (&whole["stages"][0]["name"], &whole["stages"][0]["count"]),
        (&"tx-doorbell".into(), &4.into()),
        "{whole}"
    );
    let id = sent["messages"][0]["connection"].as_u64().unwrap();
    assert_eq!(offsets(&traced(&a, &[&id.to_string()]), "tx-engine").len(), 4);
    assert_eq!(run(&mut a.command(&["trace", "4711"])).code(), 1);
    let text = run(&mut a.command(&["trace"]));
    assert!(text.stdout.contains("tx-delivery") && text.stdout.contains(" us"), "{text:?}");
    let file = cluster.dir.path().join("trace.json");
    assert_eq!(run(a.command(&["trace", "--perfetto"]).arg(&file)).code(), 0);
    let events: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(events["traceEvents"].as_array().unwrap().len(), 4 * 2 * (1 + 4));
}

#[test]
fn with_seconds_it_shows_what_comes_and_not_what_was() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = Listener::bind_with(&b.session("server"), (b.ip, 7000)).unwrap();
    let mut sender = Stream::connect_with(&a.session("client"), (b.ip, 7000)).unwrap();
    let (mut receiver, _) = server.accept().unwrap();
    // A reader says what it has read when it reads on, so the message that is looked at is not the last.
    let mut exchange = || {
        for _ in 0..EVERY / 1024 {
            sender.write_all(&[7; 1024]).unwrap();
            receiver.read_exact(&mut [0; 1024]).unwrap();
        }
    };
    let mut before = Vec::new();
    wait_until("a message", || {
        exchange();
        before = offsets(&traced(&a, &[]), "tx-delivery");
        !before.is_empty()
    });
    // On a busy machine a second may be too short for a message.
    wait_until("a second with a message", || {
        let mut waiting = Running::start(&mut a.command(&["trace", "--json", "--seconds", "1"]));
        while !waiting.has_ended() {
            exchange();
        }
        let ended = waiting.end();
        assert_eq!(ended.code(), 0, "{ended:?}");
        let shown = offsets(&ended.json(), "tx-delivery");
        assert!(shown.iter().all(|offset| !before.contains(offset)), "{before:?} {ended:?}");
        !shown.is_empty()
    });
}

#[test]
fn connections_of_one_host_show_the_bytes_that_pass_no_engine() {
    const BEFORE: u64 = 1_000_000;
    let cluster = Cluster::new();
    let a = cluster.daemon();
    let server = Listener::bind_with(&a.session("server"), (a.ip, 7000)).unwrap();
    // Who connects on one host waits for the other program's library to answer.
    let accepting = std::thread::spawn(move || server.accept().unwrap());
    let mut sender = Stream::connect_with(&a.session("client"), (a.ip, 7000)).unwrap();
    let (mut receiver, _) = accepting.join().unwrap();
    let mut exchange = |bytes: u64| {
        for _ in 0..bytes / 1000 {
            sender.write_all(&[7; 1000]).unwrap();
            receiver.read_exact(&mut [0; 1000]).unwrap();
        }
    };
    let of_client = |told: &Value| {
        let rows = told["same_host"].as_array().unwrap().iter();
        rows.filter(|row| row["peer"] == format!("{}:7000", a.ip)).map(|row| row["tx_bytes"].as_u64().unwrap()).max()
    };
    assert_eq!(of_client(&traced(&a, &[])), None, "it has carried nothing");
    exchange(BEFORE);
    wait_until("all bytes", || of_client(&traced(&a, &[])) == Some(BEFORE));
    assert_eq!(traced(&a, &[])["same_host"].as_array().unwrap().len(), 2, "a row for each end, as in `raas ss --json`");
    let text = run(&mut a.command(&["trace"])).stdout;
    assert!(text.contains("shared memory") && !text.contains("no message was looked at"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(":7000")).count(), 1, "one line a connection:\n{text}");
    // On a busy machine a second may be too short for a byte.
    wait_until("a second with bytes", || {
        let mut waiting = Running::start(&mut a.command(&["trace", "--json", "--seconds", "1"]));
        let mut carried = 0;
        while !waiting.has_ended() {
            if carried < BEFORE / 2 {
                exchange(1000);
                carried += 1000;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = waiting.end();
        let shown = of_client(&ended.json());
        assert!(shown <= Some(carried), "what was before is not counted: {ended:?}");
        shown > Some(0)
    });
}

//! Two daemons that reach each other over IPv6, on addresses of a network namespace that the test makes, without any
//! right on the host.

use std::io::Write;
use std::net::IpAddr;
use std::process::Stdio;

use crate::rig::namespace::in_namespace;
use crate::rig::{Cluster, Daemon, Running, pattern, run, wait_until};

/// The two hosts: addresses of the namespace's loopback interface, of the range for private use.
const HOSTS: [&str; 2] = ["fd00:7261:6173::1", "fd00:7261:6173::2"];
const PORT: u16 = 7031;
const FILE_BYTES: usize = 3_000_000;

#[test]
fn two_daemons_on_ipv6_carry_a_stream() {
    const NAME: &str = "ipv6::two_daemons_on_ipv6_carry_a_stream";
    in_namespace(NAME, &HOSTS, carry_a_stream);
}

/// Inside: from the first host to the second, over the lane.
fn carry_a_stream() {
    let cluster = Cluster::new();
    let [a, b] = HOSTS.map(|host| Daemon::start(&cluster, &cluster.key(), host.parse::<IpAddr>().unwrap()));
    let to = format!("[{}]:{PORT}", b.ip);
    let mut receiver = Running::start(&mut b.command(&["recv", &PORT.to_string()]));
    receiver.wait_for("listening on ");
    let mut sender = Running::start(a.command(&["send", "-", &to]).stdin(Stdio::piped()));
    let bytes = pattern(FILE_BYTES);
    let (first, rest) = bytes.split_at(1000);
    let mut stdin = sender.stdin();
    stdin.write_all(first).unwrap();
    wait_until("the first bytes", || receiver.stdout_bytes() >= first.len());
    for (host, peer) in [(&a, &b), (&b, &a)] {
        let told = run(&mut host.command(&["ss", "--json"])).json();
        let rows = told["connections"].as_array().unwrap();
        let [row] = &rows[..] else { panic!("one connection, not {told}") };
        assert_eq!((&row["path"], &row["reason"]), (&"lane".into(), &"other-host".into()), "{row}");
        for (key, ip) in [("local", host.ip), ("peer", peer.ip)] {
            assert!(row[key].as_str().unwrap().starts_with(&format!("[{ip}]:")), "{row}");
        }
    }
    stdin.write_all(rest).unwrap();
    drop(stdin);
    let sent = sender.end();
    assert_eq!(sent.code(), 0, "{sent:?}");
    let received = receiver.end_bytes();
    assert!(received == bytes, "{} bytes arrived, changed or not all", received.len());
    a.stop();
    b.stop();
}

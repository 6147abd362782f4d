//! An interface whose MTU shrinks under a transfer: the lane gets a path MTU that fits, and nothing is lost. In a
//! network namespace that the test makes, without any right on the host.

use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::namespace::in_namespace;
use crate::rig::{Cluster, Daemon, Running, pattern, run, wait_until};
use raas::{DatagramError, DatagramSocket};

/// The two hosts, of either IP version: addresses of the namespace's loopback interface, of the ranges for private use.
const HOSTS: [[&str; 2]; 2] = [["10.97.0.1", "10.97.0.2"], ["fd00:7261:6174::1", "fd00:7261:6174::2"]];
const PORT: u16 = 7032;
const FILE_BYTES: usize = 3_000_000;

#[test]
fn an_interface_that_gets_narrower_loses_nothing() {
    const NAME: &str = "narrow::an_interface_that_gets_narrower_loses_nothing";
    in_namespace(NAME, HOSTS.as_flattened(), || {
        for wire in ["roce", "iwarp"] {
            HOSTS.into_iter().for_each(|hosts| get_narrower(hosts, wire));
        }
    });
}

fn set_mtu(bytes: &str) {
    let set = run(Command::new("ip").args(["link", "set", "lo", "mtu", bytes]));
    assert_eq!(set.code(), 0, "{set:?}");
}

fn lane(host: &Daemon) -> serde_json::Value {
    run(&mut host.command(&["stat", "--json"])).json()["lanes"][0].clone()
}

/// Inside: from the first host to the second, while the interface shrinks between two parts of a file. A lane on RoCEv2
/// gets another queue pair; TCP finds the path MTU itself. Datagrams get shorter beside either.
fn get_narrower(hosts: [&str; 2], wire: &str) {
    set_mtu("65536");
    let cluster = Cluster::new();
    let [a, b] = hosts.map(|host| Daemon::start_over(&cluster, host.parse::<IpAddr>().unwrap(), wire));
    let to = std::net::SocketAddr::new(b.ip, PORT).to_string();
    let mut receiver = Running::start(&mut b.command(&["recv", &PORT.to_string()]));
    receiver.wait_for("listening on ");
    let mut sender = Running::start(a.command(&["send", "-", &to]).stdin(Stdio::piped()));
    let bytes = pattern(FILE_BYTES);
    let (first, rest) = bytes.split_at(1_000_000);
    let mut stdin = sender.stdin();
    stdin.write_all(first).unwrap();
    wait_until("the first bytes", || receiver.stdout_bytes() >= first.len());
    assert_eq!(lane(&a)["mtu_bytes"], 4096);
    let sessions = [a.session("narrow"), b.session("narrow")];
    let [near, far] = sessions.each_ref().map(|s| DatagramSocket::bind_with(s, "[::]:0").unwrap());
    far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(exchange(&near, &far, 4080), 4080);
    set_mtu("1500");
    stdin.write_all(rest).unwrap();
    drop(stdin);
    let sent = sender.end();
    assert_eq!(sent.code(), 0, "{sent:?}");
    let received = receiver.end_bytes();
    assert!(received == bytes, "{} bytes arrived, changed or not all", received.len());
    let (mtu, incarnation) = if wire == "roce" { (1024, 2) } else { (4096, 1) };
    for host in [&a, &b] {
        let lane = lane(host);
        assert_eq!((&lane["mtu_bytes"], &lane["incarnation"]), (&mtu.into(), &incarnation.into()), "{lane}");
    }
    let why = run(&mut a.command(&["why", &b.ip.to_string()]));
    assert!(wire != "roce" || why.stdout.contains("path MTU 1024"), "{why:?}");
    datagrams_get_shorter(&near, &far);
    drop((near, far, sessions));
    a.stop();
    b.stop();
}

/// Bytes of the datagram that arrives next, after one of `bytes` was sent.
fn exchange(near: &DatagramSocket, far: &DatagramSocket, bytes: usize) -> usize {
    near.send_to(&pattern(bytes), far.local_addr().unwrap()).unwrap();
    far.recv_from(&mut [0; 4096]).unwrap().0
}

/// A socket that learned the way while it was wide: what does not fit is refused with the new limit, after the first.
fn datagrams_get_shorter(near: &DatagramSocket, far: &DatagramSocket) {
    let to = far.local_addr().unwrap();
    let mut refused = None;
    wait_until("a refusal", || {
        refused = near.send_to(&pattern(4080), to).err();
        refused.is_some()
    });
    let refused = refused.and_then(|e| e.downcast::<DatagramError>().ok());
    assert_eq!(refused, Some(DatagramError::TooLong { len: 4080, max: 1008, to }));
    assert_eq!(near.max_payload(to).unwrap(), 1008);
    assert_eq!(exchange(near, far, 1008), 1008);
}

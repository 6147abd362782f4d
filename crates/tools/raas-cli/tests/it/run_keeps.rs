//! `raas run`: connections that stay on kernel TCP or return to it, and why, as `raas ss` shows; and peers that lie about
//! the way there.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use raas::meeting::{Found, Meeting, TcpEnd};
use raas::{ConnectOptions, Stream};
use serde_json::Value;

use crate::rig::{Cluster, Daemon, Running, run, wait_until};

/// A server of one connection that does something to it once it has left TCP, if it does, and echoes on.
const SERVER: &str = r#"
import ctypes, os, socket, sys, time
path = getattr(ctypes.CDLL(None), "raas_run_path", lambda fd: 1)
listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
one, _ = listener.accept()
for round in range(4000):
    one.sendall(one.recv(1))
    if path(one.fileno()) == 2 and round > 100:
        break
print("path", path(one.fileno()), flush=True)
exec(sys.argv[2])
print("done", flush=True)
while data := one.recv(65536):
    one.sendall(data)
"#;

/// A client of such a server that goes on until its connection left TCP at both ends and is back, and then waits.
const CLIENT: &str = r#"
import socket, sys, time
one = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for round in range(4000):
    one.sendall(b"x")
    if not one.recv(1): break
    if round % 50 == 49: time.sleep(0.01)
sys.stdin.readline()
"#;

fn rows(at: &Daemon) -> Vec<Value> {
    run(&mut at.command(&["ss", "--json"])).json()["connections"].as_array().unwrap().clone()
}

fn python(at: &Daemon, words: &[&str]) -> Command {
    at.command(&[&["run", "--strict", "python3", "-c"], words].concat())
}

#[test]
fn what_keeps_a_connection_on_tcp_is_shown() {
    let cases = [
        ("kernel-option", "one.setsockopt(socket.SOL_SOCKET, 60, 1); one.send(b'', 0x4000000)"),
        ("kernel-option", "one.setsockopt(socket.SOL_SOCKET, 47, 10**8)"),
        ("kernel-option", "one.send(b'x', socket.MSG_OOB)"),
        (
            "kernel-signals",
            "import fcntl, signal; signal.signal(signal.SIGIO, signal.SIG_IGN); \
                            fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_ASYNC)",
        ),
        ("unseen-calls", "ctypes.CDLL(None, use_errno=True).syscall(425, 4, ctypes.create_string_buffer(120))"),
    ];
    let cluster = Cluster::new();
    for (reason, what) in cases {
        let daemon = cluster.daemon();
        let ip = daemon.ip.to_string();
        let mut server = Running::start(&mut python(&daemon, &[SERVER, &ip, what]));
        let port = server.port();
        let mut client = Running::start(python(&daemon, &[CLIENT, &ip, &port]).stdin(Stdio::piped()));
        server.wait_for("done");
        assert!(server.stdout().contains("path 2"), "{what}: it left TCP before: {}", server.stdout());
        wait_until(&format!("{what}: {reason} at one end, and peer-keeps-tcp at the other"), || {
            // Beside rows of the streams that carried them before, as long as their ends are open.
            let shown = rows(&daemon);
            let on_tcp = shown.iter().filter(|row| row["path"] == "tcp");
            let mut reasons: Vec<&str> = on_tcp.filter_map(|row| row["reason"].as_str()).collect();
            reasons.sort_unstable();
            let mut expected = [reason, "peer-keeps-tcp"];
            expected.sort_unstable();
            reasons == expected
        });
        drop(client.stdin());
        assert_eq!(client.end_within(Duration::from_secs(120)).code(), 0, "{what}");
        assert_eq!(server.end_within(Duration::from_secs(120)).code(), 0, "{what}");
    }
}

/// The connection that a program has accepted, and the stream that is to replace it: both ends may switch.
fn linked(daemon: &Daemon, port: &str) -> (TcpStream, Stream) {
    let mut socket = TcpStream::connect((daemon.ip, port.parse().unwrap())).unwrap();
    let session = daemon.session("liar");
    // The program asks for its end once it reads.
    socket.write_all(b"x").unwrap();
    let mut meeting = Meeting::begin(&session, socket.as_fd(), TcpEnd::Connected).unwrap();
    let mut found = None;
    wait_until("the two ends to meet", || {
        found = meeting.try_finish().unwrap();
        found.is_some()
    });
    let Some(Found::Met(place)) = found else { panic!("{found:?}") };
    let mut stream = ConnectOptions::new().connect(&session, place.at).unwrap();
    stream.write_all(&[b"RRU2".as_slice(), &place.token.to_be_bytes(), b"G"].concat()).unwrap();
    await_may_switch(&mut socket, &mut stream);
    (socket, stream)
}

/// Waits for the `G` of the program, which it says in a call of its own.
fn await_may_switch(socket: &mut TcpStream, stream: &mut Stream) {
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut word = [0];
    while stream.read_exact(&mut word).is_err() {
        socket.write_all(b"x").unwrap();
    }
    assert_eq!(&word, b"G");
}

/// What ends the connection. The program looks at its stream when it reads, so it gets something to read.
fn ended_by(socket: &mut TcpStream) -> ErrorKind {
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    loop {
        let done = socket.write_all(b"x").and_then(|()| socket.read_exact(&mut [0]));
        match done.expect_err("nobody answers").kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
            kind => return kind,
        }
    }
}

/// A server that reads its connections one after the other; what ends one in disorder is told.
const READER: &str = r#"
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
for _ in range(int(sys.argv[2])):
    one, _ = listener.accept()
    try:
        while one.recv(65536): pass
    except OSError as error:
        print(type(error).__name__, flush=True)
    one.close()
"#;

#[test]
fn a_peer_that_lies_about_its_bytes_is_reset_and_nobody_else() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let ip = daemon.ip.to_string();
    let counts = [1 << 62, u64::MAX, 1 << 40, u64::MAX >> 1];
    let mut server = Running::start(&mut python(&daemon, &[READER, &ip, "5"]));
    let port = server.port();
    for count in counts {
        let (mut socket, mut stream) = linked(&daemon, &port);
        stream.write_all(&[b"W".as_slice(), &u64::to_be_bytes(count)].concat()).unwrap();
        let kind = ended_by(&mut socket);
        assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{count}: {kind:?}");
    }
    let mut honest = TcpStream::connect((daemon.ip, port.parse().unwrap())).unwrap();
    honest.write_all(b"x").unwrap();
    drop(honest);
    let ended = server.end_within(Duration::from_secs(120));
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert_eq!(ended.stdout.matches("ConnectionResetError").count(), counts.len(), "{ended:?}");
}

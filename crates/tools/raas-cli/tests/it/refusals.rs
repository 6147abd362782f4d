//! What goes wrong and how it is said: exit codes, and messages that name the place.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::process::Stdio;

use crate::rig::{self, Cluster, Daemon, Running, address, raas, run, wait_until, write_key};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const CODE_FAILED: i32 = 1;
const CODE_USAGE: i32 = 2;
const CODE_NO_DAEMON: i32 = 3;
const CODE_REFUSED: i32 = 4;

#[test]
fn no_daemon_is_code_3_and_says_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let commands: [&[&str]; 6] = [
        &["ss"],
        &["stat", "--json"],
        &["send", "/dev/null", "127.0.0.1:7000"],
        &["recv", "7000"],
        &["perf", "server"],
        &["perf", "lat", "127.0.0.1:4800"],
    ];
    for args in commands {
        let ended = run(raas().args(args).arg("--socket").arg(&socket));
        assert_eq!(ended.code(), CODE_NO_DAEMON, "{args:?}: {ended:?}");
        assert!(ended.stderr.contains("raas daemon"), "{args:?}: {ended:?}");
        assert!(ended.stdout.is_empty(), "{args:?}: {ended:?}");
    }
    // The environment names the socket too.
    let ended = run(raas().arg("ss").env("RAAS_SOCKET", &socket));
    assert_eq!(ended.code(), CODE_NO_DAEMON);
    assert!(ended.stderr.contains("none.sock"), "{ended:?}");
}

#[test]
fn a_wrong_command_line_is_code_2() {
    let commands: [&[&str]; 8] = [
        &[],
        &["frobnicate"],
        &["demo", "--connections", "0"],
        &["demo", "--hosts", "127.0.0.1"],
        &["demo", "--hosts", "127.0.0.1,127.0.0.1"],
        &["recv", "99999"],
        &["perf", "bw", "127.0.0.1:1", "--size", "1G"],
        &["--log", "a=b=c", "ss"],
    ];
    for args in commands {
        let ended = run(raas().args(args));
        assert_eq!(ended.code(), CODE_USAGE, "{args:?}: {ended:?}");
    }
    let temporary = tempfile::tempdir().unwrap();
    let ended = run(raas().args(["demo", "--path", "/nonexistent/dir"]).env("TMPDIR", temporary.path()));
    assert_eq!(ended.code(), CODE_USAGE, "{ended:?}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn configuration_errors_name_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("raas.toml");
    let broken = [
        ("peer_port = 4790\nlissen = \"127.0.0.1\"\n", ":2: ", "lissen"),
        ("\n\npeer_port = 0\n", ":3: ", "peer_port"),
        ("device = \"warp-drive\"\n", ":1: ", "warp-drive"),
        ("peer_port = \n", ":1: ", ""),
    ];
    for (text, line, word) in broken {
        std::fs::write(&file, text).unwrap();
        for extra in [&["--check"][..], &[]] {
            let ended = run(raas().args(["daemon", "--config"]).arg(&file).args(extra));
            assert_eq!(ended.code(), CODE_USAGE, "{text}: {ended:?}");
            let place = format!("{}{line}", file.display());
            let found = ended.stderr.lines().find(|l| l.starts_with(&place));
            assert!(found.is_some_and(|l| l.contains(word)), "{text}: {ended:?}");
        }
    }
    let ended = run(raas().args(["daemon", "--config", "/nonexistent/raas.toml"]));
    assert_eq!(ended.code(), CODE_USAGE);
    assert!(ended.stderr.contains("/nonexistent/raas.toml"), "{ended:?}");
}

#[test]
fn check_accepts_a_good_configuration_and_starts_nothing() {
    let cluster = Cluster::new();
    let ip = address();
    let file = cluster.dir.path().join("raas.toml");
    let socket = cluster.dir.path().join("s");
    let (key, at) = (cluster.key(), socket.display());
    std::fs::write(&file, format!("listen = \"{ip}\"\nsocket = \"{at}\"\nkey_file = \"{}\"\n", key.display())).unwrap();
    let ended = run(raas().args(["daemon", "--check", "--config"]).arg(&file));
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert!(ended.stdout.contains("ok"), "{ended:?}");
    assert!(!socket.exists());
    // A key that others can read is refused.
    let bad = cluster.dir.path().join("open-key");
    write_key(&bad, 1);
    std::fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let ended = run(raas().args(["daemon", "--check", "--config"]).arg(&file).arg("--key-file").arg(&bad));
    assert_eq!(ended.code(), CODE_USAGE, "{ended:?}");
    assert!(ended.stderr.contains("open-key"), "{ended:?}");
}

#[test]
fn a_second_daemon_on_one_socket_is_refused() {
    let cluster = Cluster::new();
    let first = cluster.daemon();
    let mut second = raas();
    second.args(["daemon", "--listen", &address().to_string()]);
    second.arg("--socket").arg(&first.socket).arg("--key-file").arg(cluster.key());
    let ended = run(&mut second);
    assert_eq!(ended.code(), CODE_FAILED, "{ended:?}");
    assert!(ended.stderr.contains("another daemon"), "{ended:?}");
    assert_eq!(run(&mut first.command(&["stat"])).code(), 0);
    first.stop();
}

#[test]
fn a_port_without_listener_is_refused_with_code_4() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    for ip in [a.ip, b.ip] {
        let ended = run(&mut a.command(&["send", "/dev/null", &format!("{ip}:7000")]));
        assert_eq!(ended.code(), CODE_REFUSED, "{ip}: {ended:?}");
        assert!(ended.stderr.contains("nobody listens"), "{ip}: {ended:?}");
    }
    a.stop();
    b.stop();
}

#[test]
fn a_host_without_daemon_is_code_3() {
    let cluster = Cluster::new();
    let a = cluster.daemon();
    let ended = run(&mut a.command(&["send", "/dev/null", &format!("{}:7000", address())]));
    assert_eq!(ended.code(), CODE_NO_DAEMON, "{ended:?}");
    assert!(ended.stderr.contains("raas daemon"), "{ended:?}");
    a.stop();
}

#[test]
fn another_key_is_refused_and_named() {
    let cluster = Cluster::new();
    let other_key = cluster.dir.path().join("other-key");
    write_key(&other_key, 8);
    let a = cluster.daemon();
    let b = Daemon::start(&cluster, &other_key, address());
    let ended = run(&mut a.command(&["send", "/dev/null", &format!("{}:7000", b.ip)]));
    assert_eq!(ended.code(), CODE_REFUSED, "{ended:?}");
    assert!(ended.stderr.contains("key"), "{ended:?}");
    a.stop();
    b.stop();
}

#[test]
fn a_key_that_is_added_and_a_hangup_let_the_peer_in() {
    let cluster = Cluster::new();
    let (old, file) = (cluster.dir.path().join("old"), cluster.dir.path().join("raasd.toml"));
    write_key(&old, 8);
    let (ip, socket) = (address(), cluster.dir.path().join("hangup.sock"));
    let text = format!("listen = \"{ip}\"\nsocket = {socket:?}\nkey_file = {:?}\n", cluster.key());
    std::fs::write(&file, &text).unwrap();
    let checked = run(raas().args(["daemon", "--check", "--config"]).arg(&file));
    assert!(checked.stdout.contains("control links are encrypted with it"), "{checked:?}");
    let mut command = raas();
    command.args(["daemon", "--until-stdin-closes", "--config"]).arg(&file).stdin(Stdio::piped());
    let mut a = Running::start(&mut command);
    a.wait_for("ready socket=");
    let b = Daemon::start(&cluster, &old, address());
    let refused = run(&mut b.command(&["send", "/dev/null", &format!("{ip}:7000")]));
    assert!(refused.stderr.contains("key"), "{refused:?}");
    std::fs::write(&file, format!("{text}accept_key_files = [{old:?}]\n")).unwrap();
    a.signal(rustix::process::Signal::HUP);
    a.wait_for("accepted too");
    let reached = run(&mut b.command(&["send", "/dev/null", &format!("{ip}:7000")]));
    assert!(reached.stderr.contains("listens") && !reached.stderr.contains("key"), "{reached:?}");
    b.stop();
    drop(a.stdin());
    assert_eq!(a.end().code(), 0);
}

#[test]
fn a_peer_daemon_of_another_version_is_refused_and_both_are_named() {
    let cluster = Cluster::new();
    let mut a = cluster.daemon();
    let ip = address();
    let listener = TcpListener::bind((ip, 4790)).unwrap();
    let fake = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(rig::WATCHDOG)).unwrap();
        let hello = control::PeerMessage::Hello {
            version: 99,
            release: "99.9.9".into(),
            instance: 1,
            address: ip,
            challenge: [1; control::CHALLENGE_BYTES],
        };
        stream.write_all(&control::with_length(&control::encode(&hello).unwrap())).unwrap();
        // Until the daemon has read it and closed.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let ended = run(&mut a.command(&["send", "/dev/null", &format!("{ip}:7000")]));
    assert_eq!(ended.code(), CODE_REFUSED, "{ended:?}");
    assert!(ended.stderr.contains("version"), "{ended:?}");
    a.process.wait_for("99.9.9");
    let log = a.process.stderr();
    assert!(log.contains(env!("CARGO_PKG_VERSION")), "{log}");
    fake.join().unwrap();
    a.stop();
}

#[test]
fn a_daemon_of_another_version_is_refused_and_both_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let fake = std::thread::spawn(move || {
        let client = rustix::net::accept(&listener).unwrap();
        let mut buffer = Vec::new();
        wait_until("Hello", || control::recv_message::<control::Request>(client.as_fd(), &mut buffer).is_ok());
        let refused = control::Reply::Refused {
            version: 4711,
            layout: 815,
            release: "99.9.9".into(),
            reason: control::Reason::PeerVersion,
            detail: String::new(),
        };
        control::send_message(client.as_fd(), &refused, &[]).unwrap();
        client
    });
    let ended = run(raas().arg("ss").arg("--socket").arg(&socket));
    assert_eq!(ended.code(), CODE_REFUSED, "{ended:?}");
    for word in ["4711", "99.9.9", &control::APP_VERSION.to_string()] {
        assert!(ended.stderr.contains(word), "{word}: {ended:?}");
    }
    drop(fake.join().unwrap());
}

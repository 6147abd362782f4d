//! What a stranger meets in the first hour: mistakes and leftovers, each with words that lead on.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::rig::namespace::in_namespace;
use crate::rig::{Cluster, Daemon, Ended, Running, address, raas, run, wait_until, write_key};

/// `raas daemon --check` with this socket besides.
fn check(cluster: &Cluster, socket: &Path) -> Ended {
    let mut command = raas();
    command.args(["daemon", "--check", "--listen", &address().to_string(), "--key-file"]).arg(cluster.key());
    run(command.arg("--socket").arg(socket))
}

#[test]
fn paths_of_a_configuration_are_relative_to_its_file() {
    let cluster = Cluster::new();
    let place = cluster.dir.path().join("conf");
    std::fs::create_dir(&place).unwrap();
    write_key(&place.join("beside.key"), 9);
    let (ip, file) = (address(), place.join("raasd.toml"));
    std::fs::write(&file, format!("listen = \"{ip}\"\nkey_file = \"beside.key\"\nsocket = \"run/s\"\n")).unwrap();
    // By a path that is itself relative, from elsewhere.
    let mut command = raas();
    command.args(["daemon", "--until-stdin-closes", "--config", "conf/raasd.toml"]);
    let mut daemon = Running::start(command.current_dir(cluster.dir.path()).stdin(Stdio::piped()));
    daemon.wait_for("ready socket=conf/run/s");
    let socket = place.join("run/s");
    let told = run(raas().args(["doctor", "--json", "--socket"]).arg(&socket)).json();
    let key = told["findings"].as_array().unwrap().iter().find(|finding| finding["id"] == "key").unwrap().clone();
    assert_eq!(
        (key["ok"].as_bool(), key["detail"].as_str().unwrap().contains("beside.key")),
        (Some(true), true),
        "{key}"
    );
    drop(daemon.stdin());
    assert_eq!(daemon.end().code(), 0);
}

#[test]
fn a_daemon_whose_address_another_one_has_names_that_one_and_the_ways_on() {
    let cluster = Cluster::new();
    let first = cluster.daemon();
    let (ip, pid) = (first.ip.to_string(), first.process.pid());
    let second = |further: &[&str]| {
        let mut command = raas();
        command.args(["daemon", "--listen", &ip, "--key-file"]).arg(cluster.key());
        run(command.arg("--socket").arg(cluster.dir.path().join("second.sock")).args(further))
    };
    // The port of daemons, and that of the software NIC.
    for further in [&[][..], &["--peer-port", "4899"]] {
        let ended = second(further);
        assert_eq!(ended.code(), 1, "{ended:?}");
        let own = format!("the daemon at {} (user ", first.socket.display());
        for part in [&own, &format!("process {pid})"), &format!("--socket {}", first.socket.display()), "--listen 127."]
        {
            assert!(ended.stderr.contains(part), "{part}: {ended:?}");
        }
    }
    // The same socket.
    let mut command = raas();
    command.args(["daemon", "--listen", &address().to_string(), "--socket"]).arg(&first.socket);
    let ended = run(&mut command);
    assert_eq!(ended.code(), 1, "{ended:?}");
    for part in ["another daemon serves", &format!("process {pid})"), "use it", "--socket, --listen"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
    // An address of another host.
    let ended = run(raas().args(["daemon", "--listen", "192.0.2.77", "--socket"]).arg(cluster.dir.path().join("t")));
    assert!(ended.code() == 1 && ended.stderr.contains("must be an address of this host"), "{ended:?}");
    first.stop();
}

#[test]
fn a_check_judges_the_place_of_the_socket() {
    let cluster = Cluster::new();
    let place = cluster.dir.path();
    let long = check(&cluster, &place.join("x".repeat(120)));
    assert!(long.code() == 2 && long.stderr.contains("too long for a socket"), "{long:?}");
    assert_eq!(check(&cluster, &place.join("made/at/start/s")).code(), 0);
    assert!(!place.join("made").exists(), "a check makes nothing");
    std::fs::write(place.join("file"), "precious").unwrap();
    let other = check(&cluster, &place.join("file"));
    assert!(other.code() == 1 && other.stderr.contains("no socket is there"), "{other:?}");
    let within = check(&cluster, &place.join("file/s"));
    assert!(within.code() == 1 && within.stderr.contains("its directory"), "{within:?}");
    let open = place.join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let unsafe_place = check(&cluster, &open.join("s"));
    assert!(unsafe_place.code() == 1 && unsafe_place.stderr.contains("is not safe"), "{unsafe_place:?}");
    // What a start would find too.
    let started = run(raas().args(["daemon", "--socket"]).arg(open.join("s")));
    assert!(started.code() == 1 && started.stderr.contains("is not safe"), "{started:?}");
    let daemon = cluster.daemon();
    let served = check(&cluster, &daemon.socket);
    let words = format!("warning: {} is served already (user ", daemon.socket.display());
    assert!(served.code() == 0 && served.stdout.contains(&words), "{served:?}");
    assert!(served.stdout.contains(&format!("process {})", daemon.process.pid())), "{served:?}");
    daemon.stop();
}

#[test]
fn what_is_not_there_is_code_1() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let commands: [(&[&str], &str); 6] = [
        (&["why", "4711"], "there is no connection 4711"),
        (&["why", "no-such-host.invalid"], "no-such-host.invalid"),
        (&["why", "no-such-host.invalid:80"], "no-such-host.invalid"),
        (&["trace", "4711"], "there is no connection 4711"),
        (&["trace", "4711", "--seconds", "100000000"], "invalid value"),
        (&["cluster", "no-such-name"], "no-such-name"),
    ];
    for (words, part) in commands {
        for further in [None, Some("--json")] {
            let ended = run(daemon.command(words).args(further));
            let code = if part == "invalid value" { 2 } else { 1 };
            assert!(ended.code() == code && ended.stderr.contains(part), "{words:?}: {ended:?}");
        }
    }
    let waits = run(&mut daemon.command(&["trace", "4711", "--seconds", "80000"]));
    assert!(waits.code() == 1 && waits.stderr.contains("there is no connection 4711"), "{waits:?}");
    // No daemon: code 3, whatever is asked for.
    for words in [&["why", "1"][..], &["why", "127.0.0.1:80"], &["trace", "1"], &["cluster", "a"]] {
        let ended = run(raas().args(words).arg("--socket").arg(cluster.dir.path().join("none")));
        assert_eq!(ended.code(), 3, "{words:?}: {ended:?}");
    }
    daemon.stop();
}

#[test]
fn a_port_that_is_asked_about_is_kept() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    for ip in [a.ip, b.ip] {
        let at = format!("{ip}:7321");
        let text = run(&mut a.command(&["why", &at]));
        assert!(text.code() == 0 && text.stdout.starts_with(&format!("a connection to {at}\n")), "{text:?}");
        assert_eq!(run(&mut a.command(&["why", &at, "--json"])).json()["peer"], at);
        assert_eq!(run(&mut a.command(&["why", &ip.to_string(), "--json"])).json()["peer"], ip.to_string());
    }
    let at = format!("{}:7321", address());
    let none = run(&mut a.command(&["why", &at]));
    assert!(none.code() == 3 && none.stderr.contains(&at), "{none:?}");
    a.stop();
    b.stop();
}

#[test]
fn what_a_killed_receiver_left_is_removed_by_the_next_one() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let place = tempfile::tempdir().unwrap();
    let partials = || {
        let names = std::fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".raas-partial")).collect::<Vec<_>>()
    };
    let receive = |port: &str, file: &str| {
        let mut command = daemon.command(&["recv", port, "-o"]);
        let mut receiver = Running::start(command.arg(place.path().join(file)));
        receiver.wait_for("listening on");
        receiver
    };
    let mut killed = receive("7001", "a");
    let left = partials();
    killed.kill();
    assert_eq!((left.len(), partials()), (1, left.clone()), "killed, it leaves its file");
    let lives = receive("7002", "b");
    let mine = partials();
    assert!(mine.len() == 1 && mine != left && lives.stderr().contains(&left[0]), "{mine:?}: {}", lives.stderr());
    // One that lives keeps its own.
    let also = receive("7003", "b");
    assert_eq!(partials().len(), 2);
    let file = place.path().join("source");
    std::fs::write(&file, "all of it").unwrap();
    for (port, receiver) in [(7002, lives), (7003, also)] {
        let to = format!("{}:{port}", daemon.ip);
        assert_eq!(run(daemon.command(&["send"]).arg(&file).arg(&to)).code(), 0);
        assert_eq!(receiver.end().code(), 0);
        assert_eq!(std::fs::read(place.path().join("b")).unwrap(), b"all of it");
    }
    assert!(partials().is_empty());
    daemon.stop();
}

/// Whoever looks whether the port is open is no reason to warn; who says something else than a daemon is one.
#[test]
fn a_look_at_a_peer_leaves_no_warning_in_its_log() {
    let cluster = Cluster::new();
    let a = cluster.daemon();
    let mut b = Daemon::start_as(&cluster, &["--log", "raasd=debug"]);
    let looked = run(&mut a.command(&["doctor", "--peer", &b.ip.to_string()]));
    assert!(looked.stdout.contains(&format!("ok    peer-link {}", b.ip)), "{looked:?}");
    b.process.wait_for("a connection ended before its first byte");
    assert!(!b.process.stderr().contains("WARN"), "{}", b.process.stderr());
    let mut stream = std::net::TcpStream::connect((b.ip, 4790)).unwrap();
    stream.write_all(b"GET").unwrap();
    drop(stream);
    b.process.wait_for("refused a control link");
    a.stop();
    b.stop();
}

/// They go on without a daemon; whichever comes next, and after whatever end of the one before, shows them as that one did.
#[test]
fn connections_of_one_host_are_shown_by_the_next_daemon_after_a_stop_in_order() {
    let cluster = Cluster::new();
    let mut daemon = cluster.daemon();
    let (ip, socket) = (daemon.ip, daemon.socket.clone());
    let session = |name: &str| {
        let builder = raas::Session::builder().socket(&socket).name(name).background(true);
        builder.connect().unwrap()
    };
    let (server, client) = (session("server"), session("client"));
    let listener = raas::Listener::bind_with(&server, (ip, 7000)).unwrap();
    let mut to = raas::ConnectOptions::new().connect(&client, SocketAddr::new(ip, 7000)).unwrap();
    let (mut from, _) = listener.accept().unwrap();
    let mut byte = [0; 1];
    let mut exchange = |to: &mut raas::Stream, from: &mut raas::Stream| {
        to.write_all(b"x").unwrap();
        from.read_exact(&mut byte).unwrap();
        byte == *b"x"
    };
    assert!(exchange(&mut to, &mut from));
    let shown = |daemon: &Daemon| {
        let told = run(&mut daemon.command(&["ss", "--json"])).json();
        let rows = told["connections"].as_array().unwrap();
        let row = |row: &serde_json::Value| {
            let text = |key: &str| row[key].as_str().unwrap().to_owned();
            (text("local"), text("peer"), text("path"), text("program"))
        };
        let mut rows: Vec<_> = rows.iter().map(row).collect();
        rows.sort();
        rows
    };
    let before = shown(&daemon);
    assert_eq!(before.len(), 2, "{before:?}");
    for is_killed in [false, true, false] {
        if is_killed {
            daemon.process.kill();
        } else {
            daemon.stop();
        }
        assert!(exchange(&mut to, &mut from), "it goes on without a daemon");
        daemon = Daemon::start(&cluster, &cluster.key(), ip);
        wait_until("both rows", || shown(&daemon) == before);
        assert!(exchange(&mut to, &mut from));
    }
    drop(to);
    drop(from);
    wait_until("no row", || shown(&daemon).is_empty());
    daemon.stop();
}

#[test]
fn a_socket_is_of_no_use_to_a_command_that_asks_no_daemon() {
    let ended = run(raas().args(["--socket", "/s", "device"]));
    assert!(ended.code() == 2 && ended.stderr.contains("--socket"), "{ended:?}");
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let ended = run(Command::new(raas().get_program()).arg("--socket").arg(&daemon.socket).args(["stat", "--json"]));
    assert_eq!(ended.json()["device"], "softnic", "{ended:?}");
    daemon.stop();
}

/// In a network namespace whose loopback interface is down no connection can be made, and so none be tried.
#[test]
fn a_doctor_that_could_try_nothing_does_not_say_that_all_is_well() {
    const NAME: &str = "first_hour::a_doctor_that_could_try_nothing_does_not_say_that_all_is_well";
    in_namespace(NAME, &[], || {
        let cluster = Cluster::new();
        let daemon = cluster.daemon();
        let of_run = || {
            let told = run(&mut daemon.command(&["doctor", "--json"])).json();
            let all = told["findings"].as_array().unwrap().clone();
            all.into_iter().find(|finding| finding["id"] == "run").unwrap()
        };
        assert_eq!(of_run()["value"], "upgraded");
        let link = |state| run(Command::new("ip").args(["link", "set", "lo", state]));
        assert_eq!(link("down").code(), 0);
        let found = of_run();
        assert!(found["value"] == "unknown" && found["level"] == "warn", "{found}");
    });
}

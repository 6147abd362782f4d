//! `raas run`: programs that nobody changed, between two daemons, on one, and beside programs without RaaS.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::rig::{self, Cluster, Daemon, Running, run, wait_until};
use serde_json::Value;

/// Of `raas_run_path`.
const STREAM: &str = "2";
/// All connections stay on lanes. Else an echo, whose pauses depend on how busy the machine is, may become a stream of bulk,
/// which one host asks for, and both must refuse.
const ON_LANES: &[&str] = &["--run-lanes", "always", "--tcp-direct", "off"];
const KERNEL: &str = "1";
const POLLED: &str = "3";
/// The client does not wait for an upgrade.
const WHATEVER: &str = "0";
const ROUNDS: &str = "6";

fn script(name: &str) -> String {
    format!("{}/tests/it/run/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A program under `raas run`, or as it is.
fn program(at: &Daemon, is_run: bool, words: &[&str]) -> Command {
    if is_run {
        let mut all = vec!["run", "--strict", "--"];
        all.extend(words);
        return at.command(&all);
    }
    let mut plain = Command::new(words[0]);
    plain.args(&words[1..]).env_remove("LD_PRELOAD").stdin(Stdio::null());
    plain
}

fn rows(at: &Daemon) -> Vec<Value> {
    run(&mut at.command(&["ss", "--json"])).json()["connections"].as_array().unwrap().clone()
}

/// Waits until the daemon shows so many connections of these two words: it learns of some after their programs.
fn await_rows(at: &Daemon, count: usize, (path, reason): (&str, &str)) {
    wait_until(&format!("{count} times {path}, {reason}"), || {
        let shown = rows(at);
        shown.len() == count && shown.iter().all(|row| row["path"] == path && row["reason"] == reason)
    });
}

struct Echo {
    server: Running,
    client: Running,
}

/// A server and a client of it; the client has exchanged most of its bytes, and waits for a line.
fn echo(server_at: &Daemon, client_at: &Daemon, is_run: [bool; 2], want: &str) -> (Echo, String) {
    echo_of("echo_server.py", server_at, client_at, is_run, want)
}

fn echo_of(server: &str, server_at: &Daemon, client_at: &Daemon, is_run: [bool; 2], want: &str) -> (Echo, String) {
    let (ip, server) = (server_at.ip.to_string(), script(server));
    let mut server = Running::start(&mut program(server_at, is_run[0], &["python3", &server, &ip, "1"]));
    let port = server.port();
    let client = script("echo_client.py");
    let words = ["python3", &client, &ip, &port, ROUNDS, want];
    let mut client = Running::start(program(client_at, is_run[1], &words).stdin(Stdio::piped()));
    client.wait_for("path ");
    let said = client.stdout();
    (Echo { server, client }, said.split_whitespace().nth(1).unwrap().to_string())
}

impl Echo {
    /// Both end in order, every byte checked.
    fn end(mut self) {
        self.client.stdin().write_all(b"\n").unwrap();
        for ended in [self.client.end(), self.server.end()] {
            assert_eq!(ended.code(), 0, "{ended:?}");
        }
    }
}

#[test]
fn two_programs_on_two_hosts_are_upgraded() {
    let cluster = Cluster::new();
    // Who accepts decides.
    let (a, b) = (Daemon::start_as(&cluster, &ON_LANES[2..]), Daemon::start_as(&cluster, ON_LANES));
    let (echo, path) = echo(&b, &a, [true, true], STREAM);
    assert_eq!(path, STREAM);
    for daemon in [&a, &b] {
        await_rows(daemon, 1, ("lane", "other-host"));
    }
    echo.end();
}

#[test]
fn between_software_nics_two_programs_stay_on_tcp_and_look_before_they_sleep() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let (echo, path) = echo(&b, &a, [true, true], POLLED);
    assert_eq!(path, POLLED);
    for daemon in [&a, &b] {
        await_rows(daemon, 1, ("tcp", "polled-tcp"));
    }
    echo.end();
}

#[test]
fn two_programs_are_upgraded_where_lanes_are_encrypted() {
    let cluster = Cluster::new();
    let encrypts = || Daemon::start_as(&cluster, &["--encrypt", "required"]);
    let (a, b) = (encrypts(), encrypts());
    let (echo, path) = echo(&b, &a, [true, true], STREAM);
    assert_eq!(path, STREAM);
    await_rows(&a, 1, ("lane", "other-host"));
    echo.end();
}

#[test]
fn two_programs_on_one_host_share_memory() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let (echo, path) = echo(&daemon, &daemon, [true, true], STREAM);
    assert_eq!(path, STREAM);
    await_rows(&daemon, 2, ("shm", "same-host"));
    echo.end();
}

#[test]
fn a_server_that_gave_up_root_goes_on_with_the_next_daemon() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "only root can give it up");
        eprintln!("SKIP a_server_that_gave_up_root_goes_on_with_the_next_daemon: only root can give it up");
        return;
    }
    let cluster = Cluster::new();
    std::fs::set_permissions(cluster.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = cluster.dir.path().join("raasd.toml");
    std::fs::write(&config, "socket_mode = \"0666\"\n[limits]\npeer_return_ms = 120000\n").unwrap();
    let config = config.display().to_string();
    let options = [ON_LANES, &["--config", &config]].concat();
    let (a, mut b) = (Daemon::start_as(&cluster, &options), Daemon::start_as(&cluster, &options));
    let (mut echo, path) = echo_of("setuid_server.py", &b, &a, [true, true], STREAM);
    assert_eq!(path, STREAM);
    echo.server.signal(rustix::process::Signal::USR1);
    echo.server.wait_for("user 65534");
    // The next one is there before the program would stop waiting, however busy the machine is.
    let next = Daemon::start_at(&cluster, b.ip, &[&options[..], &["--replace"]].concat());
    assert_eq!(std::mem::replace(&mut b, next).process.end().code(), 0);
    await_rows(&b, 1, ("lane", "other-host"));
    echo.end();
}

#[test]
fn raas_ss_knows_connections_by_the_programs_own_ports() {
    let cluster = Cluster::new();
    let (a, b) = (Daemon::start_as(&cluster, &ON_LANES[2..]), Daemon::start_as(&cluster, ON_LANES));
    for (client_at, path) in [(&b, "shm"), (&a, "lane")] {
        let (echo, _) = echo(&b, client_at, [true, true], STREAM);
        let server = format!("{}:{}", b.ip, echo.server.stdout().trim().rsplit(' ').next().unwrap());
        let client = echo.client.stdout().split_whitespace().nth(2).unwrap().to_string();
        let port = server.rsplit(':').next().unwrap();
        let named = || run(&mut b.command(&["ss", "--json", "--port", port])).json()["connections"].clone();
        let count = if path == "shm" { 2 } else { 1 };
        wait_until("the rows", || {
            let rows = named();
            rows.as_array().unwrap().iter().filter(|row| row["path"] == path).count() == count
        });
        for row in named().as_array().unwrap() {
            let ends = [&row["local"], &row["peer"]].map(|end| end.as_str().unwrap().to_string());
            let [own, other] = if ends[0] == server { [&ends[0], &ends[1]] } else { [&ends[1], &ends[0]] };
            assert!(*own == server && other.ends_with(&format!(":{client}")) && row["path"] == path, "{row}");
        }
        let text = run(&mut b.command(&["ss", "--port", port])).stdout;
        assert!(text.contains(&format!("{server} ")) && text.starts_with("LOCAL"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains(path)).count(), 1, "one row a connection:\n{text}");
        // At 80 columns it is still known which program has the end that is shown.
        let text = run(b.command(&["ss", "--port", port]).env("COLUMNS", "80")).stdout;
        assert!(text.lines().any(|line| line.contains(path) && line.contains("python3")), "{text}");
        let carried = |row: &Value| row["tx_bytes"].as_u64() > Some(0) && row["rx_bytes"].as_u64() > Some(0);
        let traced = || run(&mut b.command(&["trace", "--json"])).json()["same_host"].clone();
        let counted = || traced().as_array().unwrap().iter().filter(|row| carried(row)).count();
        wait_until("the bytes of both ends on one host, of none between hosts", || counted() == count & 2);
        echo.end();
        wait_until("the rows to go", || rows(&b).is_empty());
    }
}

#[test]
fn a_summary_counts_connections_by_path_and_reason() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let ip = daemon.ip.to_string();
    let script = script("short.py");
    let mut server = Running::start(&mut program(&daemon, false, &["python3", &script, "server", &ip, "3"]));
    let port = server.port();
    let words = ["run", "--summary", "--", "python3", &script, "client", &ip, &port, "3"];
    let client = run(&mut daemon.command(&words));
    assert_eq!((client.code(), server.end().code()), (0, 0), "{client:?}");
    assert!(client.stderr.contains("raas run: 3 connections: 3 tcp: not-met\n"), "{client:?}");
    // The exit code is the program's, and a signal that ends it shows as in a shell.
    let ended = |words: &str| run(&mut daemon.command(&["run", "--summary", "sh", "-c", words]));
    assert_eq!(ended("exit 7").code(), 7);
    let killed = ended("kill -TERM $$");
    assert!(killed.code() == 143 && killed.stderr.contains("0 connections\n"), "{killed:?}");
}

#[test]
fn a_client_without_raas_is_served_over_tcp() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let (echo, _) = echo(&daemon, &daemon, [true, false], WHATEVER);
    await_rows(&daemon, 1, ("tcp", "not-met"));
    echo.end();
    wait_until("the row to go", || rows(&daemon).is_empty());
}

#[test]
fn a_server_without_raas_is_reached_over_tcp() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    // On a host with a daemon, and on one without.
    let (with, _) = echo(&b, &a, [false, true], WHATEVER);
    await_rows(&a, 1, ("tcp", "not-met"));
    with.end();
    let nobody =
        Daemon { ip: rig::address(), socket: b.socket.clone(), process: Running::start(&mut Command::new("true")) };
    let (without, path) = echo(&nobody, &a, [false, true], KERNEL);
    assert_eq!(path, KERNEL);
    wait_until("the reason", || rows(&a).iter().any(|row| row["reason"] == "peer-unreachable"));
    without.end();
}

#[test]
fn a_server_of_the_standard_library_and_curl() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let files = tempfile::tempdir().unwrap();
    let bytes = rig::pattern(3_000_000);
    std::fs::write(files.path().join("file"), &bytes).unwrap();
    let (ip, dir) = (b.ip.to_string(), files.path().to_str().unwrap());
    let words = ["python3", "-u", "-m", "http.server", "0", "--bind", &ip, "--directory", dir];
    let mut server = Running::start(&mut program(&b, true, &words));
    server.wait_for("Serving HTTP on");
    let said = server.stdout();
    let port = said.split_whitespace().skip_while(|word| *word != "port").nth(1).unwrap().to_string();
    let url = format!("http://{ip}:{port}/file");
    for is_run in [true, false] {
        let ended = Running::start(&mut program(&a, is_run, &["curl", "-sS", "--max-time", "60", &url])).end_bytes();
        assert!(ended == bytes, "{} bytes, under `raas run`: {is_run}", ended.len());
    }
}

/// What the session had to tell of connections that are closed wakes nobody again and again.
#[test]
fn a_server_without_connections_rests() {
    const COMPUTED_MAX_US: u64 = 50_000;
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let (mut echo, path) = echo_of("idle_server.py", &daemon, &daemon, [true, true], STREAM);
    assert_eq!(path, STREAM);
    echo.client.stdin().write_all(b"\n").unwrap();
    let (client, server) = (echo.client.end(), echo.server.end());
    assert_eq!((client.code(), server.code()), (0, 0), "{client:?} {server:?}");
    let mut words = server.stdout.split_whitespace().skip_while(|word| *word != "computed");
    let computed: u64 = words.nth(1).unwrap().parse().unwrap();
    assert!(computed < COMPUTED_MAX_US, "{computed} us in a second without work");
}

/// The server closes a connection before it has taken the stream that the client has already.
#[test]
fn short_connections_end() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    for client_at in [&b, &a] {
        let (ip, script) = (b.ip.to_string(), script("short.py"));
        let mut server = Running::start(&mut program(&b, true, &["python3", &script, "server", &ip, "200"]));
        let port = server.port();
        let client = run(&mut program(client_at, true, &["python3", &script, "client", &ip, &port, "200"]));
        for ended in [client, server.end()] {
            assert_eq!(ended.code(), 0, "{ended:?}");
        }
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    // An ELF file without an interpreter, which is enough to be judged.
    let program = cluster.dir.path().join("static");
    let mut head = [0u8; 128];
    head[..6].copy_from_slice(b"\x7fELF\x02\x01");
    head[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    (head[32], head[54], head[56]) = (64, 56, 1);
    std::fs::write(&program, head).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let strict = run(&mut daemon.command(&["run", "--strict", program.to_str().unwrap()]));
    assert_eq!(strict.code(), 4, "{strict:?}");
    assert!(strict.stderr.contains("statically linked"), "{strict:?}");

    // Options behind the program are its own.
    let own = run(&mut daemon.command(&["run", "printf", "--", "-h%s", "--help"]));
    assert_eq!((own.code(), &*own.stdout), (0, "-h--help"), "{own:?}");

    let missing = run(&mut daemon.command(&["run", "no-such-program-here"]));
    assert_eq!(missing.code(), 2, "{missing:?}");
    let lost = run(daemon.command(&["run", "true"]).env("RAAS_PRELOAD", "/nowhere/lib.so"));
    assert_eq!(lost.code(), 2, "{lost:?}");
    assert!(lost.stderr.contains("/nowhere/lib.so"), "{lost:?}");

    // Without a daemon the program runs, and `--strict` refuses.
    let alone = |strict: &[&str]| {
        let mut words = vec!["run"];
        words.extend(strict);
        words.extend(["sh", "-c", "exit 7"]);
        run(rig::raas().args(words).env("RAAS_SOCKET", "/nowhere/raasd.sock"))
    };
    let ended = alone(&[]);
    assert_eq!(ended.code(), 7, "{ended:?}");
    assert!(ended.stderr.contains("stay on kernel TCP until there is a daemon"), "{ended:?}");
    assert_eq!(alone(&["--strict"]).code(), 3);
}

#[test]
fn a_sandbox_without_local_sockets_has_no_daemon() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let inside = |options: &[&str]| {
        let raas = daemon.command(&["run"]);
        let mut words = Command::new("python3");
        words.arg(script("without_local_sockets.py")).arg(raas.get_program()).args(raas.get_args()).args(options);
        words.args(["sh", "-c", "exit 7"]).envs(raas.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run(&mut words)
    };
    let ended = inside(&[]);
    assert_eq!(ended.code(), 7, "{ended:?}");
    let refused = inside(&["--strict"]);
    assert_eq!(refused.code(), 3, "{refused:?}");
    assert!(refused.stderr.contains("may make no AF_UNIX socket"), "{refused:?}");
}

/// Maps of a program and of one that it starts with all its descriptors closed but the first three.
const MAPS: &str = "cat /proc/self/maps; echo then; sh -c 'exec 3>&- 4>&- 5>&-; cat /proc/self/maps; exit 7'";

#[test]
fn the_binary_alone_is_enough() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let [home, place] = ["home", "place"].map(|name| {
        let dir = cluster.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    });
    let alone = place.join("raas");
    std::fs::copy(env!("CARGO_BIN_EXE_raas"), &alone).unwrap();
    let under = |words: &[&str]| {
        let mut command = Command::new(&alone);
        command.args(["run", "--strict", "--"]).args(words).stdin(Stdio::null()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("RAAS_SOCKET", &daemon.socket);
        // Root's file would be the host's.
        command.env("HOME", &home).env("XDG_CACHE_HOME", home.join("cache"));
        command
    };

    let ended = run(&mut under(&["sh", "-c", MAPS]));
    assert_eq!(ended.code(), 7, "{ended:?}");
    let written = home.join("cache/raas/libraas_preload-");
    for maps in ended.stdout.split("then\n") {
        assert!(maps.contains(written.to_str().unwrap()), "{ended:?}");
    }

    let ip = daemon.ip.to_string();
    let mut server = Running::start(&mut under(&["python3", &script("echo_server.py"), &ip, "1"]));
    let port = server.port();
    let client = run(&mut under(&["python3", &script("echo_client.py"), &ip, &port, ROUNDS, STREAM]));
    assert_eq!(client.code(), 0, "{client:?}");
    assert!(client.stdout.contains(&format!("path {STREAM}")), "{client:?}");
    assert_eq!(std::fs::read_dir(home.join("cache/raas")).unwrap().count(), 1, "one file serves all");
}

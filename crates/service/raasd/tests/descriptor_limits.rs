//! Programs and daemons at their limit of open descriptors: one connection is refused, for the right reason, and all
//! others go on. The one with the limit is a process of its own: this test, run again in another role.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raas::{ConnectError, ConnectOptions, Listener, PathKind, Reason, Session, Stream, StreamError};
use raasd::{Config, Daemon};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
/// Says to a child what it is.
const ROLE: &str = "RAAS_TEST_LIMITED";
/// Descriptors that a child may have open.
const LIMIT: u64 = 128;
/// Rings of sizes that no connection of these tests had before, so that memory for them must come.
const FAR_RING: u32 = 2 << 20;
const NEAR_RING: u32 = 1 << 20;

/// Takes all descriptors that are left.
fn fill() -> Vec<File> {
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), ..getrlimit(Resource::Nofile) }).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn config(directory: &TempDir, last: u8) -> Config {
    use std::os::unix::fs::OpenOptionsExt;
    let key = directory.path().join("key");
    if !key.exists() {
        File::options().write(true).create_new(true).mode(0o600).open(&key).unwrap().write_all(&[5; 32]).unwrap();
    }
    let [.., b, c] = std::process::id().to_be_bytes();
    let mut config = Config::new([127, 128 | b, c, last].into());
    config.socket = directory.path().join(format!("{last}.sock"));
    config.key_file = Some(key);
    config
}

/// Sends back what it gets on each connection, in a session of its own.
fn echo(session: &Session) -> SocketAddr {
    let listener = Listener::bind_with(session, "0.0.0.0:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let (mut reader, mut writer) = stream.split();
                std::io::copy(&mut reader, &mut writer)
            });
        }
    });
    at
}

fn check(stream: &mut Stream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"still here?").unwrap();
    let mut got = [0; 11];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still here?");
}

/// The reason for which a connection that was made does not live.
fn why_dead(made: Result<Stream, ConnectError>) -> Option<Reason> {
    let mut stream = match made {
        Ok(stream) => stream,
        Err(e) => return e.reason(),
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamError::reason_of(&stream.read(&mut [0; 1]).unwrap_err())
}

struct Role {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Role {
    fn start(test: &str, args: &[String]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(ROLE, args.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    /// Reads on to a line with `word`; what stands behind it.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).unwrap() > 0 {
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].trim().to_string();
            }
            line.clear();
        }
        panic!("the child ended before it said {word}");
    }

    fn go_on(&mut self) {
        self.stdin.write_all(b"go on\n").unwrap();
    }

    fn end(mut self) {
        drop(self.stdin);
        assert!(self.child.wait().unwrap().success());
    }
}

/// A child's pause, which its parent ends.
fn pause(word: &str) {
    println!("\n{word}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn role() -> Option<Vec<String>> {
    let args = std::env::var(ROLE).ok()?;
    Some(args.split(' ').map(str::to_string).collect())
}

/// The log of the daemons.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> Self {
        let log = Self::default();
        let writer = log.clone();
        let _ = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).try_init();
        log
    }

    fn has(&self, words: &[&str]) -> bool {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines().any(|line| words.iter().all(|w| line.contains(w)))
    }
}

#[test]
fn a_program_at_its_limit_loses_the_connection_that_comes_and_no_other() {
    const NAME: &str = "a_program_at_its_limit_loses_the_connection_that_comes_and_no_other";
    if let Some(args) = role() {
        return limited_program(&args);
    }
    let log = Log::start();
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (Daemon::start(config(&directory, 1)).unwrap(), Daemon::start(config(&directory, 2)).unwrap());
    let attach = |daemon: &Daemon| Session::builder().socket(daemon.socket()).background(true).connect().unwrap();
    let (near, far, third) = (attach(&a), attach(&b), attach(&a));
    let args = [a.socket().display().to_string(), echo(&near).to_string(), echo(&far).to_string()];
    let mut child = Role::start(NAME, &args);
    let at: SocketAddr = child.hear("listening on ").parse().unwrap();
    child.hear("full");
    // As the one that is called it is refused by name too: over the lane, by one that it has no pair with, and by one
    // it has.
    let wide = |ring| ConnectOptions::new().ring_bytes(ring).timeout(PATIENCE);
    assert_eq!(why_dead(wide(FAR_RING / 2).connect(&far, at)), Some(Reason::PeerAppDescriptors));
    assert_eq!(why_dead(wide(0).connect(&third, at)), Some(Reason::PeerAppDescriptors));
    assert_eq!(why_dead(wide(NEAR_RING / 2).connect(&near, at)), Some(Reason::PeerAppDescriptors));
    let limit = format!("limit={LIMIT}");
    assert!(log.has(&["limit of open descriptors", &limit, &child.child.id().to_string()]), "the log names it");
    child.go_on();
    child.hear("room");
    for (session, ring) in [(&far, FAR_RING / 2), (&third, 0), (&near, NEAR_RING / 2)] {
        check(&mut wide(ring).connect(session, at).unwrap());
    }
    child.go_on();
    child.end();
}

fn limited_program(args: &[String]) {
    let session = Session::builder().socket(&args[0]).background(true).connect().unwrap();
    let [near, far]: [SocketAddr; 2] = [args[1].parse().unwrap(), args[2].parse().unwrap()];
    let mut old = [Stream::connect_with(&session, near).unwrap(), Stream::connect_with(&session, far).unwrap()];
    assert_eq!(old.each_ref().map(Stream::path), [PathKind::Shm, PathKind::Lane]);
    old.iter_mut().for_each(check);
    println!("\nlistening on {}", echo(&session));
    let full = fill();
    let wide = [(near, NEAR_RING), (far, FAR_RING)];
    for _ in 0..3 {
        for (to, ring) in wide {
            let error = ConnectOptions::new().ring_bytes(ring).connect(&session, to).unwrap_err();
            assert!(matches!(error, ConnectError::Descriptors { limit: LIMIT, .. }), "{error}");
            assert!(error.to_string().contains("its limit of 128 open descriptors"), "{error}");
        }
        old.iter_mut().for_each(check);
    }
    pause("full");
    old.iter_mut().for_each(check);
    drop(full);
    for (to, ring) in wide {
        check(&mut ConnectOptions::new().ring_bytes(ring).connect(&session, to).unwrap());
    }
    pause("room");
    old.iter_mut().for_each(check);
    assert!(session.is_usable());
}

#[test]
fn a_daemon_at_its_limit_refuses_a_connection_and_throws_nobody_out() {
    const NAME: &str = "a_daemon_at_its_limit_refuses_a_connection_and_throws_nobody_out";
    if let Some(args) = role() {
        return limited_daemon(&args);
    }
    let directory = tempfile::tempdir().unwrap();
    let mut child = Role::start(NAME, &[directory.path().display().to_string()]);
    let socket = child.hear("serving ");
    let attach = || Session::builder().socket(&socket).background(true).connect().unwrap();
    let (client, server) = (attach(), attach());
    let at = echo(&server);
    let mut old = Stream::connect_with(&client, at).unwrap();
    check(&mut old);
    child.go_on();
    child.hear("full");
    let wide = ConnectOptions::new().ring_bytes(NEAR_RING).timeout(PATIENCE);
    for _ in 0..3 {
        let error = wide.connect(&client, at).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::LocalLimit), "{error}");
        check(&mut old);
    }
    child.go_on();
    child.hear("room");
    let start = Instant::now();
    check(&mut wide.connect(&client, at).unwrap());
    check(&mut old);
    assert!(client.is_usable() && server.is_usable(), "after {:?}", start.elapsed());
    child.go_on();
    child.end();
}

fn limited_daemon(args: &[String]) {
    let mut config = Config::new({
        let [.., b, c] = std::process::id().to_be_bytes();
        [127, 128 | b, c, 1].into()
    });
    config.socket = std::path::Path::new(&args[0]).join("limited.sock");
    let daemon = Daemon::start(config).unwrap();
    pause(&format!("serving {}", daemon.socket().display()));
    let full = fill();
    pause("full");
    drop(full);
    pause("room");
    daemon.stop().unwrap();
}

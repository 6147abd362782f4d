//! Daemons for tests: each is a host of its own, on an address that no other test has.
#![allow(clippy::disallowed_types)] // tests may use atomics

use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use raas::{Listener, Session, Stream};
use raasd::{Config, Daemon};
use tempfile::TempDir;
use verbs::{Wire, WirePolicy};

/// Longer than anything takes on a loaded machine; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

static NEXT: AtomicU8 = AtomicU8::new(1);

/// A daemon and its directory.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) daemon: Option<Daemon>,
    pub(crate) config: Config,
    pub(crate) dir: TempDir,
}

impl Host {
    /// A host that is not started yet, with the key of all of them.
    pub(crate) fn new() -> Self {
        start_log();
        let dir = tempfile::tempdir().unwrap();
        let [.., b, c] = std::process::id().to_be_bytes();
        let address = IpAddr::from([127, 128 | b, c, NEXT.fetch_add(1, Ordering::Relaxed)]);
        let mut config = Config::new(address);
        config.socket = dir.path().join("raasd.sock");
        config.key_file = Some(dir.path().join("key"));
        config.wire = wire();
        config.engines = engines();
        // What is tested here is lanes; module `direct` turns it on.
        config.tcp_direct = false;
        let host = Self { daemon: None, config, dir };
        host.write_key([42; 32]);
        host
    }

    pub(crate) fn write_key(&self, key: [u8; 32]) {
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.config.key_file.as_ref().unwrap();
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
        file.write_all(&key).unwrap();
    }

    pub(crate) fn start(&mut self) {
        self.daemon = Some(Daemon::start(self.config.clone()).unwrap());
    }

    pub(crate) fn started() -> Self {
        let mut host = Self::new();
        host.start();
        host
    }

    /// A host that is not started yet, whose connections wait for a peer's next daemon as long as it takes.
    pub(crate) fn patient() -> Self {
        let mut host = Self::new();
        host.config.set_limit("peer_return_ms", PATIENCE.as_millis() as u64).unwrap();
        host
    }

    /// The same, started.
    pub(crate) fn started_patient() -> Self {
        let mut host = Self::patient();
        host.start();
        host
    }

    /// A session that waits for the next daemon as long as it takes, and comes back to it by itself.
    pub(crate) fn followed(&self) -> Session {
        Session::builder().socket(&self.config.socket).daemon_wait(PATIENCE).background(true).connect().unwrap()
    }

    /// Nothing follows it, so it hears of the daemon's end, and comes back, at its next call.
    pub(crate) fn unfollowed(&self) -> Session {
        Session::builder().socket(&self.config.socket).daemon_wait(PATIENCE).connect().unwrap()
    }

    pub(crate) fn stop(&mut self) {
        self.daemon.take().unwrap().stop().unwrap();
    }

    /// Ends the daemon as its death would.
    pub(crate) fn hand_over(&mut self) {
        self.daemon.take().unwrap().hand_over().unwrap();
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.config.listen
    }

    pub(crate) fn session(&self) -> Session {
        Session::connect(&self.config.socket).unwrap()
    }

    pub(crate) fn stat(&self) -> control::Stat {
        raas::inspect::stat(Some(&self.config.socket)).unwrap()
    }

    /// A host whose lanes use that wire, started.
    pub(crate) fn started_on(wire: Wire) -> Self {
        let mut host = Self::new();
        host.config.wire = WirePolicy::Only(wire);
        host.start();
        host
    }

    /// Whether there was a lane to that host to break.
    pub(crate) fn reset_lane(&self, peer: IpAddr) -> bool {
        raas::inspect::reset_lane(Some(&self.config.socket), peer).unwrap()
    }

    /// A counter of `raas stat`.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let stat = self.stat();
        stat.counters.iter().find(|c| c.0 == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// Packets that the device dropped for that reason.
    pub(crate) fn dropped(&self, reason: &str) -> u64 {
        let stat = self.stat();
        stat.drops.iter().find(|(name, _)| name == reason).unwrap_or_else(|| panic!("no drop reason {reason}")).1
    }

    /// Control links that are up.
    pub(crate) fn links(&self) -> u64 {
        self.counter("control_links")
    }

    pub(crate) fn connections(&self) -> Vec<control::ConnectionRow> {
        raas::inspect::connections(Some(&self.config.socket)).unwrap()
    }

    /// Sends back what it gets, on any number of connections, until the session ends.
    pub(crate) fn echo(&self, session: &Session) -> u16 {
        let listener = Listener::bind_with(session, (self.address(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        if stream.write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        port
    }
}

/// What carries the lanes of all tests that do not say it: `RAAS_TEST_WIRE=iwarp cargo nextest run -p raasd` runs them
/// over TCP.
fn wire() -> WirePolicy {
    std::env::var("RAAS_TEST_WIRE").map_or_else(|_| WirePolicy::default(), |name| name.parse().unwrap())
}

/// Engines of the daemons of all tests that do not say it: `RAAS_TEST_ENGINES=2 cargo nextest run -p raasd` runs them
/// with two each.
pub(crate) fn engines() -> u32 {
    std::env::var("RAAS_TEST_ENGINES").map_or(1, |number| number.parse().unwrap())
}

/// The log of the daemons, for `RUST_LOG=... cargo test`.
fn start_log() {
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "error".to_owned());
    let filter: tracing_subscriber::filter::Targets = filter.parse().unwrap();
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_test_writer().finish();
    let _ = lines.with(filter).try_init();
}

/// Runs a test's body; a hang fails it instead of the whole run.
pub(crate) fn bounded(body: impl FnOnce() + Send + 'static) {
    let (done, waiting) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match waiting.recv_timeout(2 * PATIENCE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        // Finished, or panicked: its own message counts.
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that depend on their place.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

/// Sends a pattern through an echo and checks what comes back.
pub(crate) fn check_echo(stream: Stream, len: usize, seed: u8) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let sent = pattern(len, seed);
    let (mut reader, mut writer) = stream.split();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            writer.shutdown().unwrap();
        });
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} of {} bytes came back, or wrong ones", got.len(), sent.len());
    });
}

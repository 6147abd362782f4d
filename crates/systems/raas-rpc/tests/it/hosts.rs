//! Daemons for tests, and the pairs of places that each test runs in.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use raas_embedded::Embedded;
use raas_rpc::{CallInfo, Client, ClientBuilder, Server, ServerBuilder, Transport};

const KEY: [u8; 32] = [9; 32];
/// A test that takes longer hangs.
const WATCHDOG: Duration = Duration::from_secs(240);

pub(crate) const TRANSPORTS: [Transport; 4] = [Transport::Messages, Transport::Rfp, Transport::Herd, Transport::Scale];

/// A host of its own: an address of the loopback network that no other test has.
pub(crate) fn host() -> Embedded {
    host_with(|_| {})
}

/// The same, with other settings.
pub(crate) fn host_with(change: impl FnOnce(&mut raas_embedded::Config)) -> Embedded {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., b, c] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    let address = IpAddr::from([127, 64 | (b & 31), c, last]);
    raas_embedded::builder(address).key(&KEY).configure(change).start().unwrap()
}

/// Runs a test that must end.
pub(crate) fn bounded(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if wait.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout) {
        panic!("the test hangs");
    }
    thread.join().unwrap();
}

/// Waits for something that must come.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Where a server and its clients are.
pub(crate) struct Places {
    pub(crate) server: Embedded,
    pub(crate) far: Option<Embedded>,
}

impl Places {
    /// Both on one host, and on two.
    pub(crate) fn both() -> [Self; 2] {
        [Self { server: host(), far: None }, Self::far()]
    }

    pub(crate) fn far() -> Self {
        Self { server: host(), far: Some(host()) }
    }

    pub(crate) fn client_host(&self) -> &Embedded {
        self.far.as_ref().unwrap_or(&self.server)
    }

    pub(crate) fn serve(
        &self,
        settings: ServerBuilder,
        service: impl Fn(&CallInfo, &[u8]) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Server {
        let session = self.server.session();
        settings.session(session).serve((session.addresses()[0], 0), service).unwrap()
    }

    pub(crate) fn client(&self, server: &Server, transport: Transport, settings: ClientBuilder) -> Client {
        settings.session(self.client_host().session()).transport(transport).connect(server.local_addr()).unwrap()
    }
}

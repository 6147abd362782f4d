//! Hosts for tests, and tensors whose bytes say which they are.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use raas::Session;
use raas_embedded::Embedded;
use tensor::{DType, Draft, Error, Layout, Pool, Reader, Tensor};

/// A test that takes longer hangs.
const WATCHDOG: Duration = Duration::from_secs(240);

pub(crate) fn host() -> Embedded {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., b, c] = std::process::id().to_be_bytes();
    let address = IpAddr::from([127, 96 | (b & 15), c, NEXT.fetch_add(1, Ordering::Relaxed)]);
    raas_embedded::builder(address).key(&[5; 32]).start().unwrap()
}

pub(crate) fn address(host: &Embedded) -> IpAddr {
    host.session().addresses()[0]
}

/// Another program of that host.
pub(crate) fn program(host: &Embedded) -> Session {
    Session::builder().socket(host.socket()).background(true).connect().unwrap()
}

pub(crate) fn reader(host: &Embedded, session: &Session, pool: &Pool) -> Reader {
    Reader::open(session, address(host), pool.name(), pool.key()).unwrap()
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
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn words(count: u64) -> Layout {
    Layout::new(DType::U64, &[count]).unwrap()
}

/// A tensor each of whose words is its generation.
pub(crate) fn made(pool: &Pool, count: u64) -> Result<Draft, Error> {
    let draft = pool.make(words(count))?;
    let bytes: Vec<u8> = (0..count).flat_map(|_| draft.generation().to_le_bytes()).collect();
    draft.write(0, &bytes)?;
    Ok(draft)
}

pub(crate) fn put(pool: &Pool, name: &str, count: u64) -> u64 {
    pool.put(name, made(pool, count).unwrap()).unwrap()
}

/// Bytes that may only be those of a generation.
pub(crate) fn is_of(bytes: &[u8], generation: u64) -> bool {
    bytes.chunks_exact(8).all(|word| word == generation.to_le_bytes())
}

/// Its bytes must be of its generation.
pub(crate) fn judge(tensor: &Tensor) {
    assert!(is_of(&tensor.to_vec().unwrap(), tensor.generation()), "bytes of another tensor");
}

//! Regions in sessions that go on over the death of daemons: the owner's goes on with its bytes, and the one handle that the
//! other program has goes on with it.
//!
//! Owns which errors a program may meet there, and that each addition is in the region once if it was said to be done.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use raas::{Region, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use super::DAEMON_WAIT;

const KEY: RegionKey = RegionKey::new([0x5a; 16]);
const BYTES: u64 = 64 << 10;
/// Between two tries, and two operations of the owner.
const PAUSE: Duration = Duration::from_millis(2);
/// Where the owner adds, and where the other program does.
const OWN: u64 = 0;
const THEIRS: u64 = 8;
/// Bytes from here on are the owner's, and nobody changes them.
const STILL: u64 = 8192;

/// Additions of the other program.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Additions {
    done: u64,
    /// Those of which nobody knows.
    unknown: u64,
    /// Other uses that a death broke off.
    broken: u64,
}

/// What the sender says of the region behind what it says of the stream.
const BEHIND: &str = "; region ";

/// As the sender says it.
pub(super) fn said(additions: Additions) -> String {
    let Additions { done, unknown, broken } = additions;
    format!("{BEHIND}{done} {unknown} {broken}")
}

/// As the receiver says it: what it found at the end.
pub(super) fn found(sum: u64) -> String {
    format!("{BEHIND}{sum}")
}

/// Compares what both said.
pub(super) fn judge(sent: &str, got: &str) -> Result<String> {
    let cut = |line: &str| -> Result<(String, Vec<u64>)> {
        let (stream, region) = line.split_once(BEHIND).with_context(|| format!("nothing of a region in: {line}"))?;
        let numbers: Result<Vec<u64>, _> = region.split(' ').map(str::parse).collect();
        Ok((stream.to_owned(), numbers.with_context(|| format!("no numbers: {region}"))?))
    };
    let ((sent, additions), (got, sum)) = (cut(sent)?, cut(got)?);
    ensure!(sent == got && !sent.is_empty(), "sent {sent}, got {got}");
    let (&[done, unknown, broken], &[sum]) = (additions.as_slice(), sum.as_slice()) else {
        return Err(anyhow!("{additions:?} and {sum:?} of the region"));
    };
    ensure!(done > 0, "nothing was added to the region");
    ensure!((done..=done + unknown).contains(&sum), "{done} additions done, {unknown} unknown, and the sum is {sum}");
    let broken = format!("{unknown} of which nobody knows, {broken} other uses broken off");
    Ok(format!("{sent}; {done} additions by one handle, {broken}: {sum}"))
}

/// A thread that uses regions until [`Uses::stop`].
pub(super) struct Uses<T> {
    stop: Sender<()>,
    thread: JoinHandle<Result<T>>,
}

impl<T: Send + 'static> Uses<T> {
    fn start(run: impl FnOnce(&Receiver<()>) -> Result<T> + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        Self { stop, thread: std::thread::spawn(move || run(&stopped)) }
    }

    /// Ends it; an error is what it met.
    pub(super) fn stop(self) -> Result<T> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("the thread of the regions panicked"))?
    }
}

impl Uses<u64> {
    /// Has a region of this program, which no death of a daemon ends. What the other program added.
    pub(super) fn own(session: Session, at: SocketAddr) -> Self {
        Self::start(move |stopped| {
            let own = create(&session, at).context("making the program's own region")?;
            let still: Vec<u8> = (STILL..BYTES).map(|at| (at ^ at >> 8) as u8).collect();
            let mut added = 0;
            let of_own = || "the program's own region";
            own.write(STILL, &still).with_context(of_own)?;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                own.fetch_add(OWN, 1).with_context(of_own)?;
                added += 1;
                std::thread::sleep(PAUSE);
            }
            let found = own.load(OWN).with_context(of_own)?;
            ensure!(found == added, "the owner added {added} times, and finds {found}");
            let mut bytes = vec![0; still.len()];
            own.read(STILL, &mut bytes).with_context(of_own)?;
            ensure!(bytes == still, "bytes of the owner's region changed");
            own.load(THEIRS).with_context(of_own)
        })
    }
}

impl Uses<Additions> {
    /// Uses the region of the program at `to` by one handle. At the end it can be used.
    pub(super) fn theirs(session: Session, to: SocketAddr) -> Self {
        Self::start(move |stopped| {
            let theirs = again(|| Region::open(&session, to.ip(), &name_of(to), KEY));
            let theirs = theirs.context("opening the region of the other program")?;
            let mut additions = Additions::default();
            loop {
                let is_last = stopped.try_recv() != Err(TryRecvError::Empty);
                match use_theirs(&theirs, &mut additions) {
                    Ok(()) if is_last => return Ok(additions),
                    // What met a death says so. What did not goes on by itself, or the handle is lost.
                    Err(error) if !may_have_landed(&error) => {
                        return Err(error).context("the handle to the region of the other program does not go on");
                    }
                    Ok(()) | Err(_) => {}
                }
            }
        })
    }
}

fn name_of(at: SocketAddr) -> String {
    format!("flow-{}", at.port())
}

fn create(session: &Session, at: SocketAddr) -> Result<Region, RegionError> {
    again(|| RegionOptions::new().key(KEY).create(session, &name_of(at), BYTES))
}

/// A daemon may die before it has answered.
fn again(mut make: impl FnMut() -> Result<Region, RegionError>) -> Result<Region, RegionError> {
    let begun = Instant::now();
    loop {
        match make() {
            Err(error) if is_passing(&error) && begun.elapsed() < DAEMON_WAIT => std::thread::sleep(PAUSE),
            made => return made,
        }
    }
}

fn use_theirs(theirs: &Region, additions: &mut Additions) -> Result<(), RegionError> {
    let word = theirs.fetch_add(THEIRS, 1).inspect_err(|_| additions.unknown += 1)?;
    additions.done += 1;
    let rest = || {
        theirs.write(64, &word.to_ne_bytes())?;
        theirs.read(64, &mut [0; 4096])
    };
    rest().inspect_err(|_| additions.broken += 1)
}

fn may_have_landed(error: &RegionError) -> bool {
    match *error {
        RegionError::OutcomeUnknown { .. } => true,
        RegionError::DaemonLost { may_have_landed, .. }
        | RegionError::OwnerGone { may_have_landed, .. }
        | RegionError::Revoked { may_have_landed, .. } => may_have_landed,
        _ => false,
    }
}

/// What the death of a daemon may make of a call that gives a handle: it is to be made again.
fn is_passing(error: &RegionError) -> bool {
    match error {
        RegionError::DaemonLost { .. }
        | RegionError::OutcomeUnknown { .. }
        | RegionError::OwnerGone { .. }
        | RegionError::Revoked { .. } => true,
        RegionError::Refused { why, .. } => {
            matches!(why, RegionRefusal::Unknown | RegionRefusal::Busy | RegionRefusal::Reason(_))
        }
        _ => false,
    }
}

//! Regions in sessions that go on over the death of daemons: handles end with a typed error, and are had again.
//!
//! Owns which errors a program may meet there.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use raas::{Region, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::host::WATCHDOG;

const KEY: RegionKey = RegionKey::new([0x5a; 16]);
const BYTES: u64 = 64 << 10;
/// Between two tries, and two operations of the owner.
const PAUSE: Duration = Duration::from_millis(2);

/// A thread that uses regions until [`Uses::stop`].
pub(super) struct Uses {
    stop: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Uses {
    fn start(run: impl FnOnce(&Receiver<()>) -> Result<()> + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        Self { stop, thread: std::thread::spawn(move || run(&stopped)) }
    }

    /// Ends it; an error is what it met.
    pub(super) fn stop(self) -> Result<()> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("the thread of the regions panicked"))?
    }

    /// Has a region of this program, and makes it again when its daemon has ended.
    pub(super) fn own(session: Session, at: SocketAddr) -> Self {
        Self::start(move |stopped| {
            let mut region = None;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                match use_own(&session, at, &mut region) {
                    Ok(()) => {}
                    Err(error) if is_passing(&error) => region = None,
                    Err(error) => return Err(error).context("the program's own region"),
                }
                std::thread::sleep(PAUSE);
            }
            Ok(())
        })
    }

    /// Uses the region of the program at `to`, and opens it again when it is over. At the end it can be used.
    pub(super) fn theirs(session: Session, to: SocketAddr) -> Self {
        Self::start(move |stopped| {
            let (mut region, mut end) = (None, None);
            loop {
                if end.is_none() && stopped.try_recv() != Err(TryRecvError::Empty) {
                    end = Some(Instant::now());
                }
                match use_theirs(&session, to, &mut region) {
                    Ok(()) if end.is_some() => return Ok(()),
                    Ok(()) => {}
                    Err(error) if is_passing(&error) && end.is_none_or(|end| end.elapsed() < WATCHDOG) => {
                        region = None;
                        std::thread::sleep(PAUSE);
                    }
                    Err(error) => return Err(error).context("the region of the other program"),
                }
            }
        })
    }
}

fn name_of(at: SocketAddr) -> String {
    format!("flow-{}", at.port())
}

fn use_own(session: &Session, at: SocketAddr, region: &mut Option<Region>) -> Result<(), RegionError> {
    let own = match region {
        Some(own) => own,
        None => region.insert(RegionOptions::new().key(KEY).create(session, &name_of(at), BYTES)?),
    };
    own.fetch_add(0, 1).map(drop)
}

fn use_theirs(session: &Session, to: SocketAddr, region: &mut Option<Region>) -> Result<(), RegionError> {
    let theirs = match region {
        Some(theirs) => theirs,
        None => region.insert(Region::open(session, to.ip(), &name_of(to), KEY)?),
    };
    let word = theirs.fetch_add(8, 1)?;
    theirs.write(64, &word.to_ne_bytes())?;
    theirs.read(64, &mut [0; 4096])
}

/// What the death of a daemon may make of a use: each says that the region is to be made or opened again.
fn is_passing(error: &RegionError) -> bool {
    match error {
        RegionError::DaemonLost { .. }
        | RegionError::OutcomeUnknown { .. }
        | RegionError::OwnerGone { .. }
        | RegionError::Revoked { .. } => true,
        RegionError::Refused { why, .. } => matches!(why, RegionRefusal::Unknown | RegionRefusal::Reason(_)),
        _ => false,
    }
}

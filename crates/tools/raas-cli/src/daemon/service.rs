//! What the service manager gives: the control socket, if a socket unit opened it, and what it kept over a restart
//! (sd_listen_fds(3)). What it is told: that the daemon serves, that it lives, that it stops, what it is to keep
//! (sd_notify(3)). Without a service manager nothing is.
//!
//! The watchdog's sign of life is an answer of the daemon itself, through its control socket, control thread and
//! engines. So a daemon that stands still is restarted, though its process is there.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use monitor::Sample;
use raasd::{DescriptorStore, Kept};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use sd_notify::NotifyState;
use terminal::Failure;

/// Signs of life within the time after which the manager restarts the daemon.
const SIGNS: u32 = 3;

/// What the manager gave.
pub(super) struct Given {
    /// The control socket, where the manager has opened it.
    pub(super) socket: Option<OwnedFd>,
    /// Its descriptor store; none without a manager.
    pub(super) kept: Option<Kept>,
}

/// Takes what the manager gave. Descriptors are copies: the number that the manager names is a promise about this process
/// that only the kernel can check.
pub(super) fn given() -> Result<Given, Failure> {
    let cannot = |e: &dyn std::fmt::Display| Failure::Usage(format!("sockets of the service manager: {e}"));
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|e| cannot(&e))?;
    let (mut socket, mut stored) = (None, Vec::new());
    for (number, name) in sd_notify::listen_fds_with_names().map_err(|e| cannot(&e))? {
        let fd = pidfd_getfd(&own, number, PidfdGetfdFlags::empty()).map_err(|e| cannot(&e))?;
        if Kept::is_name(&name) {
            stored.push((name, fd));
        } else if socket.replace(fd).is_some() {
            let words = "there are several; the socket unit must have one ListenSequentialPacket= and nothing else";
            return Err(cannot(&words));
        }
    }
    let kept = std::env::var_os("NOTIFY_SOCKET").map(|_| Kept::new(Box::new(ManagerStore), stored));
    Ok(Given { socket, kept })
}

/// The descriptor store of the manager (sd_notify(3), `FDSTORE=1`).
#[derive(Debug)]
struct ManagerStore;

impl DescriptorStore for ManagerStore {
    fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(name)], &[fd])
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])
    }
}

/// The daemon serves at `socket`. Starts the thread that shows that it lives, if the manager wants that.
pub(super) fn ready(socket: &Path) -> Result<(), Failure> {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let socket = socket.to_path_buf();
    let started = std::thread::Builder::new().name("watchdog".into()).spawn(move || show_life(&socket, limit / SIGNS));
    started.map(drop).map_err(|e| Failure::failed("no thread for the watchdog", e))
}

/// The daemon ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn show_life(socket: &Path, period: Duration) {
    loop {
        match Sample::ask_stat(Some(socket)) {
            Ok(_) => tell(&[NotifyState::Watchdog]),
            Err(error) => tracing::error!(%error, "the daemon does not answer itself; the watchdog is not told"),
        }
        std::thread::sleep(period);
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

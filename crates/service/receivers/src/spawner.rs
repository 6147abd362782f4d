//! The process that makes receivers, because a confined daemon may make none.
//!
//! Owns which of them lives. It never has a descriptor of a program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};

use crate::orders::{next_order, pair, send};
use crate::process::{self, child};
use crate::receiver;
use crate::words::Order;

/// Receivers of one spawner, by number.
pub const RECEIVERS_MAX: u32 = 1024;
/// How long a spawner may take to end when its daemon has let it go, before nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(1);

/// The daemon's hand on the process. Dropping it ends the process and all receivers.
#[derive(Debug)]
pub struct Spawner {
    socket: Option<OwnedFd>,
    pid: Pid,
}

impl Spawner {
    /// Makes the process. It has no descriptor of this one, and its memory as it is now.
    pub fn start() -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let pid = child(theirs, serve)?;
        Ok(Self { socket: Some(ours), pid })
    }

    /// Makes a receiver with a number below [`RECEIVERS_MAX`] that none has which lives; says how to talk to it.
    pub fn receiver(&self, number: u32) -> io::Result<receiver::Receiver> {
        let (ours, theirs) = pair()?;
        self.say(Order::Spawn(number), Some(theirs.as_fd()))?;
        Ok(receiver::Receiver::new(ours))
    }

    /// Kills a receiver. One that waits for a program as no signal can end goes on waiting.
    pub fn kill(&self, number: u32) -> io::Result<()> {
        self.say(Order::Kill(number), None)
    }

    fn say(&self, order: Order, with: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send(socket.as_fd(), order, with)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        drop(self.socket.take());
        let start = Instant::now();
        // Not for ever: a process that another one stops must not stop the daemon.
        while matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None)) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The spawner's life.
fn serve(socket: OwnedFd) {
    let _ = rustix::thread::set_name(c"raas-spawner");
    let mut receivers: [Option<OwnedFd>; RECEIVERS_MAX as usize] = [const { None }; RECEIVERS_MAX as usize];
    while let Some((order, with)) = next_order(&socket) {
        match (order, with) {
            (Order::Spawn(number), Some(theirs)) => {
                let Some(place) = receivers.get_mut(number as usize) else { continue };
                let Ok(pid) = child(theirs, receiver::serve) else { continue };
                // If it has ended already, the number may be somebody else's; it has not, as long as its socket lives.
                *place = pidfd_open(pid, PidfdFlags::empty()).ok();
            }
            (Order::Kill(number), None) => {
                if let Some(pidfd) = receivers.get_mut(number as usize).and_then(Option::take) {
                    let _ = pidfd_send_signal(pidfd, Signal::KILL);
                }
            }
            _ => break,
        }
    }
    // What is left ends with the daemon's ends of its sockets.
    process::end(0)
}

//! What of encrypted connections the kernel does: it makes the records that leave, and opens those that come.
//!
//! Owns the choice, for each direction of each connection by itself. Where the kernel does not take a direction, its records
//! are made or opened in [`wires::Sealed`]; the other end cannot tell. It must never let both do the same direction.

use std::os::fd::{AsFd, OwnedFd};

use records::RecordKey;
use rustix::io::Errno;

use super::counters::TcpCounters;
use crate::KernelTls;
use crate::sys::kernel_tls::{self, Direction};
use wires::Sealed;

/// What a NIC knows of its kernel.
#[derive(Debug)]
pub(crate) struct KernelState {
    wanted: KernelTls,
    /// A connection was refused to for another cause than that there is no TLS: which ciphers a kernel has is found so.
    has_refused: bool,
}

impl KernelState {
    pub(crate) fn new(wanted: KernelTls) -> Self {
        Self { wanted, has_refused: false }
    }

    /// Who encrypts connections, as far as can be said before they are made.
    pub(crate) fn reason(&self) -> &'static str {
        match self.wanted {
            KernelTls::Off => {
                "both ends encrypt, with keys of this queue pair alone; this end without its kernel: `kernel_tls` is \"off\""
            }
            KernelTls::Auto if !kernel_tls::is_there() => {
                "both ends encrypt, with keys of this queue pair alone; this end without its kernel, which has no TLS: \
                 load the module `tls`"
            }
            KernelTls::Auto if self.has_refused => {
                "both ends encrypt, with keys of this queue pair alone; this end without its kernel, whose TLS refused it"
            }
            KernelTls::Auto => "both ends encrypt, with keys of this queue pair alone; this end by its kernel's TLS",
        }
    }

    /// Gives the kernel the key of a direction; whether it took it.
    fn begin(&mut self, fd: &OwnedFd, direction: Direction, key: &RecordKey) -> bool {
        match kernel_tls::begin(fd.as_fd(), direction, key) {
            Ok(()) => {
                self.has_refused = false;
                true
            }
            Err(error) => {
                tracing::debug!(?direction, %error, "the kernel's TLS does not take a connection");
                self.has_refused = true;
                false
            }
        }
    }
}

/// What the kernel does of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InKernel {
    /// TLS is above TCP, and does nothing before it has keys.
    is_attached: bool,
    pub(crate) opens: bool,
    pub(crate) seals: bool,
}

impl InKernel {
    /// Leaves a direction to the kernel if it takes it: what comes if nothing of it was read, what leaves if all of it was
    /// sent. Once it has both, nothing of the keys is left here.
    pub(super) fn take(
        &mut self,
        direction: Direction,
        fd: &OwnedFd,
        sealed: &mut Option<Sealed>,
        (state, counters): (&mut KernelState, &mut TcpCounters),
    ) {
        let Some(own) = sealed.as_mut().filter(|_| self.attach(fd, state)) else { return };
        match direction {
            Direction::Receives if !self.opens => {
                self.opens = own.opener().hand_over(|key| state.begin(fd, direction, key));
                counters.tcp_kernel_opened += u64::from(self.opens);
            }
            Direction::Sends if !self.seals => {
                self.seals = own.idle_sealer().is_some_and(|s| s.hand_over(|key| state.begin(fd, direction, key)));
                counters.tcp_kernel_sealed += u64::from(self.seals);
            }
            _ => {}
        }
        if self.opens && self.seals {
            *sealed = None;
        }
    }

    fn attach(&mut self, fd: &OwnedFd, state: &KernelState) -> bool {
        // It may have been loaded since the last connection, so each one tries.
        self.is_attached |= state.wanted == KernelTls::Auto && kernel_tls::attach(fd.as_fd()).is_ok();
        self.is_attached
    }

    /// Whether the kernel means by this error of the socket that a record was not what the peer sent: its tag, its
    /// length, its version, or the type of its content (`net/tls/tls_sw.c`).
    pub(crate) fn is_forgery(self, error: Errno) -> bool {
        self.opens && matches!(error, Errno::BADMSG | Errno::MSGSIZE | Errno::INVAL | Errno::IO)
    }
}

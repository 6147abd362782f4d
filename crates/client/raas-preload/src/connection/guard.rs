//! `encrypt = "required"`: no byte of the program goes to another host in the clear.
//!
//! Owns what is known of that for one connection. A call that would move the first byte waits until the connection is on
//! a stream, or until the daemon says that this one may be in the clear; else the connection is refused. It must never
//! let TCP have a byte before.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::{Connection, Role};
use crate::desk::requires_encryption;
use crate::kernel_tcp::{is_connecting, peek, poll_now};
use crate::{errno, handlers, hold, inside, real, say};

/// How long the other end may take to come: as long as a connect of the daemon takes by default. On a busy machine link and
/// lane have taken seven seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between looks.
const PAUSE: Duration = Duration::from_millis(1);
/// What refused calls fail with.
const REFUSED: c_int = libc::EACCES;

static SAID: say::Once = say::Once::new();

/// What is known of a connection.
#[derive(Debug, Default)]
pub(super) struct Guard(AtomicU8);

impl Guard {
    /// What a child knows: what the daemon has said holds of the connection, whoever uses it.
    pub(super) fn for_child(&self) -> Self {
        let verdict = self.0.load(Ordering::Acquire);
        Self(AtomicU8::new(if verdict == SEALED { UNDECIDED } else { verdict }))
    }
}

const UNDECIDED: u8 = 0;
/// Its bytes may be in the clear.
const CLEAR: u8 = 1;
/// It came onto a stream before its first byte.
const SEALED: u8 = 2;
const NONE_FOR_IT: u8 = 3;

impl Connection {
    fn verdict(&self) -> u8 {
        self.guard.0.load(Ordering::Acquire)
    }

    /// The daemon says so.
    pub(super) fn note_clear(&self) {
        let _ = self.guard.0.compare_exchange(UNDECIDED, CLEAR, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether the kernel's connection may have bytes of the program.
    pub(super) fn may_be_clear(&self) -> bool {
        !requires_encryption() || self.verdict() == CLEAR
    }

    /// The same of a connection that is to be another's, as it is now.
    pub(super) fn may_leave_clear(&self, fd: c_int) -> bool {
        self.may_be_clear() || self.role() == Role::Fresh || self.judge_kernels(fd)
    }

    /// The program waits for the connection, or will write to it: the other end can say nothing before both have met, so
    /// this one is not to wait for its first byte to look for the other.
    pub(crate) fn look_early(&self, fd: c_int) {
        let is_open = matches!(self.role(), Role::Connected | Role::Accepted) && !self.is_used();
        if requires_encryption() && is_open && self.verdict() == UNDECIDED {
            self.ask(fd);
        }
    }

    /// A program is about to have a byte moved. An error is what its call fails with.
    #[inline]
    pub(super) fn pass_guard(&self, fd: c_int, moves: Moves) -> Result<(), c_int> {
        if !requires_encryption() || matches!(self.verdict(), CLEAR | SEALED) {
            Ok(())
        } else {
            self.await_verdict(fd, moves)
        }
    }

    #[cold]
    fn await_verdict(&self, fd: c_int, moves: Moves) -> Result<(), c_int> {
        let is_fresh = self.role() == Role::Fresh;
        if is_fresh {
            // The first bytes would go with the SYN. Else the kernel says what is wrong.
            return if matches!(moves, Moves::Out { with_syn: true }) { Err(libc::EOPNOTSUPP) } else { Ok(()) };
        }
        let code = errno::get();
        let asked = self.until(matches!(moves, Moves::In { .. }));
        let mut until = Instant::now() + PATIENCE;
        let result = loop {
            match self.verdict() {
                CLEAR | SEALED => break Ok(()),
                NONE_FOR_IT => break Err(REFUSED),
                _ => {}
            }
            if self.writes_stream() {
                self.guard.0.store(SEALED, Ordering::Release);
                continue;
            }
            if inside::is_inside() {
                break Err(libc::EINTR);
            }
            if handlers::is_in_one() {
                // Nothing goes on before the handler returns.
                break Err(libc::EAGAIN);
            }
            let before = hold::ran().ending;
            hold::let_run_within();
            if hold::ran().ending != before {
                break Err(libc::EINTR);
            }
            match self.look_at_socket(fd, matches!(moves, Moves::In { .. })) {
                // The kernel has an error or the end to tell, and takes nothing.
                Socket::Unusable => break Ok(()),
                Socket::Connecting if self.is_nonblocking() => break Err(libc::EAGAIN),
                Socket::Connecting => until = Instant::now() + PATIENCE,
                Socket::Connected => {
                    self.touch(fd);
                    let is_hopeless = if self.is_switching() {
                        self.ask_link().is_some_and(|switch| switch.is_broken())
                    } else {
                        self.is_settled.load(Ordering::Acquire) || self.role() == Role::Kernel
                    };
                    let is_hopeless = is_hopeless && !self.judge_kernels(fd);
                    let is_over = match moves {
                        Moves::Out { .. } => Instant::now() >= until,
                        // What has come was sent in the clear.
                        Moves::In { .. } => {
                            self.verdict() == UNDECIDED && !self.is_switching() && peek(fd, &mut [0]) > 0
                        }
                    };
                    if is_hopeless || is_over {
                        self.refuse(fd);
                        continue;
                    }
                    match moves {
                        _ if self.verdict() != UNDECIDED || self.writes_stream() => continue,
                        Moves::In { may_wait: false } => break Err(libc::EAGAIN),
                        Moves::In { may_wait: true } if asked.is_over() => break Err(libc::EAGAIN),
                        _ => {}
                    }
                }
            }
            std::thread::sleep(PAUSE);
        };
        errno::set(code);
        result
    }

    fn look_at_socket(&self, fd: c_int, reads: bool) -> Socket {
        let told = poll_now(fd, if reads { libc::POLLRDHUP } else { 0 });
        match ends(fd) {
            Some(_) if told == 0 => Socket::Connected,
            None if told == 0 && is_connecting(fd) => Socket::Connecting,
            // Bytes may stand before the end.
            Some(_) if told & (libc::POLLHUP | libc::POLLERR) == 0 && peek(fd, &mut [0]) > 0 => Socket::Connected,
            _ => Socket::Unusable,
        }
    }

    /// Whether a connection that no stream will replace stays on this host.
    fn judge_kernels(&self, fd: c_int) -> bool {
        let is_own = match ends(fd) {
            Some((local, peer)) => local.ip().to_canonical() == peer.ip().to_canonical(),
            None => !is_connecting(fd),
        };
        if is_own {
            self.note_clear();
        }
        is_own
    }

    /// It is over: nothing was sent, and nothing will be.
    pub(super) fn refuse(&self, fd: c_int) {
        if self.guard.0.swap(NONE_FOR_IT, Ordering::AcqRel) == NONE_FOR_IT {
            return;
        }
        let _inside = inside::enter();
        self.tell_refused();
        let peer = ends(fd).map_or_else(|| "another host".to_owned(), |(_, peer)| peer.to_string());
        SAID.say(&format!(
            "the connection with {peer} was refused (not-encrypted): this host has encrypt = \"required\", and the other \
             end did not come onto an encrypted lane before the first byte. Start it with `raas run` on a host whose \
             daemon encrypts, or set encrypt = \"off\" for that [[peer]]"
        ));
        // SAFETY: the call takes no pointers.
        unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
    }
}

/// What a call is about to do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Moves {
    In {
        may_wait: bool,
    },
    /// `with_syn`: while it connects.
    Out {
        with_syn: bool,
    },
}

/// How the kernel sees it.
enum Socket {
    Connecting,
    Connected,
    Unusable,
}

/// This end and the other one of a connected socket.
pub(super) fn ends(fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    // SAFETY: the program is in a call with this descriptor, so it is open until the call returns; it is not closed here.
    let socket = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    Some((socket.local_addr().ok()?, socket.peer_addr().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    const OUT: Moves = Moves::Out { with_syn: false };

    /// The only test that turns it on: it is the process's.
    #[test]
    fn a_connection_that_nobody_may_have_in_the_clear_moves_no_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let connection = Connection::new(Role::Kernel, false);
        assert_eq!(connection.pass_guard(here.as_raw_fd(), OUT), Ok(()), "it is off");
        crate::desk::require_encryption();
        assert_eq!(connection.pass_guard(here.as_raw_fd(), OUT), Ok(()), "both ends have one address");
        let other = TcpListener::bind("127.0.0.2:0").unwrap();
        let there = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        let connection = Connection::new(Role::Kernel, false);
        for _ in 0..2 {
            assert_eq!(connection.pass_guard(there.as_raw_fd(), OUT), Err(REFUSED));
        }
        assert!(!connection.may_leave_clear(there.as_raw_fd()));
        let fresh = Connection::new(Role::Fresh, false);
        assert_eq!(
            fresh.pass_guard(there.as_raw_fd(), Moves::Out { with_syn: true }),
            Err(libc::EOPNOTSUPP),
            "bytes with the SYN"
        );
    }
}

//! Opening the control socket and waiting for the daemon's greeting.
//!
//! Owns whose socket may be believed, and the bound in time. It must never trust a socket that any user could have
//! made.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{ChannelError, Reply, Request, Role};
use raas_core::{Attached, Greeting, SessionFault};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::descriptor::wait_for;
use crate::error::SessionError;

/// Pause before the socket of a daemon whose backlog is full is tried again.
const CONNECT_RETRY: Duration = Duration::from_millis(5);
/// Pause before a descriptor is sent again to a daemon that has not read the greeting.
const INTRODUCED: Duration = Duration::from_millis(1);

/// Connects to the daemon at `path` and introduces this process. `timeout` bounds all of it.
pub(crate) fn attach(
    path: &Path,
    role: Role,
    name: String,
    timeout: Duration,
) -> Result<(OwnedFd, Attached), SessionError> {
    let deadline = Instant::now() + timeout;
    let silent = || SessionError::Silent { path: path.to_path_buf(), waited: timeout };
    let socket = knock(path, deadline)?;
    let greeting = Greeting::new(role, name);
    // A daemon that refuses at once may close before it reads: its reason is still there to be received.
    match control::send_message(socket.as_fd(), &greeting.hello(), &[]) {
        Ok(()) | Err(ChannelError::Closed) => {}
        Err(e) => return Err(SessionError::from(SessionFault::from(e))),
    }
    let mut buffer = Vec::new();
    loop {
        match control::recv_message::<Reply>(socket.as_fd(), &mut buffer) {
            Ok((reply, fds)) => return Ok((socket, greeting.answered(reply, fds)?)),
            Err(ChannelError::WouldBlock) => {
                if !wait_for(socket.as_fd(), PollFlags::IN, deadline)? {
                    return Err(silent());
                }
            }
            Err(e) => return Err(SessionFault::from(e).into()),
        }
    }
}

/// A session on its way to another daemon.
#[derive(Debug)]
pub(crate) struct Bringing {
    socket: OwnedFd,
    /// What the daemon has not taken yet.
    unsaid: VecDeque<(Request, Option<Arc<OwnedFd>>)>,
}

impl Bringing {
    /// These messages, each with its descriptor if there is one, introduce this process and bring its session along.
    pub(crate) fn new(socket: OwnedFd, messages: impl IntoIterator<Item = (Request, Option<Arc<OwnedFd>>)>) -> Self {
        Self { socket, unsaid: messages.into_iter().collect() }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The daemon's answer, for which it has until `deadline`. `None`: it is not there yet, and may be asked for again.
    pub(crate) fn answer(&mut self, deadline: Instant) -> Result<Option<(Reply, Vec<OwnedFd>)>, SessionError> {
        let socket = self.socket.as_fd();
        while let Some((message, fd)) = self.unsaid.front() {
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            match control::send_message(socket, message, &fds) {
                // Of one that closed the reason is still there to be received.
                Ok(()) | Err(ChannelError::Closed) => drop(self.unsaid.pop_front()),
                Err(ChannelError::WouldBlock) if wait_for(socket, PollFlags::OUT, deadline)? => {}
                Err(ChannelError::WouldBlock) => return Ok(None),
                // The kernel refuses descriptors until the daemon has read who this is.
                Err(ChannelError::Io(e)) if !fds.is_empty() && e.kind() == ErrorKind::PermissionDenied => {
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                    std::thread::sleep(INTRODUCED);
                }
                Err(e) => return Err(SessionFault::from(e).into()),
            }
        }
        let mut buffer = Vec::new();
        loop {
            match control::recv_message::<Reply>(socket, &mut buffer) {
                Ok(answer) => return Ok(Some(answer)),
                Err(ChannelError::WouldBlock) if wait_for(socket, PollFlags::IN, deadline)? => {}
                Err(ChannelError::WouldBlock) => return Ok(None),
                Err(e) => return Err(SessionFault::from(e).into()),
            }
        }
    }
}

/// Connects to the process that serves `path`, if it may be believed.
pub(crate) fn knock(path: &Path, deadline: Instant) -> Result<OwnedFd, SessionError> {
    let begin = Instant::now();
    let silent = || SessionError::Silent { path: path.to_path_buf(), waited: begin.elapsed() };
    let socket = dial(path, deadline, silent)?;
    check_server(path, &socket)?;
    Ok(socket)
}

fn dial(path: &Path, deadline: Instant, silent: impl Fn() -> SessionError) -> Result<OwnedFd, SessionError> {
    let no_daemon = |e: Errno| match e {
        Errno::ACCESS | Errno::PERM => denied(path),
        e => SessionError::NoDaemon { path: path.to_path_buf(), cause: std::io::Error::from(e).to_string() },
    };
    let address = SocketAddrUnix::new(path).map_err(no_daemon)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(|e| {
        match e {
            // A sandbox without local sockets: whoever serves there, this process reaches nobody.
            Errno::AFNOSUPPORT | Errno::ACCESS | Errno::PERM => {
                let cause = format!("this process may make no AF_UNIX socket: {}", std::io::Error::from(e));
                SessionError::NoDaemon { path: path.to_path_buf(), cause }
            }
            e => SessionError::os("socket")(e),
        }
    })?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(shm::raised(socket)),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => std::thread::sleep(CONNECT_RETRY),
            Err(Errno::AGAIN | Errno::INTR) => return Err(silent()),
            Err(e) => return Err(no_daemon(e)),
        }
    }
}

/// The error for a socket that refuses this user: which users it lets in, unless nobody is there.
fn denied(path: &Path) -> SessionError {
    use std::os::unix::fs::MetadataExt;
    if control::is_served(path) == Some(false) {
        let cause = "what is there does not let you in, and nobody is seen to serve it in this network namespace";
        return SessionError::NoDaemon { path: path.to_path_buf(), cause: cause.into() };
    }
    let seen = std::fs::metadata(path).ok();
    let mode = seen.as_ref().map(|meta| meta.mode() & 0o7777);
    let group = seen.map(|meta| group_name(meta.gid()));
    SessionError::Denied { path: path.to_path_buf(), mode, group }
}

/// The name of a group as this host's own list has it, else its number.
fn group_name(gid: u32) -> String {
    let list = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let named = list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == gid.to_string()).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| gid.to_string())
}

/// Anybody may make a directory in /tmp: a socket at the usual place there must be this user's or root's.
fn check_server(path: &Path, socket: &OwnedFd) -> Result<(), SessionError> {
    let own = rustix::process::getuid().as_raw();
    let server = control::peer_credentials(socket).map_err(|e| SessionError::io("getsockopt(SO_PEERCRED)", e))?.uid;
    if is_trusted(path, own, server) {
        Ok(())
    } else {
        Err(SessionError::Impostor { path: path.to_path_buf(), uid: server })
    }
}

fn is_trusted(path: &Path, own: u32, server: u32) -> bool {
    server == own || server == 0 || !control::is_in_public_directory(path, own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_names_of_the_host() {
        assert_eq!((group_name(0).as_str(), group_name(4_000_000_000).as_str()), ("root", "4000000000"));
    }

    #[test]
    fn only_this_user_and_root_may_serve_the_usual_place_in_tmp() {
        let usual = Path::new("/tmp/raas-1000/raasd.sock");
        assert!(is_trusted(usual, 1000, 1000) && is_trusted(usual, 1000, 0));
        assert!(!is_trusted(usual, 1000, 1001));
        assert!(is_trusted(Path::new("/run/raas/raasd.sock"), 1000, 1001), "root made that directory");
        assert!(is_trusted(Path::new("/tmp/mine.sock"), 1000, 1001), "named by the user");
    }
}

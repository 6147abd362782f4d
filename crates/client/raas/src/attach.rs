//! Opening the control socket: connect, Hello, Welcome.
//!
//! Owns the first exchange with the daemon and its bound in time. It must never believe a daemon of another version.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use control::{APP_VERSION, ChannelError, Reply, Request, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shm::LAYOUT_VERSION;

use crate::SessionError;

/// Pause before the socket of a daemon whose backlog is full is tried again.
const CONNECT_RETRY: Duration = Duration::from_millis(5);

/// What the daemon said at the start.
#[derive(Debug)]
pub(crate) struct Welcome {
    pub(crate) release: String,
    pub(crate) session: u64,
    pub(crate) slots: u32,
    pub(crate) session_bytes: u64,
    pub(crate) engine_page_bytes: u64,
    pub(crate) addresses: Vec<IpAddr>,
    /// Session segment, engine page, wake socket; none for an inspector.
    pub(crate) fds: Vec<OwnedFd>,
}

/// Connects to the daemon at `path` and introduces this process. `timeout` bounds all of it.
pub(crate) fn attach(
    path: &Path,
    role: Role,
    name: String,
    timeout: Duration,
) -> Result<(OwnedFd, Welcome), SessionError> {
    let deadline = Instant::now() + timeout;
    let silent = || SessionError::Silent { path: path.to_path_buf(), waited: timeout };
    let socket = knock(path, deadline)?;
    let hello = Request::Hello { version: APP_VERSION, layout: LAYOUT_VERSION, role, name };
    // A daemon that refuses at once may close before it reads: its reason is still there to be received.
    match control::send_message(socket.as_fd(), &hello, &[]) {
        Ok(()) | Err(ChannelError::Closed) => {}
        Err(e) => return Err(channel_error(e)),
    }
    let mut buffer = Vec::new();
    loop {
        match control::recv_message::<Reply>(socket.as_fd(), &mut buffer) {
            Ok((reply, fds)) => return Ok((socket, welcome(reply, fds)?)),
            Err(ChannelError::WouldBlock) => {
                if !wait_for(socket.as_fd(), PollFlags::IN, deadline)? {
                    return Err(silent());
                }
            }
            Err(e) => return Err(channel_error(e)),
        }
    }
}

/// Connects to whoever serves `path`, if it may be believed.
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
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(SessionError::os("socket"))?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => std::thread::sleep(CONNECT_RETRY),
            Err(Errno::AGAIN | Errno::INTR) => return Err(silent()),
            Err(e) => return Err(no_daemon(e)),
        }
    }
}

/// Whom a socket that refuses this user lets in.
fn denied(path: &Path) -> SessionError {
    use std::os::unix::fs::MetadataExt;
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
    let (_, server) = control::peer_credentials(socket).map_err(|e| SessionError::io("getsockopt(SO_PEERCRED)", e))?;
    if is_trusted(path, own, server) {
        Ok(())
    } else {
        Err(SessionError::Impostor { path: path.to_path_buf(), uid: server })
    }
}

fn is_trusted(path: &Path, own: u32, server: u32) -> bool {
    server == own || server == 0 || !control::is_in_public_directory(path, own)
}

fn welcome(reply: Reply, fds: Vec<OwnedFd>) -> Result<Welcome, SessionError> {
    match reply {
        Reply::Welcome { version, release, .. } if version != APP_VERSION => {
            Err(SessionError::Version { version, layout: LAYOUT_VERSION, release })
        }
        Reply::Welcome { release, session, slots, session_bytes, engine_page_bytes, addresses, .. } => {
            Ok(Welcome { release, session, slots, session_bytes, engine_page_bytes, addresses, fds })
        }
        Reply::Refused { version, layout, release, .. } if (version, layout) != (APP_VERSION, LAYOUT_VERSION) => {
            Err(SessionError::Version { version, layout, release })
        }
        Reply::Refused { reason, detail, .. } | Reply::Detached { reason, detail } => {
            Err(SessionError::Refused { reason, detail })
        }
        other => Err(SessionError::Protocol(format!("the answer to Hello was {other:?}"))),
    }
}

/// Waits until `fd` is ready or hung up; false when the deadline came first.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, what: PollFlags, deadline: Instant) -> Result<bool, SessionError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(fd, what)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(SessionError::os("poll")(e)),
        }
    }
}

/// Whether the other end of `fd` is gone.
pub(crate) fn is_hung_up(fd: BorrowedFd<'_>) -> Result<bool, SessionError> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    poll(&mut fds, Some(&timespec(Duration::ZERO))).map_err(SessionError::os("poll"))?;
    Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR))
}

/// A duration as the kernel wants it; longer than a year is a year.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    let bounded = duration.min(Duration::from_secs(365 * 86_400));
    Timespec { tv_sec: bounded.as_secs().cast_signed(), tv_nsec: bounded.subsec_nanos().into() }
}

/// What a failure of the control socket means for the session.
pub(crate) fn channel_error(error: ChannelError) -> SessionError {
    match error {
        ChannelError::Closed => SessionError::Lost { reason: control::Reason::DaemonLost },
        ChannelError::Io(e) => SessionError::io("control socket", e),
        ChannelError::DescriptorLimit { limit } => SessionError::Descriptors { limit },
        other => SessionError::Protocol(other.to_string()),
    }
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

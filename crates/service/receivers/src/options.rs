//! Options of sockets that no library names yet.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Linux 6.16 (include/uapi/asm-generic/socket.h): whether descriptors may be sent to a Unix socket.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Groups for which there is room without asking twice.
const GROUPS_AT_FIRST: usize = 32;
/// Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// Nobody can send descriptors to `socket`, or to what is accepted from it, any more: the sender gets EPERM. An error
/// is that of a kernel that does not have it.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    pass_rights(socket.as_fd(), 0)
}

/// The reverse of [`refuse_descriptors`].
pub fn allow_descriptors(socket: impl AsFd) -> io::Result<()> {
    pass_rights(socket.as_fd(), 1)
}

fn pass_rights(socket: BorrowedFd<'_>, value: libc::c_int) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` lives through the call, and `len` is its size.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of the network namespace that a socket is of: unique on this machine until it restarts. Fails on Linux
/// before 5.14.
pub fn network_namespace(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `cookie` and `len` live through the call, and `len` is the size of `cookie`.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut len) };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// The process that connected a Unix socket. Fails on Linux before 6.5, and if the process was waited for by then.
pub fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut process: libc::c_int = -1;
    let mut len = size_of_val(&process) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `process` and `len` live through the call, and `len` is the size of `process`.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut process).cast(), &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for this call, and nobody else has the number.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

/// Groups of a program beside its effective one, as they were when it connected to a Unix socket.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let fd = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_AT_FIRST];
    loop {
        let mut len = libc::socklen_t::try_from(size_of_val(&groups[..])).map_err(io::Error::other)?;
        // SAFETY: `groups` has `len` bytes, and both live through the call.
        let result = unsafe {
            let at = groups.as_mut_ptr().cast();
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, at, &raw mut len)
        };
        let needed = len as usize / size_of::<libc::gid_t>();
        match io::Error::last_os_error() {
            _ if result == 0 => {
                groups.truncate(needed);
                return Ok(groups);
            }
            error if error.raw_os_error() == Some(libc::ERANGE) && needed > groups.len() => groups.resize(needed, 0),
            error => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

    #[test]
    fn the_groups_of_a_peer_are_those_of_this_process() {
        let kind = SocketType::SEQPACKET;
        let (a, _b) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let own: Vec<u32> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!(peer_groups(&a).unwrap(), own);
        assert!(peer_groups(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }

    #[test]
    fn the_kernel_refuses_descriptors_to_what_is_accepted_too() {
        let dir = tempfile::tempdir().unwrap();
        let address = SocketAddrUnix::new(dir.path().join("s")).unwrap();
        let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (listener, client) = (socket(), socket());
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        if refuse_descriptors(&listener).is_err() {
            eprintln!("SKIP the_kernel_refuses_descriptors_to_what_is_accepted_too: Linux before 6.16");
            return;
        }
        rustix::net::connect(&client, &address).unwrap();
        let send = || control::send_message(client.as_fd(), &1_u32, &[listener.as_fd()]);
        assert!(send().is_err(), "before it is accepted");
        let accepted = rustix::net::accept(&listener).unwrap();
        assert!(send().is_err(), "and after");
        control::send_message(client.as_fd(), &2_u32, &[]).unwrap();
        allow_descriptors(&accepted).unwrap();
        send().unwrap();
    }
}

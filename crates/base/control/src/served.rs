//! Which sockets are served on this host, as the kernel lists them to everybody.
//!
//! Owns reading /proc/net/unix. It must never connect: a socket that lets this user not in, or whose directory does not,
//! is told apart from what a daemon that has ended left behind.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kernel's list, of this process's network namespace.
const LIST: &str = "/proc/net/unix";
/// Bytes of it that are read: more than a hundred thousand sockets.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// `SOCK_SEQPACKET`, as the list has it.
const SEQPACKET: &[u8] = b"0005";
/// `__SO_ACCEPTCON`: it listens.
const LISTENS: &[u8] = b"00010000";

/// The paths at which somebody in this network namespace serves a socket of the daemon's kind, as they were named when
/// they were made. None: the kernel does not tell.
pub fn served_sockets() -> Option<Vec<PathBuf>> {
    let mut list = Vec::new();
    std::fs::File::open(LIST).ok()?.take(LIST_BYTES_MAX).read_to_end(&mut list).ok()?;
    Some(listening(&list).map(|path| PathBuf::from(OsStr::from_bytes(path))).collect())
}

/// Whether somebody in this network namespace serves the socket at `path`, by whatever name of its directory. None: the
/// kernel does not tell.
pub fn is_served(path: &Path) -> Option<bool> {
    let wanted = with_real_directory(path);
    Some(served_sockets()?.iter().any(|served| served == path || with_real_directory(served) == wanted))
}

/// Links in the directory followed, as far as this user may.
fn with_real_directory(path: &Path) -> PathBuf {
    let real = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    real().unwrap_or_else(|| path.to_path_buf())
}

/// Paths of listening sockets in the text of the list: `Num RefCount Protocol Flags Type St Inode Path`.
fn listening(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut rest = line;
        let mut field = || {
            let begin = rest.iter().position(|byte| *byte != b' ')?;
            let text = rest.get(begin..)?;
            let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
            let (field, behind) = text.split_at(end);
            rest = behind;
            Some(field)
        };
        let (flags, kind) = (field().and_then(|_| field()).and_then(|_| field()).and_then(|_| field())?, field()?);
        let _inode = field().and_then(|_| field())?;
        // A path may have spaces.
        let path = rest.strip_prefix(b" ").filter(|path| path.first() == Some(&b'/'))?;
        (flags == LISTENS && kind == SEQPACKET).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn listening_sockets_of_the_kind_are_found_in_the_list() {
        let list = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            00000000a: 00000003 00000000 00000000 0001 03   565\n\
            00000000b: 00000002 00000000 00010000 0005 01  7000 /run/a b/raasd.sock\n\
            00000000c: 00000002 00000000 00010000 0001 01  7001 /run/stream\n\
            00000000d: 00000002 00000000 00000000 0005 03 17002 /run/connected\n\
            00000000e: 00000002 00000000 00010000 0005 01  7003 @abstract\n\
            00000000f: 00000002 00000000 00010000 0005\n";
        assert_eq!(listening(list).collect::<Vec<_>>(), [b"/run/a b/raasd.sock"]);
    }

    #[test]
    fn a_socket_is_served_as_long_as_somebody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("s"), dir.path().join("link"));
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(is_served(&path), Some(false), "it does not listen yet");
        rustix::net::listen(&socket, 1).unwrap();
        assert_eq!((is_served(&path), is_served(&link.join("s"))), (Some(true), Some(true)));
        drop(socket);
        assert_eq!(is_served(&path), Some(false), "the file alone");
    }
}

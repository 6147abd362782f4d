//! The control socket's place in the file system: directory, lock, stale files, modes.
//!
//! Owns the promise that one daemon serves one socket: a lock file beside it, held as long as the daemon lives. It must
//! never remove a file that is not a socket, or the socket of a daemon that lives.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::incarnation::{Incarnation, SECRET_BYTES};
use crate::socket_group::SocketGroup;
use crate::{Config, ConfigError, DaemonError, neighbours};

/// Programs that may wait to be accepted.
const ACCEPT_BACKLOG: i32 = 128;
/// Pause between two looks at whether the daemon that was told to end has.
const LOOK: Duration = Duration::from_millis(2);

/// The place, held by this process.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    path: PathBuf,
    lock: File,
    bound: bool,
    given: Option<OwnedFd>,
}

impl SocketPlace {
    /// Takes the place of a configuration, if need be when the daemon has ended that was told to.
    pub(crate) fn take_for(config: &Config, group: Option<&SocketGroup>) -> Result<Self, DaemonError> {
        let (wait, begin) = (config.place_wait, Instant::now());
        loop {
            match Self::take(&config.socket, config.socket_mode, group, config.given_socket.as_deref()) {
                Err(DaemonError::AlreadyRunning { .. }) if begin.elapsed() < wait => std::thread::sleep(LOOK),
                Err(DaemonError::AlreadyRunning { socket, .. }) if !wait.is_zero() => {
                    return Err(DaemonError::NotEnded { socket, waited: wait });
                }
                taken => return taken,
            }
        }
    }

    /// Makes the directory if needed and takes the place. `mode` is the socket's; a group's members may enter the
    /// directory. A socket that the service manager has opened (`given`) is checked and taken as it is.
    pub(crate) fn take(
        path: &Path,
        mode: u32,
        group: Option<&SocketGroup>,
        given: Option<&OwnedFd>,
    ) -> Result<Self, DaemonError> {
        let fail = |what| move |source| DaemonError::Socket { socket: path.to_path_buf(), what, source };
        address_of(path)?;
        let directory = directory_of(path);
        let open = directory_mode(mode, group.is_some());
        make_directory(directory, open).map_err(fail("its directory cannot be made"))?;
        check_directory(directory).map_err(fail("its directory is not safe"))?;
        let lock_path = neighbours::lock_path(path);
        let lock = open_lock(&lock_path).map_err(fail("its lock file cannot be opened"))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(DaemonError::already_running(path)),
            Err(e) => return Err(fail("its lock file cannot be locked")(e.into())),
        }
        let given = given.map(|given| check_given(given, path)).transpose();
        let given = given.map_err(fail("the socket of the service manager cannot be used"))?;
        let place = Self { path: path.to_path_buf(), lock, bound: false, given };
        if place.given.is_none() {
            place.remove_stale()?;
        }
        if let Some(group) = group {
            group.enter(place.directory(), path)?;
        }
        Ok(place)
    }

    /// Whether this process could take the place after the daemon that has it. Changes nothing.
    pub(crate) fn look(path: &Path) -> Result<(), DaemonError> {
        let directory = directory_of(path);
        let lock = neighbours::lock_path(path);
        let looked = match std::fs::symlink_metadata(&lock) {
            // No daemon is there.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            _ => check_directory(directory).and_then(|()| open_lock(&lock).map(drop)),
        };
        looked.map_err(|source| DaemonError::ForeignPlace { socket: path.to_path_buf(), source })
    }

    /// Whether a daemon could be started there. Changes nothing. Words: who serves there now, which is no mistake of the
    /// configuration.
    pub(crate) fn check(config: &Config) -> Result<Option<String>, DaemonError> {
        let path = config.socket.as_path();
        let fail = |what| move |source| DaemonError::Socket { socket: path.to_path_buf(), what, source };
        address_of(path)?;
        let directory = directory_of(path);
        let is_there = match std::fs::metadata(directory) {
            Ok(meta) if !meta.is_dir() => {
                return Err(fail("its directory is none")(io::ErrorKind::NotADirectory.into()));
            }
            Ok(_) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(fail("its directory cannot be looked at")(e)),
        };
        if is_there {
            check_directory(directory).map_err(fail("its directory is not safe"))?;
        }
        // What root makes there, or gives to `user`, this process cannot try: it is that user by now.
        let is_who_makes_it = config.user.is_none();
        if is_who_makes_it {
            let made_in = directory.ancestors().map(here_if_empty).find(|p| p.exists()).unwrap_or(Path::new("/"));
            let what = if is_there { "its directory cannot be written" } else { "its directory cannot be made" };
            may_write(made_in).map_err(fail(what))?;
        }
        if !is_there {
            return Ok(None);
        }
        if is_who_makes_it {
            let lock = neighbours::lock_path(path);
            if std::fs::symlink_metadata(&lock).is_ok() {
                open_lock(&lock).map_err(fail("its lock file cannot be opened"))?;
            }
            check_what_is_there(path)?;
        }
        let server = neighbours::server(path).map(|server| format!(" ({server})"));
        let words = |who: String| {
            format!("{} is served already{who}; a start takes --replace, or another --socket", path.display())
        };
        Ok(server.or_else(|| is_served(path).then(String::new)).map(words))
    }

    /// Which daemon of this place it is. `fresh` is its secret if there is none that can be used.
    pub(crate) fn incarnation(&self, fresh: [u8; SECRET_BYTES]) -> Result<Incarnation, DaemonError> {
        let fail = |source| DaemonError::Socket {
            socket: self.path.clone(),
            what: "its lock file cannot be read and written",
            source,
        };
        Incarnation::begin(&self.lock, fresh).map_err(fail)
    }

    /// The directory, where the key lies too.
    pub(crate) fn directory(&self) -> &Path {
        directory_of(&self.path)
    }

    /// Opens the listening socket, non-blocking. Its mode is right before anyone can connect.
    pub(crate) fn listen(&mut self, mode: u32, group: Option<&SocketGroup>) -> Result<OwnedFd, DaemonError> {
        let fail = |what| {
            let socket = self.path.clone();
            move |source| DaemonError::Socket { socket, what, source }
        };
        if let Some(given) = self.given.take() {
            rustix::io::ioctl_fionbio(&given, true).map_err(|e| fail("it cannot be made non-blocking")(e.into()))?;
            return Ok(given);
        }
        let address = address_of(&self.path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| fail("socket")(e.into()))?;
        rustix::net::bind(&socket, &address).map_err(|e| fail("bind")(e.into()))?;
        self.bound = true;
        if let Some(group) = group {
            group.own(&self.path)?;
        }
        std::fs::set_permissions(&self.path, Permissions::from_mode(mode)).map_err(fail("its mode cannot be set"))?;
        rustix::net::listen(&socket, ACCEPT_BACKLOG).map_err(|e| fail("listen")(e.into()))?;
        Ok(socket)
    }

    /// Removes the socket of a daemon that died. A daemon without the lock (another release) is noticed by connecting.
    fn remove_stale(&self) -> Result<(), DaemonError> {
        if !check_what_is_there(&self.path)? {
            return Ok(());
        }
        if is_served(&self.path) {
            return Err(DaemonError::already_running(&self.path));
        }
        tracing::info!(socket = %self.path.display(), "removing the socket of a daemon that died");
        let what = "the stale socket cannot be removed";
        let fail = |source| DaemonError::Socket { socket: self.path.clone(), what, source };
        std::fs::remove_file(&self.path).map_err(fail)
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        if self.bound {
            let _ = std::fs::remove_file(&self.path);
        }
        // The lock file stays: removing it would let two daemons lock two files of one name.
    }
}

/// Whether there is a socket, of a daemon that lives or not. An error: something else is there, or a stranger's.
fn check_what_is_there(path: &Path) -> Result<bool, DaemonError> {
    let fail = |what| move |source| DaemonError::Socket { socket: path.to_path_buf(), what, source };
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(fail("it cannot be looked at")(e)),
    };
    if !meta.file_type().is_socket() {
        let not_socket = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(fail("something that is no socket is there; choose another --socket")(not_socket));
    }
    let own = rustix::process::geteuid().as_raw();
    let is_sticky =
        std::fs::metadata(directory_of(path)).is_ok_and(|meta| meta.mode() & 0o1000 != 0 && meta.uid() != own);
    if is_sticky && own != 0 && meta.uid() != own {
        let whose = refused(format!("it belongs to user {}, so user {own} cannot remove it", meta.uid()));
        return Err(fail("a socket of somebody else is there; choose another --socket")(whose));
    }
    Ok(true)
}

/// The address that the kernel gives to a socket at `path`.
fn address_of(path: &Path) -> Result<SocketAddrUnix, DaemonError> {
    let told = |what: &str| ConfigError::one(format!("socket {}: {what}", path.display()));
    if path.file_name().is_none() {
        return Err(told("the path names no file").into());
    }
    SocketAddrUnix::new(path).map_err(|_| told("the path is too long for a socket, 107 bytes are allowed").into())
}

fn directory_of(socket: &Path) -> &Path {
    here_if_empty(socket.parent().unwrap_or(Path::new("")))
}

/// The directory of a name alone is the one where the process is.
fn here_if_empty(directory: &Path) -> &Path {
    if directory.as_os_str().is_empty() { Path::new(".") } else { directory }
}

/// Whether this process may make files in a directory.
fn may_write(directory: &Path) -> io::Result<()> {
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let tried = rustix::fs::accessat(rustix::fs::CWD, directory, access, rustix::fs::AtFlags::EACCESS);
    tried.map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("{}: {e}", directory.display())))
}

/// Where others may write to the directory (/tmp) they may have put a link, a pipe or a file of theirs in the lock's
/// place: none of them is followed, waited for or changed.
fn open_lock(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let lock =
        File::options().read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path);
    let lock = lock.map_err(|e| match rustix::io::Errno::from_io_error(&e) {
        Some(rustix::io::Errno::LOOP) => refused(format!("{} is a symbolic link: remove it", path.display())),
        _ => e,
    })?;
    let meta = lock.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Err(refused(format!("{} is no regular file: remove it", path.display())));
    }
    if meta.uid() != own && meta.uid() != 0 {
        return Err(refused(format!("{} belongs to user {}: remove it", path.display(), meta.uid())));
    }
    Ok(lock)
}

/// Others may come this far if others may connect; a group's directory is opened to it apart.
fn directory_mode(socket_mode: u32, has_group: bool) -> u32 {
    if socket_mode & 0o007 != 0 || (!has_group && socket_mode & 0o070 != 0) { 0o755 } else { 0o700 }
}

/// Makes the directory of a socket, if it is not there, as [`SocketPlace::take`] does.
pub(crate) fn make_directory_of(socket: &Path, mode: u32, has_group: bool) -> Result<(), DaemonError> {
    let directory = directory_of(socket);
    make_directory(directory, directory_mode(mode, has_group)).map_err(|source| DaemonError::Socket {
        socket: socket.to_path_buf(),
        what: "its directory cannot be made",
        source,
    })
}

fn refused(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn make_directory(directory: &Path, mode: u32) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent().filter(|p| !p.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(mode).create(parent)?;
    }
    match DirBuilder::new().mode(mode).create(directory) {
        // The mode above is cut by the umask. A link that somebody put there meanwhile is not followed.
        Ok(()) => {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = rustix::fs::open(directory, flags, Mode::empty())?;
            Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?)
        }
        // Another daemon was first: what it made is checked as any other.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

/// A user who can write the directory can replace our socket by another. /tmp with its sticky bit is fine.
fn check_directory(directory: &Path) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    // The owner of a link decides where it leads.
    let link = std::fs::symlink_metadata(directory)?;
    if link.is_symlink() && link.uid() != own && link.uid() != 0 {
        return Err(refused(format!("{} is a symbolic link of user {}", directory.display(), link.uid())));
    }
    let meta = std::fs::metadata(directory)?;
    if meta.uid() != own && meta.uid() != 0 {
        let text = format!("{} belongs to user {}, not to user {own} or root", directory.display(), meta.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0 {
        let text = format!("others can write {} (mode {:04o})", directory.display(), meta.mode() & 0o7777);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// A socket of the service manager, if it is one on which the daemon can serve at `path`.
fn check_given(given: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    if !rustix::net::sockopt::socket_acceptconn(given)?
        || rustix::net::sockopt::socket_type(given)? != SocketType::SEQPACKET
    {
        return Err(wrong("it is not one of ListenSequentialPacket=".into()));
    }
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(given)?)?;
    let at = address.path_bytes().map(|bytes| Path::new(OsStr::from_bytes(bytes)).to_path_buf()).unwrap_or_default();
    if std::fs::canonicalize(&at)? != std::fs::canonicalize(path)? {
        return Err(wrong(format!("it is {}; ListenSequentialPacket= and `socket` must be the same", at.display())));
    }
    given.try_clone()
}

/// A full backlog means a daemon too.
fn is_served(path: &Path) -> bool {
    matches!(neighbours::knock(path), Ok(_) | Err(rustix::io::Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_for_one_socket_and_stale_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d/raasd.sock");
        let mut first = SocketPlace::take(&path, 0o600, None, None).unwrap();
        let listener = first.listen(0o600, None).unwrap();
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(SocketPlace::take(&path, 0o600, None, None), Err(DaemonError::AlreadyRunning { .. })));
        drop(first);
        assert!(!path.exists());
        drop(listener);

        let mut killed = SocketPlace::take(&path, 0o600, None, None).unwrap();
        let listener = killed.listen(0o600, None).unwrap();
        std::fs::remove_file(path.with_extension("sock.lock")).unwrap();
        // Without its lock, as another release: still noticed, because it answers.
        assert!(matches!(SocketPlace::take(&path, 0o600, None, None), Err(DaemonError::AlreadyRunning { .. })));
        drop(listener);
        killed.bound = false;
        drop(killed);
        assert!(path.exists(), "a killed daemon leaves its socket");
        SocketPlace::take(&path, 0o600, None, None).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_file_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (path, lock) = (dir.path().join("s"), dir.path().join("s.lock"));
        let victim = dir.path().join("victim");
        let take = || SocketPlace::take(&path, 0o600, None, None).map(drop).map_err(|e| e.to_string());
        std::os::unix::fs::symlink(&victim, &lock).unwrap();
        let error = take().unwrap_err();
        assert!(error.contains("s.lock is a symbolic link"), "{error}");
        assert!(!victim.exists(), "the link was followed");
        std::fs::write(&victim, "precious").unwrap();
        assert!(take().is_err());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        std::fs::remove_file(&lock).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &lock, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(take().is_err(), "a pipe that nobody reads");
        std::fs::remove_file(&lock).unwrap();
        take().unwrap();
    }

    #[test]
    fn a_directory_is_made_with_its_parents_and_mode_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c/s");
        SocketPlace::take(&path, 0o666, None, None).unwrap();
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o755);
        // An own link is as good as a directory.
        std::os::unix::fs::symlink(dir.path().join("a/b/c"), dir.path().join("link")).unwrap();
        SocketPlace::take(&dir.path().join("link/t"), 0o600, None, None).unwrap();
    }

    #[test]
    fn what_is_no_socket_stays_and_open_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        assert!(SocketPlace::take(&path, 0o600, None, None).unwrap_err().to_string().contains("no socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let refused = SocketPlace::take(&dir.path().join("s"), 0o600, None, None).unwrap_err();
        assert!(refused.to_string().contains("not safe"), "{refused}");
    }
}

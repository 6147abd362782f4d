//! `socket_group`: the group whose members may use the daemon.
//!
//! Owns finding the group and giving a file to it. It must never give away a directory that holds what is not the
//! daemon's.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::DaemonError;
use crate::key::KEY_FILE_NAME;

/// Mode of the directory whose socket a group may use: its members may enter, and see what is in it.
const DIRECTORY_MODE: u32 = 0o750;

/// A group of this system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketGroup {
    name: String,
    gid: u32,
}

impl fmt::Display for SocketGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.gid)
    }
}

/// The group of this name or number.
pub(crate) fn group_of(text: &str) -> Result<SocketGroup, DaemonError> {
    let fail = |what: String| DaemonError::Group { group: text.into(), what };
    let found = nix::unistd::Group::from_name(text).map_err(|e| fail(format!("the system cannot look it up: {e}")))?;
    match (found, text.parse()) {
        (Some(group), _) => Ok(SocketGroup { name: text.into(), gid: group.gid.as_raw() }),
        (None, Ok(gid)) => Ok(SocketGroup { name: text.into(), gid }),
        (None, Err(_)) => {
            Err(fail("there is no such group; `getent group` lists them, `groupadd --system NAME` makes one".into()))
        }
    }
}

impl SocketGroup {
    /// Its number.
    pub(crate) fn gid(&self) -> u32 {
        self.gid
    }

    /// Gives a file to the group; a link is not followed.
    pub(crate) fn own(&self, path: &Path) -> Result<(), DaemonError> {
        std::os::unix::fs::lchown(path, None, Some(self.gid)).map_err(|e| DaemonError::Group {
            group: self.to_string(),
            what: format!("{} cannot be given to it: {e}; the daemon must run as root or as a member", path.display()),
        })
    }

    /// Lets the group enter `directory`, which holds the socket `socket`. One that was there before, and holds anything
    /// that is not a daemon's, is left alone, with words if the group cannot enter it.
    pub(crate) fn enter(&self, directory: &Path, socket: &Path) -> Result<(), DaemonError> {
        let fail = |e: io::Error| self.refused(directory, &e.to_string());
        let directory = &std::fs::canonicalize(directory).map_err(fail)?;
        let meta = std::fs::metadata(directory).map_err(fail)?;
        let may_enter = meta.mode() & 0o001 != 0 || (meta.gid() == self.gid && meta.mode() & 0o010 != 0);
        if may_enter {
            return Ok(());
        }
        if meta.uid() != rustix::process::geteuid().as_raw() || !is_the_daemons(directory, socket).map_err(fail)? {
            let shown = directory.display();
            return Err(self.refused(directory, &format!("try: chgrp {} {shown} && chmod g+rx {shown}", self.name)));
        }
        self.own(directory)?;
        std::fs::set_permissions(directory, Permissions::from_mode(DIRECTORY_MODE)).map_err(fail)
    }

    fn refused(&self, directory: &Path, what: &str) -> DaemonError {
        let what = format!("its members cannot enter {}: {what}", directory.display());
        DaemonError::Group { group: self.to_string(), what }
    }
}

/// Whether `directory` holds only what a daemon puts there.
pub(crate) fn is_the_daemons(directory: &Path, socket: &Path) -> io::Result<bool> {
    let socket = socket.file_name().unwrap_or_default().as_encoded_bytes().to_vec();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let name = name.as_encoded_bytes();
        let draft = name.strip_prefix(b".").unwrap_or(name);
        if !name.starts_with(&socket) && !draft.starts_with(KEY_FILE_NAME.as_bytes()) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_group() -> SocketGroup {
        group_of(&rustix::process::getegid().as_raw().to_string()).unwrap()
    }

    #[test]
    fn groups_are_found_by_name_and_number() {
        assert_eq!(group_of("root").unwrap().gid, 0);
        assert_eq!(group_of("4242").unwrap().gid, 4242);
        assert!(group_of("no such group").unwrap_err().to_string().contains("groupadd"));
    }

    #[test]
    fn the_daemons_own_directory_is_opened_to_the_group_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("raasd.sock");
        for name in ["raasd.sock.lock", KEY_FILE_NAME] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let mode = || std::fs::metadata(dir.path()).unwrap().mode() & 0o777;
        own_group().enter(dir.path(), &socket).unwrap();
        assert_eq!(mode(), DIRECTORY_MODE);
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        std::fs::write(dir.path().join("letter"), "private").unwrap();
        let refused = own_group().enter(dir.path(), &socket).unwrap_err().to_string();
        assert!(refused.contains("chgrp") && refused.contains("chmod g+rx"), "{refused}");
        assert_eq!(mode(), 0o700);
    }
}

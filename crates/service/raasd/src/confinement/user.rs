//! Becoming another user, for good.
//!
//! Owns the order (groups, group, user) and reading it back. It must never go on with a right that it was to give up.

use std::ffi::CString;
use std::path::Path;

use nix::unistd::{
    Gid, Group, Uid, User, getgrouplist, getgroups, getresgid, getresuid, setgroups, setresgid, setresuid,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities, set_keep_capabilities,
};

use crate::socket_group::{group_of, is_the_daemons};
use crate::{Config, DaemonError};

/// By which nobody can punch holes into a region (`shm::RegionMemory`). All else that it allows is to protect and unprotect
/// files that the process owns.
const KEPT: CapabilitySet = CapabilitySet::LINUX_IMMUTABLE;

/// The user that the daemon is to become.
#[derive(Debug)]
pub(super) struct Daemons {
    name: String,
    uid: Uid,
    gid: Gid,
    /// Those that the system's files give to the user, and that of `socket_group`.
    groups: Vec<Gid>,
}

/// The user of this name or number, with `group` and `socket_group` of the configuration.
pub(super) fn find(name: &str, config: &Config) -> Result<Daemons, DaemonError> {
    let fail = |what: String| DaemonError::User { user: name.into(), what };
    let by_name = User::from_name(name).map_err(|e| fail(format!("the system cannot look it up: {e}")))?;
    let known = match (by_name, name.parse().map(Uid::from_raw)) {
        (Some(user), _) => Some(user),
        (None, Ok(uid)) => User::from_uid(uid).map_err(|e| fail(format!("the system cannot look it up: {e}")))?,
        (None, Err(_)) => {
            let told = "there is no such user; `useradd --system NAME` makes one, `getent passwd` lists them";
            return Err(fail(told.into()));
        }
    };
    let gid = match (&config.group, &known) {
        (Some(group), _) => gid_of(group).map_err(&fail)?,
        (None, Some(user)) => user.gid,
        (None, None) => return Err(fail("a number without a name has no group of its own: set `group` too".into())),
    };
    let uid = known.as_ref().map_or_else(|| Uid::from_raw(name.parse().unwrap_or(u32::MAX)), |user| user.uid);
    let mut groups = match &known {
        Some(user) => {
            let c_name = CString::new(user.name.as_str()).map_err(|e| fail(e.to_string()))?;
            getgrouplist(&c_name, gid).map_err(|e| fail(format!("its groups cannot be looked up: {e}")))?
        }
        None => vec![gid],
    };
    if let Some(group) = &config.socket_group {
        groups.push(Gid::from_raw(group_of(group)?.gid()));
    }
    groups.sort_unstable_by_key(|gid| gid.as_raw());
    groups.dedup();
    let own = Uid::effective();
    if !own.is_root() && own != uid {
        let told =
            format!("this process is user {own}, and only root can become another: start it as root or as {name}");
        return Err(fail(told));
    }
    Ok(Daemons { name: name.into(), uid, gid, groups })
}

fn gid_of(group: &str) -> Result<Gid, String> {
    let found = Group::from_name(group).map_err(|e| format!("group {group}: the system cannot look it up: {e}"))?;
    match (found, group.parse()) {
        (Some(group), _) => Ok(group.gid),
        (None, Ok(gid)) => Ok(Gid::from_raw(gid)),
        (None, Err(_)) => Err(format!("group {group}: there is no such group")),
    }
}

impl Daemons {
    fn fail(&self, what: String) -> DaemonError {
        DaemonError::User { user: self.name.clone(), what }
    }

    /// Gives the control socket's directory to the user: one that root made for a daemon, with the files of one. What
    /// others can write to, or holds anything else, is left alone.
    pub(super) fn give_directory(&self, directory: &Path, socket: &Path) -> Result<(), DaemonError> {
        use std::os::unix::fs::{MetadataExt, lchown};
        if !Uid::effective().is_root() || self.uid.is_root() {
            return Ok(());
        }
        let shown = directory.display();
        let fail = |e: std::io::Error| self.fail(format!("{shown} cannot be given to it: {e}"));
        let meta = std::fs::metadata(directory).map_err(fail)?;
        let is_roots = meta.uid() == 0 && meta.mode() & 0o022 == 0;
        if !is_roots {
            return Ok(());
        }
        if !is_the_daemons(directory, socket).map_err(fail)? {
            let told =
                format!("it cannot write to {shown}, where the control socket is to be, and other files are there");
            return Err(self.fail(format!("{told}: chown it, or choose a directory for the socket alone")));
        }
        // Only root could put anything there: no name leads elsewhere.
        for entry in std::fs::read_dir(directory).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            lchown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw())).map_err(fail)?;
        }
        std::os::unix::fs::chown(directory, Some(self.uid.as_raw()), None).map_err(fail)
    }

    /// Becomes the user, without a way back and without any capability but [`KEPT`]; says so.
    pub(super) fn become_it(&self) -> Result<String, DaemonError> {
        let step = |what: &'static str| move |e: nix::errno::Errno| self.fail(format!("{what}: {e}"));
        let (uid, gid) = (self.uid, self.gid);
        let kept = capabilities(None).map_err(|e| self.fail(format!("capabilities cannot be read: {e}")))?;
        let kept = kept.permitted & KEPT;
        if Uid::effective() != uid {
            set_keep_capabilities(true).map_err(|e| self.fail(format!("PR_SET_KEEPCAPS: {e}")))?;
            // Registered memory of RDMA hardware is locked, and the user may not lock more than its limit.
            let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
            setgroups(&self.groups).map_err(step("setgroups"))?;
            setresgid(gid, gid, gid).map_err(step("setresgid"))?;
            setresuid(uid, uid, uid).map_err(step("setresuid"))?;
        }
        let dropped = || -> rustix::io::Result<()> {
            clear_ambient_capability_set()?;
            let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
            set_capabilities(None, sets)?;
            set_keep_capabilities(false)?;
            // Else its own /proc/self would be root's, where it looks at its descriptors.
            set_dumpable_behavior(DumpableBehavior::Dumpable)?;
            rustix::thread::set_no_new_privs(true)
        };
        dropped().map_err(|e| self.fail(format!("its rights cannot be given up: {e}")))?;
        self.read_back()?;
        let groups: Vec<_> = self.groups.iter().map(ToString::to_string).collect();
        Ok(format!(
            "user {} ({uid}), group {gid} of {}: {}, no way to get one",
            self.name,
            groups.join(", "),
            if kept.is_empty() { "no capability" } else { "no capability but CAP_LINUX_IMMUTABLE" }
        ))
    }

    /// What the kernel says of this process now.
    fn read_back(&self) -> Result<(), DaemonError> {
        let unexpected = |what: String| self.fail(format!("{what}; this is a bug in raas"));
        let failed = |e: nix::errno::Errno| self.fail(format!("what holds now cannot be read: {e}"));
        let users = getresuid().map_err(failed)?;
        if [users.real, users.effective, users.saved] != [self.uid; 3] {
            return Err(unexpected(format!("the process is {users:?}")));
        }
        let held = capabilities(None).map_err(|e| self.fail(format!("capabilities cannot be read: {e}")))?;
        if !KEPT.contains(held.effective | held.permitted) || !held.inheritable.is_empty() {
            return Err(unexpected(format!("the process still has {held:?}")));
        }
        if !rustix::thread::no_new_privs().unwrap_or(false) {
            return Err(unexpected("no_new_privs is not set".into()));
        }
        if self.uid.is_root() {
            return Ok(());
        }
        let groups = getresgid().map_err(failed)?;
        let mut further = getgroups().map_err(failed)?;
        further.retain(|gid| gid.as_raw() == 0 && !self.groups.contains(gid));
        if groups.effective.as_raw() == 0 && self.gid.as_raw() != 0 || !further.is_empty() {
            return Err(unexpected(format!("the process is still in root's group: {groups:?}, {further:?}")));
        }
        match setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)) {
            Err(_) => Ok(()),
            Ok(()) => Err(unexpected("it can become root again".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_is_not_there_is_refused_with_what_to_do() {
        let config = Config::new([127, 0, 0, 1].into());
        let refused = find("no-such-user-here", &config).unwrap_err().to_string();
        assert!(refused.contains("no-such-user-here") && refused.contains("useradd"), "{refused}");
        let refused = find("4100000000", &config).unwrap_err().to_string();
        assert!(refused.contains("set `group`"), "{refused}");
        let mut config = config;
        config.group = Some("no-such-group-here".into());
        let refused = find("root", &config).unwrap_err().to_string();
        assert!(refused.contains("no-such-group-here"), "{refused}");
    }
}

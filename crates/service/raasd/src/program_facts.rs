//! What the kernel says of a program, by which the policy knows its tenant.
//!
//! User and groups are those that the program had when it connected: what it executes since does not change them. The
//! control group is read under the process's number while that process is known to live. A name in its path is a unit
//! only where root alone can make one. The process itself has a name by which a later daemon knows it again.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::PeerCredentials;
use plane::ProgramFacts;
use rustix::event::{PollFd, PollFlags, poll};

/// Where control groups are: the one hierarchy, or on older systems systemd's own beside others.
const ROOTS: &[&str] = &["/sys/fs/cgroup", "/sys/fs/cgroup/systemd"];

/// What names the process at the other end of a control socket, of all that this machine ever had; none if that is not
/// known.
pub(crate) type ProcessName = Option<String>;

/// The facts of the program at the other end of a control socket, and its process.
pub(crate) fn facts_of(socket: impl AsFd, who: PeerCredentials) -> (ProgramFacts, ProcessName) {
    let PeerCredentials { pid, uid, gid } = who;
    let mut gids = vec![gid];
    gids.extend(receivers::peer_groups(&socket).unwrap_or_default());
    let cgroup = own_cgroup(&read(pid, "cgroup"));
    let process = process_name(pid);
    // Looked at last: had the number gone to another process in between, it would show.
    let is_same = match receivers::peer_process(&socket) {
        Ok(process) => lives(&process),
        // Linux before 6.5: at least no other user's.
        Err(_) => effective_uid(&read(pid, "status")) == Some(uid),
    };
    if is_same {
        (with_cgroup(uid, gids, cgroup), process)
    } else {
        (ProgramFacts { uid, gids, ..ProgramFacts::default() }, None)
    }
}

/// This start of the machine, who numbers processes there, the process's number, and when it began: numbers are given
/// anew, but not so soon.
fn process_name(pid: u32) -> ProcessName {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let numbered_by = fs::read_link("/proc/self/ns/pid").ok()?;
    let began = began(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    Some(format!("{} {} {pid} {began}", boot.trim_end(), numbered_by.display()))
}

/// When a process began, of /proc/PID/stat: the 22nd word. The second is a name in brackets, which may have any in it.
fn began(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The facts of a process of this host as it is now; none if there is no such process.
pub fn program_facts(pid: u32) -> Option<ProgramFacts> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(with_cgroup(effective_uid(&status)?, gids(&status), own_cgroup(&read(pid, "cgroup"))))
}

fn with_cgroup(uid: u32, gids: Vec<u32>, cgroup: String) -> ProgramFacts {
    let root = ROOTS.iter().map(Path::new).find(|root| root.join(cgroup.trim_start_matches('/')).is_dir());
    let units = root.map_or_else(Vec::new, |root| units_of(root, &cgroup, is_roots));
    ProgramFacts { uid, gids, cgroup, units }
}

/// The parts of a control group's path that root alone could make: each lies in a directory of root's.
fn units_of(root: &Path, cgroup: &str, is_roots: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut parent = PathBuf::from(root);
    let mut units = Vec::new();
    for part in cgroup.split('/').filter(|part| !part.is_empty()) {
        if !is_roots(&parent) {
            break;
        }
        units.push(part.to_owned());
        parent.push(part);
    }
    units
}

/// Whether only root makes control groups in a directory.
fn is_roots(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o002 == 0)
}

/// Whether a process has not ended.
fn lives(process: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    let now = Duration::ZERO.try_into().ok();
    poll(&mut fds, now.as_ref()) == Ok(0)
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// The line of the unified hierarchy, `0::PATH`; where there is none, the one of systemd's own.
fn own_cgroup(text: &str) -> String {
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    let named = || text.lines().find_map(|line| line.split_once(":name=systemd:").map(|(_, path)| path));
    unified.or_else(named).unwrap_or_default().to_owned()
}

/// The numbers behind a key of /proc/PID/status.
fn numbers<'a>(status: &'a str, key: &str) -> impl Iterator<Item = u32> + 'a {
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|word| word.parse().ok())
}

fn effective_uid(status: &str) -> Option<u32> {
    numbers(status, "Uid:").nth(1)
}

/// The effective group, and the supplementary ones.
fn gids(status: &str) -> Vec<u32> {
    numbers(status, "Gid:").nth(1).into_iter().chain(numbers(status, "Groups:")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let status = "Name:\tcat\nUid:\t1\t1000\t1\t1\nGid:\t7\t8\t9\t9\nGroups:\t4 24 27 \nNSpid:\t5\n";
        assert_eq!(effective_uid(status), Some(1000));
        assert_eq!(gids(status), [8, 4, 24, 27]);
        assert_eq!(own_cgroup("0::/system.slice/nginx.service\n"), "/system.slice/nginx.service");
        let hybrid = "12:pids:/a\n1:name=systemd:/user.slice\n";
        assert_eq!(own_cgroup(hybrid), "/user.slice");
        assert_eq!((own_cgroup(""), effective_uid(""), gids("")), (String::new(), None, Vec::new()));
    }

    #[test]
    fn each_process_has_a_name_of_its_own() {
        let own = process_name(std::process::id()).unwrap();
        assert_ne!(own, process_name(1).unwrap());
        assert_eq!((process_name(0), began("1 (a) R 1"), began("")), (None, None, None));
        let stat = "7 (a) R 9) b) S 1 7 7 0 -1 4194560 9 0 0 0 0 0 0 0 20 0 1 0 4242 99";
        assert_eq!(began(stat), Some(4242));
    }

    #[test]
    fn a_name_in_what_a_user_may_change_is_no_unit() {
        let of = |cgroup: &str| units_of(Path::new("/c"), cgroup, |place| !place.ends_with("user@7.service"));
        assert_eq!(of("/system.slice/nginx.service"), ["system.slice", "nginx.service"]);
        // The user's own manager makes these: the first is a unit, and nothing below it.
        assert_eq!(of("/user.slice/user@7.service/nginx.service"), ["user.slice", "user@7.service"]);
        assert_eq!(of("/user.slice/user@7.service/a.slice/nginx.service").len(), 2);
        assert!(of("").is_empty());
        assert!(units_of(Path::new("/nowhere"), "/nginx.service", is_roots).is_empty(), "nobody can tell");
    }

    #[test]
    fn groups_are_those_of_the_socket_and_a_process_that_ended_has_no_control_group() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let who = control::peer_credentials(&a).unwrap();
        let own = facts_of(&a, who);
        assert_eq!(own.0, program_facts(std::process::id()).unwrap(), "this process is at both ends");
        assert_eq!(own.1, process_name(std::process::id()));
        // Its numbers are believed, and those of /proc are not asked.
        let other = facts_of(&a, PeerCredentials { gid: who.gid + 1, ..who });
        assert_eq!(other.0.gids[0], who.gid + 1);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(!lives(process));
    }
}

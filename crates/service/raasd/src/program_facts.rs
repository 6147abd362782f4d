//! What the kernel says of a program, by which the policy knows its tenant.
//!
//! The user is that of the control socket, which nobody can change. Groups and control group are read under the
//! process's number. A process that ended may have given its number to another one, so they count only if that process
//! is of the same user.

use std::fs;

use plane::ProgramFacts;

/// The facts of the program at the other end of a control socket.
pub(crate) fn facts_of(pid: u32, uid: u32) -> ProgramFacts {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    // The user is read last: had the number gone to another user's process in between, it would show.
    let cgroup = own_cgroup(&read("cgroup"));
    let status = read("status");
    if effective_uid(&status) == Some(uid) {
        ProgramFacts { uid, gids: gids(&status), cgroup }
    } else {
        ProgramFacts { uid, ..ProgramFacts::default() }
    }
}

/// The facts of a process of this host; none if there is no such process.
pub fn program_facts(pid: u32) -> Option<ProgramFacts> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(facts_of(pid, effective_uid(&status)?))
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
    fn this_process_has_its_groups_and_another_users_number_gives_none() {
        let uid = rustix::process::geteuid().as_raw();
        let own = facts_of(std::process::id(), uid);
        assert!(own.gids.contains(&rustix::process::getegid().as_raw()), "{own:?}");
        let other = facts_of(std::process::id(), uid + 1);
        assert_eq!(other, ProgramFacts { uid: uid + 1, ..ProgramFacts::default() });
    }
}

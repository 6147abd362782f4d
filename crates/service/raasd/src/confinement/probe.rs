//! Trying what a daemon must not do, in a process that is confined as a daemon is (`raas daemon --sandbox-probe`).
//!
//! Owns the attempts. Each one would do no harm if it succeeded: the process ends right afterwards.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use nix::unistd::{Pid, Uid};
use rustix::net::{AddressFamily, SocketType};

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// What.
    pub name: &'static str,
    /// Whether it was refused, as it must be.
    pub refused: bool,
    /// The system's answer.
    pub answer: String,
}

type Try = fn() -> io::Result<()>;

/// What is tried, by name; `exec` is the last one, because the process would be another program after it.
const ATTEMPTS: &[(&str, Try)] = &[
    ("fork", || Command::new("/bin/true").status().map(drop)),
    ("ptrace", || Ok(nix::sys::ptrace::attach(Pid::parent())?)),
    ("kill", || {
        let parent = rustix::process::getppid().ok_or(io::Error::other("no parent"))?;
        Ok(rustix::process::test_kill_process(parent)?)
    }),
    ("socket-packet", || Ok(rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop)?)),
    ("socket-raw", || {
        Ok(rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(rustix::net::ipproto::ICMP)).map(drop)?)
    }),
    ("setuid", || Ok(nix::unistd::setuid(Uid::from_raw(0))?)),
    ("setgroups", || Ok(nix::unistd::setgroups(&[])?)),
    ("mount", || {
        let none: Option<&str> = None;
        Ok(nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?)
    }),
    ("unshare", || Ok(nix::sched::unshare(CloneFlags::CLONE_NEWUSER)?)),
    ("chroot", || Ok(rustix::process::chroot("/")?)),
    ("read-shadow", || std::fs::File::open("/etc/shadow").map(drop)),
    ("read-root", || std::fs::read_dir("/root").map(drop)),
    ("write-etc", || std::fs::File::options().append(true).open("/etc/hostname").map(drop)),
    ("write-var", || {
        std::fs::File::create_new("/var/tmp/raas-sandbox-probe").map(drop)?;
        std::fs::remove_file("/var/tmp/raas-sandbox-probe")
    }),
    ("exec", || Err(Command::new("/bin/true").exec())),
];

/// Tries all, or the one of this name; none if there is no such name.
pub fn attempts(only: Option<&str>) -> Option<Vec<Attempt>> {
    let wanted = ATTEMPTS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
    let tried: Vec<_> = wanted
        .map(|(name, attempt)| match attempt() {
            Ok(()) => Attempt { name, refused: false, answer: "it was done".into() },
            Err(e) => Attempt { name, refused: true, answer: e.to_string() },
        })
        .collect();
    (!tried.is_empty()).then_some(tried)
}

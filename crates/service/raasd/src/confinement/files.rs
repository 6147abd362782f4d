//! Which files the daemon may touch, by Landlock.
//!
//! Owns the list. Reading: what describes the machine, what libraries read, and the directories of the files that are
//! read again on SIGHUP. Writing: the directories of the control socket and of a capture, and RDMA devices. Nothing may
//! be executed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, Compatible, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope, path_beneath_rules,
};

use super::{parent, socket_directory};
use crate::Config;

/// The machine, the programs whose facts a policy asks for, and libraries.
const READ: &[&str] = &["/proc", "/sys", "/usr", "/lib", "/lib32", "/lib64", "/opt", "/run/systemd/resolve"];
/// Of root's daemon: what names are looked up by, and what libraries of devices read. No secrets are among them.
const READ_BY_ROOT: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/libibverbs.d",
    "/etc/libnl",
    "/etc/libnl-3",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/passwd",
    "/etc/group",
    "/etc/localtime",
];
/// Files that have no content of their own.
const SPECIAL: &[&str] = &["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
/// RDMA devices.
const DEVICES: &[&str] = &["/dev/infiniband"];

/// What was done.
#[derive(Debug)]
pub(super) struct Restricted {
    /// The version of Landlock.
    pub(super) abi: u32,
    pub(super) words: String,
}

/// Restricts this thread and those that it starts.
pub(super) fn restrict(config: &Config) -> Result<Restricted, String> {
    let (read, written) = (directories_read(config), directories_written(config));
    let status = || {
        let reading = AccessFs::ReadFile | AccessFs::ReadDir;
        // What a kernel does not know is left out by the library.
        let handled = AccessFs::from_all(ABI::V5);
        let created = Ruleset::default().handle_access(handled)?.scope(Scope::Signal)?.create()?;
        let mut created = created.set_compatibility(landlock::CompatLevel::BestEffort);
        let etc: &[&str] = if rustix::process::geteuid().is_root() { READ_BY_ROOT } else { &["/etc"] };
        created = created.add_rules(path_beneath_rules(READ.iter().chain(etc), reading))?;
        created = created.add_rules(path_beneath_rules(&read, reading))?;
        created = created.add_rules(path_beneath_rules(&written, writing()))?;
        created = created.add_rules(path_beneath_rules(SPECIAL, AccessFs::ReadFile | AccessFs::WriteFile))?;
        let device = reading | AccessFs::WriteFile | AccessFs::IoctlDev;
        created.add_rules(path_beneath_rules(DEVICES, device))?.restrict_self()
    };
    let status = status().map_err(|e: landlock::RulesetError| format!("Landlock: {e}"))?;
    let abi = match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as u32,
        LandlockStatus::NotEnabled => return Err(format!("Landlock is off in this kernel; {ENABLE}")),
        LandlockStatus::NotImplemented => return Err(format!("this kernel has no Landlock; {ENABLE}")),
    };
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err("the kernel has Landlock and did not enforce it".into());
    }
    let shown = |list: &BTreeSet<PathBuf>| list.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
    let further = if read.is_empty() { String::new() } else { format!(" and {}", shown(&read)) };
    let words = format!(
        "files are restricted (Landlock {abi}): written is to {}; read are the system's{further}; nothing is executed",
        shown(&written),
    );
    Ok(Restricted { abi, words })
}

const ENABLE: &str = "it takes Linux 5.13 with CONFIG_SECURITY_LANDLOCK and landlock in lsm=";

fn writing() -> BitFlags<AccessFs> {
    AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveFile
}

/// The directories of what the configuration names, since a file that is replaced is another one afterwards.
fn directories_read(config: &Config) -> BTreeSet<PathBuf> {
    let files = [&config.key_file, &config.policy, &config.calibration].into_iter().flatten();
    let source = config.source.as_ref().map(|(file, _)| file);
    let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let libraries = std::env::split_paths(&libraries).filter(|p| p.is_absolute()).collect::<Vec<_>>();
    let files = files.chain(&config.accept_key_files).chain(source);
    let both = |file: &PathBuf| {
        // Secrets are often mounted as links.
        let target = std::fs::canonicalize(file).ok().and_then(|target| Some(target.parent()?.to_path_buf()));
        std::iter::once(whole(parent(file))).chain(target)
    };
    files.flat_map(both).chain(libraries).collect()
}

fn directories_written(config: &Config) -> BTreeSet<PathBuf> {
    let capture = config.pcap.iter().map(|file| whole(parent(file)));
    std::iter::once(whole(socket_directory(config))).chain(capture).collect()
}

/// The path from the root, for people; one that cannot be found stays as it is.
fn whole(directory: &Path) -> PathBuf {
    std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_path_buf())
}

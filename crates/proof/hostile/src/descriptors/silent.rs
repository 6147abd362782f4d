//! A file system of this process (FUSE) that answers its own programs, and nobody else: whatever a daemon asks of its
//! file waits for ever.
//!
//! Owns the mount, which nobody else sees, and as much of the kernel's protocol (include/uapi/linux/fuse.h) as one file
//! needs. It ends, and lets everybody go, when it is dropped.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::event::{PollFd, PollFlags, poll};

/// Longest request that the kernel sends, with room.
const REQUEST_BYTES: usize = 1 << 20;
const IN_HEADER: usize = 40;
/// How often it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);
/// Processes that are answered: the judge, and the strangers.
const ANSWERED: &str = "hostile";

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// See the module.
#[derive(Debug)]
pub(super) struct Silent {
    directory: tempfile::TempDir,
    ends: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Silent {
    /// Mounts it, in a mount namespace of this process; needs root's rights.
    pub(super) fn mount() -> Result<Self> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).context("no mount namespace of its own")?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("mounts are shared with others")?;
        let mut options = File::options();
        let device = options.read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open("/dev/fuse");
        let device = device.context("/dev/fuse")?;
        let directory = tempfile::tempdir()?;
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("silent"), directory.path(), Some("fuse"), MsFlags::MS_NOSUID, Some(data.as_str()))
            .context("mount")?;
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let server = std::thread::spawn(move || serve(device, &told));
        Ok(Self { directory, ends, server: Some(server) })
    }

    /// Its file.
    pub(super) fn open(&self) -> Result<OwnedFd> {
        Ok(File::open(self.directory.path().join("file")).context("the silent file")?.into())
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
        self.ends.store(true, Ordering::Release);
        // With the device all requests end.
        let _ = self.server.take().map(JoinHandle::join);
    }
}

fn serve(mut device: File, ends: &AtomicBool) {
    let mut request = vec![0; REQUEST_BYTES];
    while !ends.load(Ordering::Acquire) {
        let mut fds = [PollFd::new(&device, PollFlags::IN)];
        if poll(&mut fds, Some(&LOOK.try_into().unwrap_or_default())).is_err() {
            return;
        }
        match device.as_fd().try_clone_to_owned().map(File::from).and_then(|mut d| d.read(&mut request)) {
            Ok(len) => {
                if let Some(answer) = request.get(..len).and_then(answer) {
                    let _ = device.write(&answer);
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotFound) => {}
            Err(_) => return,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The answer to a request, if it gets one.
fn answer(request: &[u8]) -> Option<Vec<u8>> {
    let (opcode, pid) = (word(request, 4)?, word(request, 32)?);
    let node = u64::from_le_bytes(request.get(16..24)?.try_into().ok()?);
    if matches!(opcode, FORGET | BATCH_FORGET | INTERRUPT) || opcode != INIT && !is_answered(pid) {
        return None;
    }
    let (error, body): (i32, Vec<u8>) = match opcode {
        INIT => (0, init(word(request, IN_HEADER + 8)?)),
        LOOKUP => (0, [&2_u64.to_le_bytes()[..], &[0; 32], &attributes(2)].concat()),
        GETATTR => (0, [&[0; 16][..], &attributes(node)].concat()),
        OPEN => (0, vec![0; 16]),
        FLUSH | RELEASE => (0, vec![]),
        _ => (-nix::libc::ENOSYS, vec![]),
    };
    let len = u32::try_from(16 + body.len()).ok()?;
    Some([&len.to_le_bytes()[..], &error.to_le_bytes(), request.get(8..16)?, &body].concat())
}

/// Whether a process is one of ours. Requests of no process are the kernel's own.
fn is_answered(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == ANSWERED)
}

/// Version 7.31, and nothing that may be chosen.
fn init(max_readahead: u32) -> Vec<u8> {
    let words = [7_u32, 31, max_readahead, 0, 0, 4096, 1];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(64, 0);
    bytes
}

/// Of the directory (1) or its file.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == 1 { 0o040_755 } else { 0o100_644 };
    let mut bytes = node.to_le_bytes().to_vec();
    // Size, blocks and times.
    bytes.extend([0; 5 * 8 + 3 * 4]);
    bytes.extend(mode.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.resize(88, 0);
    bytes
}

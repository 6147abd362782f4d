//! Owns everything that the demo must not leave behind: its child processes and its temporary directory. They are
//! killed, reaped and removed when the owner is dropped (also by a panic), on Ctrl-C and SIGTERM, and by the watchdog
//! at the run's time limit. That the children also end when this process is killed is their own doing: see `app`. The
//! directory that a killed demo leaves is removed by the next one: each holds a lock in its own as long as it lives.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use tempfile::TempDir;

/// How often a child that is waited for is looked at.
const WAIT_PERIOD: Duration = Duration::from_millis(5);
/// How the names of the directories begin, and the file in them that is locked.
const PREFIX: &str = "raas-demo-";
const LOCK: &str = "lock";

/// Children and directory of one run. Clones share them, so that a signal or the watchdog can clean up too.
#[derive(Debug, Clone)]
pub(crate) struct Cleanup {
    /// The directory.
    dir: PathBuf,
    held: Arc<Mutex<Option<Owned>>>,
}

/// Cleans up when dropped, however many clones of the [`Cleanup`] other threads hold.
#[derive(Debug)]
pub(crate) struct Owner(pub(crate) Cleanup);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.now();
    }
}

#[derive(Debug)]
struct Owned {
    children: Vec<Child>,
    _lock: File,
    _dir: TempDir,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Applications before the daemons, which were started first: none sees its daemon die and says so.
        self.children.iter_mut().rev().for_each(|child| drop(child.kill()));
        self.children.iter_mut().for_each(|child| drop(child.wait()));
    }
}

impl Cleanup {
    /// With a fresh directory that only this user can enter.
    pub(crate) fn new() -> io::Result<Self> {
        remove_stale(&std::env::temp_dir());
        let private = std::fs::Permissions::from_mode(0o700);
        let temporary = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir()?;
        let dir = temporary.path().to_path_buf();
        let held = Owned { children: Vec::new(), _lock: lock(&dir)?, _dir: temporary };
        Ok(Self { dir, held: Arc::new(Mutex::new(Some(held))) })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The data of a panicked thread's lock is still what must be cleaned up.
    fn lock(&self) -> MutexGuard<'_, Option<Owned>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a child and keeps it. Each line of its stdout goes to `on_line` with the child's number, from a thread of
    /// its own, and `None` after the last one. All are read, so that it never blocks on a full pipe.
    pub(crate) fn spawn(
        &self,
        command: &mut Command,
        mut on_line: impl FnMut(u32, Option<String>) + Send + 'static,
    ) -> io::Result<(u32, ChildStdin)> {
        // Ctrl-C on the terminal is for this process, which ends its children quietly.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        // Under the lock, so that a clean-up in another thread sees the child or prevents it.
        let mut held = self.lock();
        let Some(held) = &mut *held else { return Err(io::Error::other("the run is being ended")) };
        let mut child = command.spawn()?;
        let (pid, pipes) = (child.id(), child.stdin.take().zip(child.stdout.take()));
        held.children.push(child);
        let (stdin, stdout) = pipes.ok_or_else(|| io::Error::other("no pipes to the new process"))?;
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| on_line(pid, Some(line)));
            on_line(pid, None);
        });
        Ok((pid, stdin))
    }

    /// As [`Self::spawn`], with the lines in a channel.
    pub(crate) fn spawn_lines(&self, command: &mut Command) -> io::Result<(u32, ChildStdin, mpsc::Receiver<String>)> {
        let (sender, lines) = mpsc::channel();
        let mut sender = Some(sender);
        let (pid, stdin) = self.spawn(command, move |_, line| match (line, &sender) {
            (Some(line), Some(to)) => drop(to.send(line)),
            _ => sender = None,
        })?;
        Ok((pid, stdin, lines))
    }

    /// Waits for the end of child `pid`, and kills it at `deadline`: then `None`.
    pub(crate) fn wait(&self, pid: u32, deadline: Instant) -> Option<ExitStatus> {
        loop {
            let mut held = self.lock();
            let child = held.as_mut()?.children.iter_mut().find(|child| child.id() == pid)?;
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            drop(held);
            std::thread::sleep(WAIT_PERIOD);
        }
    }

    /// SIGKILL to child `pid`, as the kernel does in want of memory; it is gone then.
    pub(crate) fn kill(&self, pid: u32) {
        self.wait(pid, Instant::now());
    }

    /// Kills and reaps every child and removes the directory, now.
    pub(crate) fn now(&self) {
        drop(self.lock().take());
    }

    /// As [`Self::now`], and ends the process after `last_words`. The lock is held until then: whoever sees a child
    /// missing meanwhile waits for it, and says nothing.
    pub(crate) fn exit(&self, last_words: impl FnOnce()) -> ! {
        let mut held = self.lock();
        drop(held.take());
        last_words();
        std::process::exit(1)
    }
}

fn lock(dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(LOCK))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes the directories in `place` that belong to this user and to no living demo. What cannot be removed stays.
fn remove_stale(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let dir = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && std::fs::symlink_metadata(&dir)
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw());
        // One without a lock file is just being made.
        let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
        let open = || OpenOptions::new().write(true).custom_flags(no_follow).open(dir.join(LOCK));
        if is_ours && open().is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()) {
            let _ = std::fs::remove_dir_all(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_alive(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn children_and_directory_are_gone_after_drop_and_after_panic_and_nothing_follows() {
        for panics in [false, true] {
            let owner = Owner(Cleanup::new().unwrap());
            let held_by_another_thread = owner.0.clone();
            let dir = owner.0.dir().to_path_buf();
            std::fs::write(dir.join("key"), b"x").unwrap();
            let (pid, _stdin) = owner.0.spawn(Command::new("sleep").arg("1000"), |_, _| ()).unwrap();
            assert!(is_alive(pid));
            let thread = std::thread::spawn(move || {
                let _owner = owner;
                assert!(!panics, "on purpose");
            });
            assert_eq!(thread.join().is_err(), panics);
            assert!(!is_alive(pid) && !dir.exists());
            assert!(held_by_another_thread.spawn(&mut Command::new("true"), |_, _| ()).is_err());
        }
    }

    #[test]
    fn a_child_that_does_not_end_is_killed_at_the_deadline() {
        let owner = Owner(Cleanup::new().unwrap());
        let (pid, _stdin) = owner.0.spawn(Command::new("sleep").arg("1000"), |_, _| ()).unwrap();
        assert!(owner.0.wait(pid, Instant::now() + Duration::from_millis(50)).is_none());
        assert!(!is_alive(pid));
        let (pid, _stdin, lines) = owner.0.spawn_lines(Command::new("echo").arg("one\ntwo")).unwrap();
        assert_eq!(lines.iter().collect::<Vec<_>>(), ["one", "two"]);
        assert!(owner.0.wait(pid, Instant::now() + Duration::from_secs(60)).unwrap().success());
    }

    #[test]
    fn only_what_a_dead_demo_left_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let dir = place.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("key"), b"x").unwrap();
            dir
        };
        let [dead, living, young, other] = ["raas-demo-dead", "raas-demo-living", "raas-demo-young", "else"].map(make);
        drop(lock(&dead).unwrap());
        drop(lock(&other).unwrap());
        let _held = lock(&living).unwrap();
        std::os::unix::fs::symlink(&other, place.path().join("raas-demo-link")).unwrap();
        remove_stale(place.path());
        assert!(!dead.exists());
        assert!(living.exists() && young.exists() && other.join("key").exists());
    }
}

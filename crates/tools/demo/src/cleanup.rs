//! Owns everything that the demo must not leave behind: its child processes and its temporary directory. They are
//! killed, reaped and removed when the owner is dropped (also by a panic), on Ctrl-C and SIGTERM, and by the watchdog
//! at the run's time limit. That the children also end when this process is killed is their own doing: see `app`.

mod stale;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How often a child that is waited for is looked at.
const WAIT_PERIOD: Duration = Duration::from_millis(5);

/// Children and directory of one run. Clones share them, so that a signal or the watchdog can clean up too.
#[derive(Debug, Clone)]
pub(crate) struct Cleanup(Arc<Owned>);

/// The owner: cleans up when dropped, however many clones of its [`Cleanup`] other threads hold.
#[derive(Debug)]
pub(crate) struct CleanupOwner(Cleanup);

impl CleanupOwner {
    /// With a fresh directory that only this user can enter.
    pub(crate) fn new() -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let private = std::fs::Permissions::from_mode(0o700);
        stale::remove(&std::env::temp_dir());
        let dir = tempfile::Builder::new().prefix(stale::PREFIX).permissions(private).tempdir()?;
        let lock = stale::lock(dir.path())?;
        let path = dir.path().to_path_buf();
        let (children, dir, is_interrupted) = (Mutex::default(), Mutex::new(Some(dir)), AtomicBool::new(false));
        Ok(Self(Cleanup(Arc::new(Owned { children, dir, path, is_interrupted, _lock: lock }))))
    }
}

impl Drop for CleanupOwner {
    fn drop(&mut self) {
        self.0.now();
    }
}

impl std::ops::Deref for CleanupOwner {
    type Target = Cleanup;

    fn deref(&self) -> &Cleanup {
        &self.0
    }
}

#[derive(Debug)]
struct Owned {
    children: Mutex<Vec<Child>>,
    dir: Mutex<Option<TempDir>>,
    path: PathBuf,
    is_interrupted: AtomicBool,
    /// Held as long as the run lives: other demos see that the directory is in use.
    _lock: File,
}

impl Cleanup {
    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.0.path
    }

    /// Starts a child and keeps it; what `pipes` takes out of it is the caller's.
    pub(crate) fn spawn<P>(&self, command: &mut Command, pipes: impl FnOnce(&mut Child) -> P) -> io::Result<(u32, P)> {
        // Under the lock, so that a clean-up in another thread sees the child or prevents it.
        let mut children = self.0.lock_children();
        if self.0.lock_dir().is_none() {
            return Err(io::Error::other("the run is being ended"));
        }
        let mut child = command.spawn()?;
        let pid = child.id();
        let taken = pipes(&mut child);
        children.push(child);
        Ok((pid, taken))
    }

    /// SIGKILL to child `pid`, which stays to be waited for.
    pub(crate) fn kill(&self, pid: u32) {
        let mut children = self.0.lock_children();
        children.iter_mut().filter(|c| c.id() == pid).for_each(kill);
    }

    /// A signal ends the run. What fails from now on fails because of that, and is not reported.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.is_interrupted.load(Ordering::SeqCst)
    }

    /// As [`Self::now`], because of a signal.
    pub(crate) fn interrupt(&self) {
        self.0.is_interrupted.store(true, Ordering::SeqCst);
        self.now();
    }

    /// Whether and how child `pid` has ended. A child that this does not own counts as still there.
    pub(crate) fn ended(&self, pid: u32) -> Option<ExitStatus> {
        let mut children = self.0.lock_children();
        children.iter_mut().find(|c| c.id() == pid).and_then(|c| c.try_wait().ok().flatten())
    }

    /// Waits for the end of child `pid`, and kills it at `deadline`: then `None`.
    pub(crate) fn wait(&self, pid: u32, deadline: Instant) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.ended(pid) {
                return Some(status);
            }
            if Instant::now() >= deadline {
                let mut children = self.0.lock_children();
                children.iter_mut().filter(|c| c.id() == pid).for_each(kill);
                return None;
            }
            std::thread::sleep(WAIT_PERIOD);
        }
    }

    /// Kills and reaps every child and removes the directory, now.
    pub(crate) fn now(&self) {
        self.0.clean_up();
    }
}

impl Owned {
    /// The data of a panicked thread's lock is still what must be cleaned up.
    fn lock_children(&self) -> MutexGuard<'_, Vec<Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_dir(&self) -> MutexGuard<'_, Option<TempDir>> {
        self.dir.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clean_up(&self) {
        let mut children = self.lock_children();
        // Applications before the daemons, which were started first: none sees its daemon die and says so.
        children.iter_mut().rev().for_each(|child| drop(child.kill()));
        children.iter_mut().for_each(kill);
        children.clear();
        drop(self.lock_dir().take());
    }
}

fn kill(child: &mut Child) {
    // A child that has ended already is only reaped.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_and_directory_are_gone_after_drop_and_after_panic() {
        for panics in [false, true] {
            let cleanup = CleanupOwner::new().unwrap();
            let dir = cleanup.dir().to_path_buf();
            std::fs::write(dir.join("key"), b"x").unwrap();
            let (pid, ()) = cleanup.spawn(Command::new("sleep").arg("1000"), |_| ()).unwrap();
            assert!(Path::new(&format!("/proc/{pid}")).exists());
            let held_by_another_thread = Cleanup::clone(&cleanup);
            let thread = std::thread::spawn(move || {
                let _cleanup = cleanup;
                assert!(!panics, "on purpose");
            });
            assert_eq!(thread.join().is_err(), panics);
            assert!(!Path::new(&format!("/proc/{pid}")).exists());
            assert!(!dir.exists());
            assert!(held_by_another_thread.spawn(&mut Command::new("true"), |_| ()).is_err());
        }
    }

    #[test]
    fn nothing_is_started_after_the_end() {
        let cleanup = CleanupOwner::new().unwrap();
        cleanup.now();
        assert!(cleanup.spawn(Command::new("sleep").arg("1000"), |_| ()).is_err());
    }

    #[test]
    fn a_child_that_does_not_end_is_killed_at_the_deadline() {
        let cleanup = CleanupOwner::new().unwrap();
        let (pid, ()) = cleanup.spawn(Command::new("sleep").arg("1000"), |_| ()).unwrap();
        assert!(cleanup.wait(pid, Instant::now() + Duration::from_millis(50)).is_none());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let (pid, ()) = cleanup.spawn(&mut Command::new("true"), |_| ()).unwrap();
        assert!(cleanup.wait(pid, Instant::now() + Duration::from_secs(60)).unwrap().success());
    }
}

//! The thread that wakes tasks which wait for sockets of kernel TCP.
//!
//! Owns an epoll set and the thread that sleeps on it: one for the whole process, because such sockets may have no
//! session. The thread starts with the first socket that a task waits for, and ends within a second after the last is
//! closed. It must never notify a waiter under its lock, because the waiter may call back at once.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use rustix::event::epoll;

use crate::descriptor::timespec;
use crate::error::SessionError;
use crate::park::lock;
use crate::per_process::PerProcess;
use crate::poller::Poller;
use crate::reactor::SLEEP_MAX;

/// Sockets looked at in one round.
const EVENTS_MAX: usize = 64;

/// The one that new sockets go to.
static CURRENT: PerProcess<Mutex<Weak<SocketWatch>>> = PerProcess::new();

#[derive(Debug)]
struct SocketWatch {
    pid: u32,
    set: OwnedFd,
    followed: Mutex<Followed>,
}

#[derive(Debug, Default)]
struct Followed {
    next: u64,
    pollers: BTreeMap<u64, Arc<Poller>>,
}

/// A socket that is watched. The kernel takes it out of the set when it is closed. An event of a socket that is not
/// known any more is ignored.
#[derive(Debug)]
pub(crate) struct Watched {
    watch: Arc<SocketWatch>,
    token: u64,
}

impl Watched {
    /// Notifies `poller` of each change of `what` from now on. Afterwards the caller looks.
    pub(crate) fn new(socket: BorrowedFd<'_>, what: epoll::EventFlags, poller: &Arc<Poller>) -> io::Result<Self> {
        let watch = SocketWatch::current()?;
        let token = {
            let mut followed = lock(&watch.followed);
            let token = followed.next;
            followed.next += 1;
            followed.pollers.insert(token, Arc::clone(poller));
            token
        };
        let watched = Self { watch, token };
        let data = epoll::EventData::new_u64(token);
        epoll::add(&watched.watch.set, socket, data, what | epoll::EventFlags::ET)?;
        Ok(watched)
    }

    /// Refuses a forked child: the thread is its parent's.
    pub(crate) fn check_fork(&self) -> io::Result<()> {
        let owner = self.watch.pid;
        if std::process::id() == owner { Ok(()) } else { Err(SessionError::Forked { owner }.into()) }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&self.watch.followed).pollers.remove(&self.token);
    }
}

impl SocketWatch {
    /// The one that runs; started now if there is none, or only a parent's.
    fn current() -> io::Result<Arc<Self>> {
        let mut current = lock(CURRENT.get());
        let pid = std::process::id();
        if let Some(watch) = current.upgrade().filter(|w| w.pid == pid) {
            return Ok(watch);
        }
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = Arc::new(Self { pid, set, followed: Mutex::default() });
        let own = Arc::clone(&watch);
        std::thread::Builder::new().name("raas-tcp-watch".into()).spawn(move || own.run())?;
        *current = Arc::downgrade(&watch);
        Ok(watch)
    }

    fn run(self: Arc<Self>) {
        loop {
            let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
            // A failure is a signal, or looks like one: the sockets are looked at again.
            let ready = epoll::wait(&self.set, &mut events, Some(&timespec(SLEEP_MAX)));
            let told: Vec<Arc<Poller>> = {
                let followed = lock(&self.followed);
                let ready = ready.as_ref().map_or(&[][..], |(events, _)| events);
                ready.iter().filter_map(|e| followed.pollers.get(&e.data.u64()).cloned()).collect()
            };
            told.iter().for_each(|poller| poller.tell());
            drop(told);
            // Under the lock by which new sockets find this thread.
            let mut current = lock(CURRENT.get());
            if Arc::strong_count(&self) == 1 {
                if Weak::as_ptr(&current) == Arc::as_ptr(&self) {
                    *current = Weak::new();
                }
                return;
            }
        }
    }
}

/// The socket that a task waits for, once it does.
#[derive(Debug, Default)]
pub(crate) struct Awaited(Mutex<Option<Watched>>);

impl Awaited {
    /// Makes sure that `poller` is notified of the socket's changes.
    pub(crate) fn ensure(
        &self,
        socket: BorrowedFd<'_>,
        what: epoll::EventFlags,
        poller: &Arc<Poller>,
    ) -> io::Result<()> {
        let mut watched = lock(&self.0);
        match &*watched {
            Some(watched) => watched.check_fork(),
            None => {
                *watched = Some(Watched::new(socket, what, poller)?);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn changes_are_told_and_the_thread_ends_with_the_last_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let poller = Arc::<Poller>::default();
        let fd = poller.fd().unwrap().as_fd();
        let is_told = || {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&timespec(Duration::from_secs(60)))).unwrap() == 1
        };
        let first = Watched::new(listener.as_fd(), epoll::EventFlags::IN, &poller).unwrap();
        let watching = Arc::downgrade(&first.watch);
        let _waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_told());
        drop(first);
        // Bounded by the test's own limit in time; the thread looks once a second.
        while watching.strong_count() > 0 {
            thread::sleep(Duration::from_millis(10));
        }
        // The next socket finds another one.
        poller.clear();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let _second = Watched::new(other.as_fd(), epoll::EventFlags::IN, &poller).unwrap();
        let _waiting = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        assert!(is_told());
    }
}

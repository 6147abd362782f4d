//! Messages of programs, and what comes with them (`receivers` has the reasons).
//!
//! Owns the receivers of the daemon: one for each user whose programs are here, and which of them are lost. It must never
//! have a descriptor of a program that no receiver has judged.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use receivers::{Kind, PLACES_MAX, RECEIVERS_MAX, Receiver, Spawner, Taken, Verdict};
use shm::ClosedElsewhere;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// How long a receiver may take for a message, which takes it some microseconds on a machine that is not busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// Receivers of one user that wait for a stranger, at which nothing more is taken of the user's programs.
const LOST_MAX: u32 = 4;
/// No user: whose sockets are closed without a word.
const NOBODY: u32 = u32::MAX;
/// Receivers that are kept while there are none but these, for the next program of their user.
const IDLE_MAX: usize = 32;

/// Descriptors of a user's programs cannot be received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReceived {
    #[error(
        "what it sent could not be received in {} s: is it a file of a file system that does not answer, or a socket \
         with SO_LINGER?", PATIENCE.as_secs()
    )]
    Stuck,
    #[error("{LOST_MAX} receivers of its user wait for what its programs sent; end these programs")]
    ManyStuck,
    #[error("the daemon cannot make a process that receives descriptors: {0}")]
    Receiver(#[from] io::Error),
}

/// The receivers of a daemon.
#[derive(Debug)]
pub(crate) struct Receivers {
    spawner: Arc<Spawner>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    users: BTreeMap<u32, Arc<UserReceiver>>,
    /// By number: the user, and whether it is lost.
    alive: BTreeMap<u32, (u32, bool)>,
}

impl State {
    fn lost_of(&self, uid: u32) -> u32 {
        self.alive.values().map(|&(of, is_lost)| u32::from(is_lost && of == uid)).sum()
    }

    fn free_number(&self) -> io::Result<u32> {
        let free = (0..RECEIVERS_MAX).find(|number| !self.alive.contains_key(number));
        free.ok_or_else(|| io::Error::other(format!("there are {RECEIVERS_MAX}")))
    }
}

#[derive(Debug)]
struct UserReceiver {
    uid: u32,
    number: u32,
    receiver: Receiver,
    /// Its socket once more, for its readiness alone.
    answers: UnixStream,
    places: Mutex<Places>,
    /// Its end is wanted.
    ends: Notify,
}

#[derive(Debug, Default)]
struct Places {
    /// Who waits for an answer, if anybody does.
    taken: BTreeMap<u32, Option<oneshot::Sender<Taken>>>,
    is_lost: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they guard is whole between statements, whichever thread panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Receivers {
    pub(crate) fn new(spawner: Arc<Spawner>) -> Arc<Self> {
        Arc::new(Self { spawner, state: Mutex::default() })
    }

    /// Gives the receiver of a user a descriptor of a program's socket, so that it closes the last one.
    pub(crate) fn hold(self: &Arc<Self>, uid: u32, socket: impl AsFd) -> Result<SocketAtReceiver, NotReceived> {
        let user = self.receiver_of(uid)?;
        match user.hold(&socket) {
            Ok(place) => Ok(SocketAtReceiver { receivers: Arc::clone(self), user, place }),
            // It does not read what it is told.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.lose(&user);
                let user = self.receiver_of(uid)?;
                let place = user.hold(&socket)?;
                Ok(SocketAtReceiver { receivers: Arc::clone(self), user, place })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Closes the socket of a program that is not served.
    pub(crate) fn close(self: &Arc<Self>, socket: impl AsFd) {
        let held = self.hold(NOBODY, &socket);
        drop(socket);
        drop(held);
    }

    fn receiver_of(self: &Arc<Self>, uid: u32) -> Result<Arc<UserReceiver>, NotReceived> {
        let mut state = lock(&self.state);
        if let Some(user) = state.users.get(&uid) {
            return Ok(Arc::clone(user));
        }
        if state.lost_of(uid) >= LOST_MAX && uid != NOBODY {
            return Err(NotReceived::ManyStuck);
        }
        if state.users.len() >= IDLE_MAX {
            // In use by nobody but this table and the task that reads its answers.
            state.users.retain(|_, user| {
                let idle = Arc::strong_count(user) <= 2;
                if idle {
                    user.ends.notify_one();
                }
                !idle
            });
        }
        let number = state.free_number()?;
        let receiver = self.spawner.receiver(number)?;
        let answers = receiver.as_fd().try_clone_to_owned()?;
        rustix::io::ioctl_fionbio(&answers, true).map_err(io::Error::from)?;
        let answers = UnixStream::from_std(answers.into())?;
        let user = UserReceiver { uid, number, receiver, answers, places: Mutex::default(), ends: Notify::new() };
        let user = Arc::new(user);
        state.users.insert(uid, Arc::clone(&user));
        state.alive.insert(number, (uid, false));
        tokio::spawn(Arc::clone(self).read(Arc::clone(&user)));
        Ok(user)
    }

    /// Reads the answers of a receiver until it ends.
    async fn read(self: Arc<Self>, user: Arc<UserReceiver>) {
        loop {
            let ready = tokio::select! {
                ready = user.answers.readable() => ready,
                () = user.ends.notified() => break,
            };
            let taken = ready.and_then(|()| user.answers.try_io(Interest::READABLE, || user.receiver.taken()));
            match taken {
                Ok(taken) => user.answer(taken),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        user.lost();
        let mut state = lock(&self.state);
        state.alive.remove(&user.number);
        if state.users.get(&user.uid).is_some_and(|now| now.number == user.number) {
            state.users.remove(&user.uid);
        }
    }

    /// Gives a receiver up. The programs that wait for it are told.
    fn lose(&self, user: &UserReceiver) {
        let mut state = lock(&self.state);
        if let Some((_, is_lost @ false)) = state.alive.get_mut(&user.number) {
            *is_lost = true;
            tracing::warn!(uid = user.uid, "a receiver waits for what a program of this user sent; it is given up");
            // If even the spawner does not listen, the receiver stays, and its number with it.
            let _ = self.spawner.kill(user.number);
        }
        if state.users.get(&user.uid).is_some_and(|now| now.number == user.number) {
            state.users.remove(&user.uid);
        }
        drop(state);
        user.lost();
    }
}

impl UserReceiver {
    fn hold(&self, socket: &impl AsFd) -> io::Result<u32> {
        let mut places = lock(&self.places);
        if places.is_lost {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let place = (0..PLACES_MAX).find(|place| !places.taken.contains_key(place));
        let place = place.ok_or_else(|| io::Error::other(format!("one has {PLACES_MAX} programs")))?;
        self.receiver.hold(place, socket.as_fd())?;
        places.taken.insert(place, None);
        Ok(place)
    }

    /// One who waits for a lost receiver is told at once, by a sender that is dropped.
    fn await_answer(&self, place: u32, answer: oneshot::Sender<Taken>) {
        let mut places = lock(&self.places);
        if !places.is_lost {
            places.taken.insert(place, Some(answer));
        }
    }

    fn answer(&self, taken: Taken) {
        let waiting = lock(&self.places).taken.get_mut(&taken.place).and_then(Option::take);
        // One that does not wait any more has ended.
        let _ = waiting.map(|waiting| waiting.send(taken));
    }

    /// Nobody waits for it any more.
    fn lost(&self) {
        let mut places = lock(&self.places);
        places.is_lost = true;
        places.taken.values_mut().for_each(|waiting| drop(waiting.take()));
    }
}

/// A program's socket at its user's receiver. To be dropped after the daemon's own descriptor of that socket.
#[derive(Debug)]
pub(crate) struct SocketAtReceiver {
    receivers: Arc<Receivers>,
    user: Arc<UserReceiver>,
    place: u32,
}

impl SocketAtReceiver {
    /// Has another receiver hold the socket if the one that held it is lost.
    pub(crate) fn renew(&mut self, socket: impl AsFd) -> Result<(), NotReceived> {
        if lock(&self.user.places).is_lost {
            *self = self.receivers.hold(self.user.uid, socket)?;
        }
        Ok(())
    }

    /// Takes the next message of the program and what it brings along.
    pub(crate) async fn take(&mut self, socket: impl AsFd, kind: Kind) -> Result<With, NotReceived> {
        self.renew(socket)?;
        let (answer, answered) = oneshot::channel();
        self.user.await_answer(self.place, answer);
        self.user.receiver.take(self.place, kind)?;
        match timeout(PATIENCE, answered).await {
            Ok(Ok(taken)) => Ok(taken.verdict.held_by(ClosedElsewhere::from)),
            Ok(Err(_)) => Err(NotReceived::Stuck),
            Err(_) => {
                self.receivers.lose(&self.user);
                Err(NotReceived::Stuck)
            }
        }
    }
}

impl Drop for SocketAtReceiver {
    fn drop(&mut self) {
        // If it cannot be told, it still has the socket: the place is not given to another program.
        if self.user.receiver.release(self.place).is_ok() {
            lock(&self.user.places).taken.remove(&self.place);
        }
    }
}

/// What came with a message. Its memory has any size that its sender likes.
pub(crate) type With = Verdict<ClosedElsewhere>;

/// The memory that `what` comes with: a descriptor to be dropped while the other one is still there.
pub(crate) fn memory_of(with: &With, what: &str) -> Result<OwnedFd, String> {
    let no_room = || format!("the daemon may open no more descriptors, and {what} comes with one");
    match with {
        Verdict::Memory(fd) => fd.as_fd().try_clone_to_owned().map_err(|_| no_room()),
        Verdict::NoRoom => Err(no_room()),
        Verdict::Nothing | Verdict::TooMany | Verdict::Socket(_) | Verdict::Other => {
            Err(format!("{what} comes with one descriptor, of a memfd"))
        }
    }
}

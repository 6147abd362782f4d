//! What this process has with its daemon: the session, the listener for streams that replace accepted connections, and
//! the streams that have come there.
//!
//! Owns the tokens that are expected. It must never give a stream to a connection whose token it did not show, and
//! never wait for bytes of a stranger.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io::{ErrorKind, Read};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use raas::meeting::{Rendezvous, port_of};
use raas::{AcceptError, ListenOptions, Listener, PerProcess, Reason, Session, Stream};
use raas_core::switch::{HELLO_BYTES, token_of};

use crate::say;

/// The next try to reach a daemon that was not there.
const RETRY: Duration = Duration::from_secs(1);
/// The longest pause before the next connection is to leave TCP, after descriptors were missing again and again.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long a daemon that is there may take to answer when the program attaches.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Streams that wait to be taken out of the listener.
const BACKLOG: u32 = 4096;
/// Streams that have not said hello.
const STRANGERS_MAX: usize = 1024;

/// Sessions that were lost and are still followed by threads that wait. Streams of older ones are looked at once a
/// second.
const BEFORE_MAX: usize = 4;

static DESK: PerProcess<Mutex<Desk>> = PerProcess::new();
/// The daemon's socket as `raas run` named it. Servers clear their environment before they begin to work.
static SOCKET: OnceLock<PathBuf> = OnceLock::new();

/// To be called when the library is loaded: keeps what the environment says.
pub(crate) fn keep_environment() {
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        let _is_first = SOCKET.set(path.into());
    }
    if std::env::var_os(ENCRYPT_VARIABLE).is_some_and(|value| value == "required") {
        require_encryption();
    }
}
const SOCKET_VARIABLE: &str = "RAAS_SOCKET";
/// What `raas run` heard of the daemon: holds also if that has ended by the first connection.
const ENCRYPT_VARIABLE: &str = "RAAS_RUN_ENCRYPT";
static NO_DAEMON: say::Once = say::Once::new();
static REQUIRES_ENCRYPTION: AtomicBool = AtomicBool::new(false);

/// From now on connections to other hosts are guarded: `raas run`, or the first daemon that was reached, said so.
pub(crate) fn require_encryption() {
    REQUIRES_ENCRYPTION.store(true, Ordering::Release);
}

#[inline]
pub(crate) fn requires_encryption() -> bool {
    REQUIRES_ENCRYPTION.load(Ordering::Acquire)
}

/// A stream that has not shown a token yet.
#[derive(Debug)]
struct Stranger {
    stream: Stream,
    hello: [u8; HELLO_BYTES],
    count: usize,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    session: Option<Session>,
    /// Earlier ones, whose streams on this host go on.
    before: Vec<Session>,
    next_try: Option<Instant>,
    pause: Pause,
    listener: Option<Listener>,
    strangers: Vec<Stranger>,
    /// By token; the stream when it has come.
    expected: BTreeMap<u64, Option<Stream>>,
}

/// How long no connection asks to leave TCP, because descriptors were missing for one.
#[derive(Debug, Default)]
struct Pause {
    until: Option<Instant>,
    /// 0: none was missing.
    last: Duration,
}

impl Pause {
    /// They were missing: twice as long as the last time.
    fn begin(&mut self, now: Instant) {
        if !self.is_on(now) {
            self.last = (self.last * 2).clamp(RETRY, PAUSE_MAX);
            self.until = Some(now + self.last);
        }
    }

    fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// The sessions whose streams a thread may wait for.
pub(crate) fn sessions() -> Vec<Session> {
    if crate::inside::is_inside() {
        return Vec::new();
    }
    let _inside = crate::inside::enter();
    let desk = desk();
    desk.session.iter().chain(&desk.before).cloned().collect()
}

/// The library is to make no call any more. What it has with the daemon stays as it is until the process ends.
pub(crate) fn leave() {
    let _inside = crate::inside::enter();
    let mut desk = desk();
    // Handles: the last one dropped would be calls.
    for session in desk.session.take().into_iter().chain(std::mem::take(&mut desk.before)) {
        raas::elsewhere::leave(&session);
        std::mem::forget(session);
    }
    std::mem::forget(desk.listener.take());
    std::mem::forget(std::mem::take(&mut desk.strangers));
    std::mem::forget(std::mem::take(&mut desk.expected));
}

/// This process's.
pub(crate) fn desk() -> MutexGuard<'static, Desk> {
    DESK.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// A connection could not leave TCP. What lacks for one lacks for the next.
    pub(crate) fn note_failure(&mut self, reason: Option<Reason>) {
        if reason == Some(Reason::AppDescriptors) {
            self.pause.begin(Instant::now());
        }
    }

    /// A connection has left TCP.
    pub(crate) fn note_success(&mut self) {
        self.pause = Pause::default();
    }

    /// Why no connection asks to leave TCP now, if none does.
    pub(crate) fn pause(&self) -> Option<Reason> {
        self.pause.is_on(Instant::now()).then_some(Reason::AppDescriptors)
    }

    /// The session, made now if there is none. None: there is no daemon, as far as is known.
    pub(crate) fn session(&mut self) -> Option<Session> {
        if let Some(session) = self.session.as_ref().filter(|session| session.is_usable()) {
            return Some(session.clone());
        }
        if self.next_try.is_some_and(|next| Instant::now() < next) {
            return None;
        }
        let _blocked = SignalsBlocked::new();
        let mut builder = Session::builder().timeout(ANSWER_MAX).led_elsewhere(true);
        if let Some(path) = SOCKET.get() {
            builder = builder.socket(path);
        }
        match builder.connect() {
            Ok(session) => {
                if session.requires_encryption() {
                    require_encryption();
                }
                self.before.extend(self.session.replace(session.clone()));
                if self.before.len() > BEFORE_MAX {
                    self.before.remove(0);
                }
                // The listener of a session that was lost belongs to it.
                self.listener = None;
                Some(session)
            }
            Err(error) => {
                NO_DAEMON.say(&format!("connections stay on kernel TCP: {error}"));
                self.next_try = Some(Instant::now() + RETRY);
                None
            }
        }
    }

    /// Where a stream for one more accepted connection is taken, or why none is.
    pub(crate) fn expect(&mut self, session: &Session) -> Result<Rendezvous, Reason> {
        if self.listener.is_none() {
            let _blocked = SignalsBlocked::new();
            let listener = ListenOptions::new().backlog(BACKLOG).bind(session, "0.0.0.0:0");
            let listener = listener.map_err(|error| error.reason().unwrap_or(Reason::Unspecified))?;
            listener.set_nonblocking(true).map_err(|_| Reason::Unspecified)?;
            self.listener = Some(listener);
        }
        let token = random().ok_or(Reason::LocalLimit)?;
        let port = self.listener.as_ref().map(port_of).ok_or(Reason::DaemonLost)?;
        self.expected.insert(token, None);
        Ok(Rendezvous { port, token })
    }

    /// The stream with a token, if it has come.
    pub(crate) fn take(&mut self, token: u64) -> Option<Stream> {
        self.look();
        let stream = self.expected.get_mut(&token)?.take()?;
        self.expected.remove(&token);
        Some(stream)
    }

    /// Nobody waits for this token any more.
    pub(crate) fn forget(&mut self, token: u64) {
        self.expected.remove(&token);
    }

    /// Takes streams that have come, and reads their hellos.
    fn look(&mut self) {
        while let Some(listener) = &self.listener {
            match listener.accept() {
                Ok((stream, _)) if self.strangers.len() < STRANGERS_MAX => {
                    if stream.set_nonblocking(true).is_ok() {
                        self.strangers.push(Stranger { stream, hello: [0; HELLO_BYTES], count: 0 });
                    }
                }
                Ok(_) => {}
                Err(AcceptError::WouldBlock) => break,
                // The listener opens again at the daemon that comes back, with another port; its session is over.
                Err(_) => {
                    self.listener = None;
                    break;
                }
            }
        }
        for stranger in std::mem::take(&mut self.strangers) {
            self.hear(stranger);
        }
    }

    fn hear(&mut self, mut stranger: Stranger) {
        while stranger.count < HELLO_BYTES {
            match (&stranger.stream).read(&mut stranger.hello[stranger.count..]) {
                Ok(0) => return,
                Ok(count) => stranger.count += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.strangers.push(stranger),
                Err(_) => return,
            }
        }
        let expected = token_of(&stranger.hello).and_then(|token| self.expected.get_mut(&token));
        if let Some(place) = expected.filter(|place| place.is_none()) {
            *place = Some(stranger.stream);
        }
    }
}

fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// The program's signals are for its own threads: one that is made now gets none. And the thread is not cancelled in the
/// middle of the library's work, whose frames nobody unwinds.
pub(crate) struct SignalsBlocked {
    mask: libc::sigset_t,
    cancels: c_int,
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

impl SignalsBlocked {
    pub(crate) fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let mut cancels = 0;
        // SAFETY: there is room for the state before.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancels) };
        // SAFETY: both sets have room; `sigfillset` fills the first, and `pthread_sigmask` the second.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self { mask: before.assume_init(), cancels }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is what `pthread_sigmask` gave, and the state what `pthread_setcancelstate` did.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut());
            pthread_setcancelstate(self.cancels, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_while_descriptors_are_missing() {
        let (mut pause, mut now) = (Pause::default(), Instant::now());
        assert!(!pause.is_on(now));
        for expected in [1, 2, 4, 8, 16, 32, 60, 60].map(Duration::from_secs) {
            pause.begin(now);
            // Another connection that began before.
            pause.begin(now);
            assert!(pause.is_on(now + expected - Duration::from_millis(1)), "{expected:?}");
            now += expected;
            assert!(!pause.is_on(now), "{expected:?}");
        }
    }
}

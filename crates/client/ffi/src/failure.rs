//! How a call fails: errno, the text of `raas_error`, the key of its reason.
//!
//! Owns the mapping from kinds of errors to errno, and the last failure of each thread. It must never let a panic out.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use raas::{AcceptError, BindError, ConnectError, DatagramError, MessageError, Reason, SessionError, StreamError};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: c_int,
    text: String,
    reason: Option<Reason>,
}

/// The last failure of a thread, as C reads it.
#[derive(Default)]
struct Last {
    text: CString,
    reason: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// What a function returns when it failed.
pub(crate) trait Outcome {
    const FAILED: Self;
}

impl Outcome for c_int {
    const FAILED: Self = -1;
}

impl Outcome for u32 {
    const FAILED: Self = Self::MAX;
}

/// Makes a call, and reports how it failed.
pub(crate) fn call<T: Outcome>(body: impl FnOnce() -> Result<T, Failure>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(libc::EIO, "libraas failed inside, stderr has its words: please report it"),
    };
    failure.report();
    T::FAILED
}

impl Failure {
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, text: text.into(), reason: None }
    }

    /// Into errno and the words of this thread.
    fn report(self) {
        let key = self.reason.map_or("", Reason::key);
        let text = if key.is_empty() { self.text } else { format!("{} ({key})", self.text) };
        // At the end of a thread there is nobody left to read it.
        let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text: words(text), reason: words(key.to_owned()) });
        set_errno(self.errno);
    }
}

/// A text for C, which ends at the first zero byte.
fn words(text: String) -> CString {
    let mut bytes = text.into_bytes();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

fn set_errno(errno: c_int) {
    // SAFETY: the C library's errno of this thread is always there, and only this thread writes it.
    unsafe { *libc::__errno_location() = errno };
}

/// The text of this thread's last failure; valid until its next one.
pub(crate) fn last_text() -> *const c_char {
    last(|last| &last.text)
}

/// The key of its reason.
pub(crate) fn last_reason() -> *const c_char {
    last(|last| &last.reason)
}

fn last(which: impl FnOnce(&Last) -> &CStr) -> *const c_char {
    LAST.try_with(|last| which(&last.borrow()).as_ptr()).unwrap_or(c"".as_ptr())
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self { errno: errno_of(&e), text: e.to_string(), reason: reason_of(&e) }
    }
}

macro_rules! by_io_error {
    ($($error:ty),*) => { $(
        impl From<$error> for Failure {
            fn from(e: $error) -> Self {
                io::Error::from(e).into()
            }
        }
    )* };
}
by_io_error!(SessionError, ConnectError, BindError, AcceptError, raas::FlagsError);

/// Errors whose kind says less than errno can.
fn errno_of(e: &io::Error) -> c_int {
    if let Some(errno) = e.raw_os_error() {
        return errno;
    }
    let inner = e.get_ref();
    if let Some(DatagramError::TooLong { .. } | DatagramError::BufferTooSmall { .. }) =
        inner.and_then(|inner| inner.downcast_ref())
    {
        return libc::EMSGSIZE;
    }
    if let Some(MessageError::TooLong { .. } | MessageError::BufferTooSmall { .. }) =
        inner.and_then(|inner| inner.downcast_ref())
    {
        return libc::EMSGSIZE;
    }
    errno_of_kind(e.kind())
}

fn errno_of_kind(kind: io::ErrorKind) -> c_int {
    use io::ErrorKind as K;
    match kind {
        K::NotFound => libc::ENOENT,
        K::PermissionDenied => libc::EACCES,
        K::ConnectionRefused => libc::ECONNREFUSED,
        K::ConnectionReset | K::UnexpectedEof => libc::ECONNRESET,
        K::ConnectionAborted => libc::ECONNABORTED,
        K::HostUnreachable => libc::EHOSTUNREACH,
        K::NetworkUnreachable => libc::ENETUNREACH,
        K::NotConnected => libc::ENOTCONN,
        K::AddrInUse => libc::EADDRINUSE,
        K::AddrNotAvailable => libc::EADDRNOTAVAIL,
        K::BrokenPipe => libc::EPIPE,
        K::WouldBlock => libc::EAGAIN,
        K::InvalidInput => libc::EINVAL,
        K::InvalidData => libc::EPROTO,
        K::TimedOut => libc::ETIMEDOUT,
        K::Unsupported => libc::EOPNOTSUPP,
        K::QuotaExceeded => libc::EDQUOT,
        K::ResourceBusy => libc::EBUSY,
        K::Interrupted => libc::EINTR,
        K::OutOfMemory => libc::ENOMEM,
        _ => libc::EIO,
    }
}

/// The reason of docs/reasons.md, if the error has one.
fn reason_of(e: &io::Error) -> Option<Reason> {
    let inner = e.get_ref()?;
    let of_session = |e: &SessionError| match e {
        SessionError::Refused { reason, .. } | SessionError::Lost { reason } => Some(*reason),
        _ => None,
    };
    if let Some(e) = inner.downcast_ref::<ConnectError>() {
        return e.reason();
    }
    if let Some(e) = inner.downcast_ref::<BindError>() {
        return match e {
            BindError::Session(e) => of_session(e),
            BindError::Refused { reason, .. } => Some(*reason),
            _ => None,
        };
    }
    if let Some(AcceptError::Session(e)) = inner.downcast_ref() {
        return of_session(e);
    }
    if let Some(DatagramError::Unreachable { reason, .. }) = inner.downcast_ref() {
        return Some(*reason);
    }
    inner.downcast_ref().and_then(of_session).or_else(|| StreamError::reason_of(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stays_inside() {
        assert_eq!(call::<c_int>(|| panic!("a panic of the test {}", 1)), -1);
        assert_eq!(call::<u32>(|| panic!("a panic of the test {}", 2)), u32::MAX);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
        // SAFETY: the text is that of this thread, which makes no other call meanwhile.
        let text = unsafe { CStr::from_ptr(last_text()) };
        assert!(text.to_string_lossy().contains("libraas failed inside"));
    }

    #[test]
    fn a_reason_is_in_the_text_and_beside_it() {
        let to = "10.0.0.1:80".parse().unwrap();
        assert_eq!(call::<c_int>(|| Err(ConnectError::Refused { to, reason: Reason::NoListener }.into())), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ECONNREFUSED));
        // SAFETY: as above.
        let (text, key) = unsafe { (CStr::from_ptr(last_text()), CStr::from_ptr(last_reason())) };
        assert_eq!(key, c"no-listener");
        let text = text.to_string_lossy();
        assert!(text.contains("10.0.0.1:80") && text.ends_with("(no-listener)"), "{text}");
    }

    #[test]
    fn every_reason_has_an_errno() {
        for &reason in Reason::ALL.iter().filter(|r| r.code() < 32) {
            let to = "10.0.0.1:80".parse().unwrap();
            assert_ne!(Failure::from(ConnectError::Refused { to, reason }).errno, libc::EIO, "{reason:?}");
        }
    }
}

//! Errors of the library as Python's exceptions.
//!
//! Owns the errno and the typed reason of each. The classes are made in `raas/_errors.py`: each is a `raas.Error` and
//! also the standard exception of its errno, as `ConnectionRefusedError`.

use std::io::{self, ErrorKind};

use pyo3::prelude::*;
use raas::{
    AcceptError, BindError, ConnectError, DatagramError, MessageError, NotOverTcp, RegionError, RegionRefusal,
    SessionError, StreamError,
};
use rustix::io::Errno;

/// Where the classes are.
const CLASSES: &str = "raas._errors";

/// A result of the library that is to be raised.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<io::Error>> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| exception(py, &e.into()))
    }
}

/// The exception for an error.
pub(crate) fn exception(py: Python<'_>, error: &io::Error) -> PyErr {
    let number = error.raw_os_error().unwrap_or_else(|| errno(error.kind()).raw_os_error());
    let made = py
        .import(CLASSES)
        .and_then(|classes| classes.getattr("make"))
        .and_then(|make| make.call1((number, error.to_string(), reason(error), may_have_landed(error))));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// What was closed by this program.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    exception(py, &io::Error::from(Errno::BADF))
}

fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::PermissionDenied => Errno::ACCESS,
        ErrorKind::ConnectionRefused => Errno::CONNREFUSED,
        ErrorKind::ConnectionReset => Errno::CONNRESET,
        ErrorKind::HostUnreachable => Errno::HOSTUNREACH,
        ErrorKind::NetworkUnreachable => Errno::NETUNREACH,
        ErrorKind::ConnectionAborted => Errno::CONNABORTED,
        ErrorKind::NotConnected => Errno::NOTCONN,
        ErrorKind::AddrInUse => Errno::ADDRINUSE,
        ErrorKind::AddrNotAvailable => Errno::ADDRNOTAVAIL,
        ErrorKind::BrokenPipe => Errno::PIPE,
        ErrorKind::AlreadyExists => Errno::EXIST,
        ErrorKind::WouldBlock => Errno::AGAIN,
        ErrorKind::InvalidInput => Errno::INVAL,
        ErrorKind::InvalidData => Errno::PROTO,
        ErrorKind::TimedOut => Errno::TIMEDOUT,
        ErrorKind::QuotaExceeded => Errno::DQUOT,
        ErrorKind::ResourceBusy => Errno::BUSY,
        ErrorKind::StaleNetworkFileHandle => Errno::STALE,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        ErrorKind::OutOfMemory => Errno::NOMEM,
        _ => Errno::IO,
    }
}

/// The stable key of what happened: of docs/reasons.md where a daemon gave the reason, else of docs/use/python.md.
fn reason(error: &io::Error) -> Option<&'static str> {
    let inner = error.get_ref()?;
    if let Some(reason) = StreamError::reason_of(error) {
        return Some(reason.key());
    }
    if let Some(e) = inner.downcast_ref::<ConnectError>() {
        return match e {
            ConnectError::Session(e) => session(e),
            e => e.reason().map(raas::Reason::key),
        };
    }
    match inner.downcast_ref::<BindError>() {
        Some(BindError::Session(e)) => return session(e),
        Some(BindError::Refused { reason, .. }) => return Some(reason.key()),
        Some(_) => return None,
        None => {}
    }
    match inner.downcast_ref::<AcceptError>() {
        Some(AcceptError::Session(e)) => return session(e),
        Some(AcceptError::TimedOut(_)) => return Some(raas::Reason::TimedOut.key()),
        Some(_) => return None,
        None => {}
    }
    if let Some(e) = inner.downcast_ref::<tensor::Error>() {
        return Some(e.key());
    }
    if let Some(DatagramError::Unreachable { reason, .. }) = inner.downcast_ref() {
        return Some(reason.key());
    }
    if inner.is::<NotOverTcp>() {
        return Some("not-over-tcp");
    }
    inner
        .downcast_ref()
        .and_then(session)
        .or_else(|| inner.downcast_ref().and_then(message))
        .or_else(|| inner.downcast_ref().and_then(datagram))
        .or_else(|| inner.downcast_ref().and_then(region))
}

fn session(error: &SessionError) -> Option<&'static str> {
    Some(match error {
        SessionError::NoDaemon { .. } => "no-daemon",
        SessionError::Denied { .. } => "denied",
        SessionError::Version { .. } => "version",
        SessionError::Refused { reason, .. } | SessionError::Lost { reason } => reason.key(),
        SessionError::Impostor { .. } => "impostor",
        SessionError::Silent { .. } => "silent",
        SessionError::Descriptors { .. } => "app-descriptors",
        SessionError::Forked { .. } => "forked",
        _ => return None,
    })
}

fn message(error: &MessageError) -> Option<&'static str> {
    Some(match error {
        MessageError::TooLong { .. } | MessageError::SliceTooLong { .. } => "too-long",
        MessageError::BufferTooSmall { .. } => "buffer-too-small",
        MessageError::Cut | MessageError::NoReply => "cut",
        MessageError::TooManyLent { .. } | MessageError::TooManyRegionsLent { .. } => "too-many-lent",
        MessageError::Lent { .. } => "lent",
        _ => return None,
    })
}

fn datagram(error: &DatagramError) -> Option<&'static str> {
    Some(match error {
        DatagramError::TooLong { .. } => "too-long",
        DatagramError::BufferTooSmall { .. } => "buffer-too-small",
        DatagramError::NotConnected => "not-connected",
        _ => return None,
    })
}

fn region(error: &RegionError) -> Option<&'static str> {
    Some(match error {
        RegionError::Session(e) => return session(e),
        RegionError::Refused { why, .. } => match why {
            RegionRefusal::Unknown => "no-region",
            RegionRefusal::WrongKey => "wrong-key",
            RegionRefusal::NameTaken { .. } => "name-taken",
            RegionRefusal::Reason(reason) => reason.key(),
            _ => "refused",
        },
        RegionError::OutOfBounds { .. } => "out-of-bounds",
        RegionError::Misaligned { .. } => "misaligned",
        RegionError::NoAccess { .. } => "no-access",
        RegionError::Revoked { .. } => "revoked",
        RegionError::OwnerGone { .. } => "owner-gone",
        RegionError::DaemonLost { .. } | RegionError::NotificationsLost { .. } => raas::Reason::DaemonLost.key(),
        RegionError::OutcomeUnknown { .. } => "outcome-unknown",
        RegionError::NotOwner { .. } => "not-owner",
        RegionError::NotHere { .. } | RegionError::NotLocal { .. } => "not-here",
        RegionError::TimedOut { .. } => "timed-out",
        RegionError::NotDone { .. } => "not-done",
        RegionError::Descriptors { .. } => "app-descriptors",
        _ => return None,
    })
}

/// Of an operation on a region: whether it may have been done although it failed.
fn may_have_landed(error: &io::Error) -> bool {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(
            RegionError::Revoked { may_have_landed, .. }
            | RegionError::OwnerGone { may_have_landed, .. }
            | RegionError::DaemonLost { may_have_landed, .. },
        ) => *may_have_landed,
        Some(RegionError::OutcomeUnknown { .. }) => true,
        _ => false,
    }
}

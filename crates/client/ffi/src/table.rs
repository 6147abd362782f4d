//! The descriptors of this process and what they stand for.
//!
//! Owns the numbers that programs hold. It must never close a number twice: a program may have closed it itself, and
//! then it may be another file's.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, PoisonError, RwLock};

use raas::PerProcess;

use crate::failure::Failure;
use crate::socket::Socket;

/// A forked child has a table of its own: its parent's sockets are not the child's.
static TABLE: PerProcess<RwLock<HashMap<RawFd, Arc<Socket>>>> = PerProcess::new();

/// Makes a descriptor for a socket; the program has it from now on.
pub(crate) fn insert(socket: Socket) -> Result<c_int, Failure> {
    let fd: OwnedFd = socket.duplicate()?;
    let mut table = TABLE.get().write().unwrap_or_else(PoisonError::into_inner);
    let fd = fd.into_raw_fd();
    // A socket that still has this number was closed with close(2) and not with raas_close.
    let closed_behind_our_back = table.insert(fd, Arc::new(socket));
    drop(table);
    drop(closed_behind_our_back);
    Ok(fd)
}

/// What a descriptor stands for.
pub(crate) fn get(fd: c_int) -> Result<Arc<Socket>, Failure> {
    let table = TABLE.get().read().unwrap_or_else(PoisonError::into_inner);
    table.get(&fd).cloned().ok_or_else(|| unknown(fd))
}

/// Takes a descriptor out of the table; the caller closes it.
pub(crate) fn remove(fd: c_int) -> Result<Arc<Socket>, Failure> {
    let mut table = TABLE.get().write().unwrap_or_else(PoisonError::into_inner);
    table.remove(&fd).ok_or_else(|| unknown(fd))
}

fn unknown(fd: c_int) -> Failure {
    let text = format!(
        "descriptor {fd} is none of libraas in this process: it was closed, or it belongs to the process that forked \
         this one"
    );
    Failure::new(libc::EBADF, text)
}

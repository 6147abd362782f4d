//! How a forked child asks its parent for a connection. Owns the words and the numbers in the page that both share. It
//! must never touch what is the parent's alone.

use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::kernel_tcp::poll_now;
use crate::real;
use crate::shared_page::SharedPage;

/// Between looks of a child at its answer.
const PAUSE: Duration = Duration::from_millis(1);

/// Answers in the page.
pub(crate) const OPEN: u8 = 0;
pub(crate) const BACK: u8 = 1;
pub(crate) const FAILED: u8 = 2;

/// Claims in the page, behind the answers.
pub(crate) const NOBODYS: u8 = 0;
pub(crate) const CLAIMED: u8 = 1;

/// A question on the socket: the number of the connection, and whether it was closed rather than asked for.
pub(crate) const QUESTION_BYTES: usize = 5;

/// What a child asks by. Its own children share it.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) socket: OwnedFd,
    pub(crate) page: SharedPage,
}

/// The way by which a child gets a connection of its parent.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) parent: Arc<Parent>,
    pub(crate) number: usize,
}

/// Whether the claim was nobody's and is the caller's now.
pub(crate) fn has_claimed(claim: &AtomicU8) -> bool {
    claim.compare_exchange(NOBODYS, CLAIMED, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

impl Wish {
    /// This process uses the connection for the first time. False: the parent was first.
    pub(crate) fn claim(&self) -> bool {
        let bytes = self.parent.page.bytes();
        bytes.get(bytes.len() / 2 + self.number).is_some_and(has_claimed)
    }

    /// Has the parent bring the connection back. True: it is TCP's.
    pub(crate) fn ask(&self) -> bool {
        let Some(answer) = self.parent.page.bytes().get(self.number) else { return false };
        if answer.load(Ordering::Acquire) == OPEN && !self.say(false) {
            // The parent may have brought it back, and ended.
            return answer.load(Ordering::Acquire) == BACK;
        }
        loop {
            match answer.load(Ordering::Acquire) {
                OPEN => {}
                found => return found == BACK,
            }
            if poll_now(self.parent.socket.as_raw_fd(), 0) != 0 {
                return answer.load(Ordering::Acquire) == BACK;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// This process has closed it.
    pub(crate) fn note_closed(&self) {
        self.say(true);
    }

    fn say(&self, is_closed: bool) -> bool {
        let mut bytes = [u8::from(is_closed); QUESTION_BYTES];
        let number = u32::try_from(self.number).unwrap_or(u32::MAX);
        bytes[QUESTION_BYTES - size_of::<u32>()..].copy_from_slice(&number.to_ne_bytes());
        let socket = self.parent.socket.as_raw_fd();
        // SAFETY: the pointer and the length are those of `bytes`.
        unsafe { real::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) == bytes.len() as isize }
    }
}

//! Connections that stay on kernel TCP, or go back there, because of what the program does with them.
//!
//! Owns why, which `raas ss` shows. It must never let a connection leave TCP once something is known that keeps it there.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use raas::meeting::{Meeting, TcpEnd};
use raas::{PathKind, Reason};

use super::upgrade::Upgrade;
use super::{Connection, lock};
use crate::desk::{SignalsBlocked, desk};
use crate::{errno, inside};

impl Connection {
    /// What keeps it on TCP, if something does.
    pub(crate) fn kept_by(&self) -> Option<Reason> {
        match self.kept_by.load(Ordering::Acquire) {
            0 => None,
            code => Some(Reason::from_code(code)),
        }
    }

    /// Why it is on TCP, where nothing but its being in several processes is known to keep it there.
    pub(super) fn why_kernels(&self) -> Reason {
        self.kept_by().unwrap_or(Reason::KernelOnly)
    }

    /// From now on it is kept on TCP, or is there again. False: it could not go back, and ends by a reset.
    pub(crate) fn keep_on_tcp(&self, fd: c_int, why: Reason) -> bool {
        // The first reason is shown.
        let _before = self.kept_by.compare_exchange(0, why.code(), Ordering::AcqRel, Ordering::Acquire);
        // PAIRS WITH the one in `stays_by`: a first use that begins meanwhile sees the reason, or is seen here.
        fence(Ordering::SeqCst);
        if !self.is_used() && !self.is_lost() {
            // What the library does not see, it cannot guard.
            let is_unseen = matches!(why, Reason::UnseenCalls | Reason::Sandbox);
            let may_stay = !is_unseen || self.may_leave_clear(fd);
            if !may_stay {
                self.refuse(fd);
            }
            return may_stay;
        }
        let is_back = self.go_back(fd);
        if is_back {
            self.show_why(fd, why);
        }
        is_back
    }

    /// As its listener: the kernel gives what was set there to the connections that it accepts.
    pub(crate) fn inherit(&self, listener: &Self) {
        self.kept_by.store(listener.kept_by.load(Ordering::Acquire), Ordering::Release);
        self.set_tells_left(listener.tells_left.load(Ordering::Relaxed));
    }

    /// Whether the first use, which was noted before, finds that it is kept on TCP.
    pub(super) fn stays_by(&self, fd: c_int) -> bool {
        // PAIRS WITH the one in `keep_on_tcp`.
        fence(Ordering::SeqCst);
        let Some(why) = self.kept_by() else { return false };
        if self.stay() {
            self.show_why(fd, why);
        }
        true
    }

    /// Has `raas ss` show why it is on TCP, unless a row says so already.
    pub(super) fn show_why(&self, fd: c_int, why: Reason) {
        if inside::is_inside() && self.is_switching() {
            return;
        }
        let code = errno::get();
        let _inside = inside::enter();
        let mut upgrade = lock(&self.upgrade);
        self.counted.set(PathKind::Tcp, why);
        if !matches!(&*upgrade, Upgrade::Stays { row: Some(_) }) {
            let _blocked = SignalsBlocked::new();
            let session = desk().session();
            // SAFETY: the program is in a call with this descriptor, so it is open until the call returns.
            let socket = unsafe { BorrowedFd::borrow_raw(fd) };
            let row = session.and_then(|session| Meeting::begin(&session, socket, TcpEnd::Stays(why)).ok());
            *upgrade = Upgrade::Stays { row };
        }
        errno::set(code);
    }
}

//! Children: what they have of their parent's connections, and how a child is known.
//!
//! It must never change what the library knows from a child that shares its parent's memory (`vfork`).

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use crate::owner::is_owner;

use crate::connection::Connection;
use crate::epoll_set::EpollSet;
use crate::table::{self, Entry};
use crate::{heirs, life, owner};

/// To be called once, when the library is loaded.
pub(crate) fn watch_forks() {
    owner::note();
    // SAFETY: the three functions are of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

pub(crate) extern "C" fn before() {
    if owner::is_in_sandbox() {
        return;
    }
    owner::note_share();
    let mut left: Vec<Arc<Connection>> = Vec::new();
    for fd in table::known(0, usize::MAX) {
        if let Some(connection) = table::socket(fd) {
            connection.prepare_fork();
            if connection.is_for_one_process() && !left.iter().any(|one| Arc::ptr_eq(one, &connection)) {
                left.push(connection);
            }
        }
    }
    heirs::prepare(left);
}

pub(crate) extern "C" fn in_parent() {
    if owner::is_in_sandbox() {
        return;
    }
    heirs::serve_child();
    for fd in table::known(0, usize::MAX) {
        if let Some(connection) = table::socket(fd) {
            connection.leave_to_child();
        }
    }
}

pub(crate) extern "C" fn in_child() {
    if owner::is_in_sandbox() {
        return;
    }
    owner::note();
    life::note_first();
    shm::forget_numbers();
    let wish_of = heirs::wishes_of_child();
    // Descriptors that share a connection go on sharing it.
    let mut copies: BTreeMap<*const Connection, Arc<Connection>> = BTreeMap::new();
    let mut copy_of = |old: &Arc<Connection>| {
        let copy = copies.entry(Arc::as_ptr(old)).or_insert_with(|| Arc::new(old.for_child(wish_of(old))));
        Arc::clone(copy)
    };
    // So do those that share a set.
    let mut sets: BTreeMap<*const EpollSet, Arc<EpollSet>> = BTreeMap::new();
    table::replace_all_in_child(|entry| match entry {
        Entry::Socket(old) => Some(Entry::Socket(copy_of(old))),
        Entry::Epoll(old) => {
            let copy = sets.entry(Arc::as_ptr(old)).or_insert_with(|| old.for_child(&mut copy_of));
            Some(Entry::Epoll(Arc::clone(copy)))
        }
    });
}

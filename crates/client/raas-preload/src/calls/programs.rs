//! Calls that start programs, which know nothing of streams: what they inherit goes back to TCP first.
//!
//! Where this process itself becomes another program, all connections go back. Where another process is started, those
//! that are its standard input, output and error do; it is not known which others it uses.

use std::ffi::{c_char, c_int};

use libc::{FILE, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::{errno, fork, heirs, inside, owner, real, table};

/// Descriptors below are those that a program uses without being told.
pub(super) const STANDARD: c_int = 3;

type Words = *const *const c_char;

/// This process is about to become another program.
pub(super) fn become_another() {
    owner::note_share();
    if !fork::is_owner() {
        return (0..STANDARD).for_each(|fd| hand_over_of_parent(fd, fd));
    }
    if inside::is_inside() {
        return;
    }
    let code = errno::get();
    for fd in table::known(0, usize::MAX) {
        // One of the parent's is taken to be used at a standard descriptor alone.
        if let Some(connection) = table::socket(fd).filter(|one| fd < STANDARD || !one.is_lost()) {
            connection.hand_over(fd);
        }
    }
    heirs::leave_to_children();
    errno::set(code);
}

/// A program is about to be started.
fn start_another() {
    owner::note_share();
    for fd in 0..STANDARD {
        hand_over(fd);
    }
}

/// In a child of `vfork`, which has its parent's memory and descriptors of its own: `new` is a copy of what `old` is in
/// the parent, as far as it still is. The parent's thread stands still meanwhile.
pub(super) fn hand_over_of_parent(old: c_int, new: c_int) {
    if !inside::is_inside()
        && let Some(connection) = table::socket(old)
        && connection.is_of_socket(new)
    {
        connection.hand_over(new);
    }
}

/// Another program gets this descriptor, or stdio does.
pub(super) fn hand_over(fd: c_int) {
    if fork::is_owner()
        && !inside::is_inside()
        && let Some(connection) = table::socket(fd)
    {
        connection.hand_over(fd);
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn execve(path: *const c_char, words: Words, environment: Words) -> c_int {
    become_another();
    // SAFETY: the program's own arguments.
    unsafe { real::execve(path, words, environment) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn execv(path: *const c_char, words: Words) -> c_int {
    become_another();
    // SAFETY: the program's own arguments.
    unsafe { real::execv(path, words) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn execvp(file: *const c_char, words: Words) -> c_int {
    become_another();
    // SAFETY: the program's own arguments.
    unsafe { real::execvp(file, words) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn execvpe(file: *const c_char, words: Words, environment: Words) -> c_int {
    become_another();
    // SAFETY: the program's own arguments.
    unsafe { real::execvpe(file, words, environment) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fexecve(fd: c_int, words: Words, environment: Words) -> c_int {
    become_another();
    // SAFETY: the program's own arguments.
    unsafe { real::fexecve(fd, words, environment) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    words: Words,
    environment: Words,
    flags: c_int,
) -> c_int {
    become_another();
    // SAFETY: the program's own arguments.
    unsafe { real::execveat(dir, path, words, environment, flags) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn posix_spawn(
    child: *mut libc::pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    words: Words,
    environment: Words,
) -> c_int {
    start_another();
    // SAFETY: the program's own arguments.
    unsafe { real::posix_spawn(child, path, actions, attributes, words, environment) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn posix_spawnp(
    child: *mut libc::pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    words: Words,
    environment: Words,
) -> c_int {
    start_another();
    // SAFETY: the program's own arguments.
    unsafe { real::posix_spawnp(child, file, actions, attributes, words, environment) }
}

/// Who says this is about to start a program with the descriptor.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    hand_over(fd);
    // SAFETY: the program's own arguments.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    start_another();
    // SAFETY: the program's own arguments.
    unsafe { real::system(command) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    start_another();
    // SAFETY: the program's own arguments.
    unsafe { real::popen(command, mode) }
}

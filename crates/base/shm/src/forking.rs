//! Code in a child made by `fork`, for tests of what such a child may do.
//!
//! Owns the child from its birth to its exit. It must never let it come back to the code of its parent.
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Exit code of a child whose code panicked.
const PANICKED: i32 = 101;

/// Runs `code` in a child made by `fork` and says with which code it exited: 0 if `code` returned, 101 if it panicked.
/// The child has no thread but this one, so `code` must take no lock that another thread may hold, but those that it is
/// to test.
pub fn run_in_fork(code: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: the child runs `code` and `_exit` alone. It allocates, which glibc's allocator allows after `fork`, and
    // prints only when it panics; that `code` waits for no lock of another thread is the caller's part, and would hang
    // a test.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let exit = if catch_unwind(AssertUnwindSafe(code)).is_ok() { 0 } else { PANICKED };
            // SAFETY: ends the process at once, without the destructors and handlers that belong to the parent.
            unsafe { libc::_exit(exit) }
        }
        child => {
            let mut status = 0;
            loop {
                // SAFETY: `status` is an int of this frame, and `child` an own child that nobody else waits for.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                if waited == child {
                    break;
                }
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            Ok(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessWord;

    #[test]
    fn a_word_of_the_process_is_empty_in_a_child() {
        let word = ProcessWord::new(7).unwrap();
        if !word.is_wiped() {
            eprintln!("SKIP a_word_of_the_process_is_empty_in_a_child: this kernel cannot empty memory on fork");
            return;
        }
        let exit = run_in_fork(|| assert_eq!(word.load(), 0)).unwrap();
        assert_eq!((exit, word.load()), (0, 7));
        assert_eq!(run_in_fork(|| panic!("told by the exit code")).unwrap(), PANICKED);
    }
}

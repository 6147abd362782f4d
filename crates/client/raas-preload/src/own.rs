//! The library's own descriptors, whose numbers the program may guess: in loops over `/proc/self/fd`, in `close_range`,
//! as the second argument of `dup2`. For the program they are not there.
//!
//! Decides who closes: the library's code, or the program's.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the library's code and data are.
static BEGIN: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// To be called once, when the library is loaded.
pub(crate) fn note_place() {
    // SAFETY: the function keeps to what it is given, and is called before the call returns.
    unsafe { libc::dl_iterate_phdr(Some(note_if_own), std::ptr::null_mut()) };
}

unsafe extern "C" fn note_if_own(about: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker gives it, with so many heads.
    let (base, heads) = unsafe {
        let about = &*about;
        (about.dlpi_addr as usize, std::slice::from_raw_parts(about.dlpi_phdr, usize::from(about.dlpi_phnum)))
    };
    let own = note_place as *const () as usize;
    for head in heads.iter().filter(|head| head.p_type == libc::PT_LOAD) {
        let begin = base.wrapping_add(head.p_vaddr as usize);
        let end = begin.wrapping_add(head.p_memsz as usize);
        if (begin..end).contains(&own) {
            BEGIN.store(begin, Ordering::Relaxed);
            END.store(end, Ordering::Relaxed);
            return 1;
        }
    }
    0
}

/// Whether code at this address is the library's.
pub(crate) fn is_code(address: usize) -> bool {
    (BEGIN.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&address)
}

/// Whether a descriptor is the library's.
pub(crate) fn has(fd: c_int) -> bool {
    shm::is_raised(fd)
}

/// Calls `work` for the parts of these numbers, from the first to the last one, that have none of the library's.
pub(crate) fn without(first: u32, last: u32, mut work: impl FnMut(u32, u32) -> c_int) -> c_int {
    let mut begin = first;
    for fd in shm::raised_numbers(first, last) {
        if begin < fd {
            let result = work(begin, fd - 1);
            if result != 0 {
                return result;
            }
        }
        begin = fd + 1;
    }
    // Also where nothing is left: the kernel says what is wrong with the numbers.
    if begin <= last || begin == first { work(begin, last) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_closed_around_the_librarys_own() {
        let parts = |first, last| {
            let mut parts = Vec::new();
            without(first, last, |first, last| {
                parts.push((first, last));
                0
            });
            parts
        };
        assert_eq!(parts(3, 90), [(3, 90)]);
        shm::keep_numbers_above(700);
        let all: Vec<_> = (0..3).map(|_| shm::raised(std::fs::File::open("/dev/null").unwrap().into())).collect();
        let numbers: Vec<u32> = all.iter().map(|fd| std::os::fd::AsRawFd::as_raw_fd(fd) as u32).collect();
        let (low, high) = (numbers[0], numbers[2]);
        assert!(low >= 700 && high == low + 2, "{numbers:?}");
        assert!(numbers.iter().all(|fd| has(*fd as c_int)) && !has(low as c_int - 1));
        assert_eq!(parts(3, u32::MAX), [(3, low - 1), (high + 1, u32::MAX)]);
        assert_eq!(parts(low, high), []);
        assert_eq!(parts(9, 3), [(9, 3)]);
        shm::note_closed(numbers[1] as c_int);
        assert_eq!(parts(low, high), [(low + 1, low + 1)]);
        shm::forget_numbers();
        assert_eq!(parts(low, high), [(low, high)]);
    }
}

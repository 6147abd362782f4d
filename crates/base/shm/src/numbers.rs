//! Numbers of descriptors: a library within a program of somebody else keeps away from the low ones.
//!
//! Programs count on getting the lowest free number, as daemons do when they close 0, 1 and 2 and open them again. It
//! must never fail: a descriptor that cannot be moved stays where it is.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::io::DupFlags;

/// The lowest number that this process's descriptors of the service have; 0: as the kernel gives them.
static LOWEST: AtomicI32 = AtomicI32::new(0);
const WORD_BITS: usize = 64;
/// Those that can be told.
const NUMBERS: u32 = 1 << 16;
/// Which numbers [`raised`] gave, a bit for each. Higher ones than fit are nobody's here.
static RAISED: [AtomicU64; NUMBERS as usize / WORD_BITS] = [const { AtomicU64::new(0) }; NUMBERS as usize / WORD_BITS];

/// From now on descriptors of the service in this process have this number or a higher one, as far as the limit on open
/// descriptors (`RLIMIT_NOFILE`) has room there.
pub fn keep_numbers_above(lowest: RawFd) {
    LOWEST.store(lowest, Ordering::Relaxed);
}

/// Moves a descriptor to where [`keep_numbers_above`] wants it. It is close-on-exec afterwards if it is moved.
pub fn raised(fd: OwnedFd) -> OwnedFd {
    let lowest = LOWEST.load(Ordering::Relaxed);
    if lowest == 0 {
        return fd;
    }
    let fd = match fd.as_raw_fd() {
        number if number >= lowest => fd,
        _ => rustix::io::fcntl_dupfd_cloexec(&fd, lowest).unwrap_or(fd),
    };
    if let Some((word, bit)) = place(fd.as_raw_fd()).filter(|_| fd.as_raw_fd() >= lowest) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    fd
}

/// Whether [`raised`] gave this number, and nobody has said since that it was closed.
pub fn is_raised(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Such numbers from `first` to `last`, the lowest one first.
pub fn raised_numbers(first: u32, last: u32) -> impl Iterator<Item = u32> {
    (first..=last.min(NUMBERS - 1)).filter(|fd| is_raised(fd.cast_signed()))
}

/// The descriptor is no more. It is to be said before its number can be another's.
pub fn note_closed(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// A forked child's descriptors of the service are its parent's, and it may close them.
pub fn forget_numbers() {
    RAISED.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((RAISED.get(fd / WORD_BITS)?, 1 << (fd % WORD_BITS)))
}

/// Makes the descriptor `at` name what `new` names, in one step: whoever uses its number finds the new one from then on.
pub fn replace_descriptor(at: BorrowedFd<'_>, new: &OwnedFd) -> std::io::Result<()> {
    // SAFETY: the number is open, since `at` borrows it; the copy of its owner is never dropped, so it is closed by its
    // owner alone, and dup3 leaves no moment in which it is not open.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(at.as_raw_fd()) });
    Ok(rustix::io::dup3(new, &mut place, DupFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_number_names_another_object_afterwards() {
        let made = || rustix::fs::memfd_create("raas-numbers", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let (place, new) = (made(), made());
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_ne!(inode(&place), inode(&new));
        replace_descriptor(place.as_fd(), &new).unwrap();
        assert_eq!(inode(&place), inode(&new));
        drop(new);
        assert!(rustix::fs::fstat(&place).is_ok(), "it is open still");
    }

    #[test]
    fn a_descriptor_goes_where_it_is_wanted_or_stays() {
        let made = || rustix::fs::memfd_create("raas-numbers", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // Other tests of this process may make descriptors meanwhile, which is well.
        keep_numbers_above(300);
        assert!(raised(made()).as_raw_fd() >= 300);
        keep_numbers_above(RawFd::MAX);
        let fd = made();
        let number = fd.as_raw_fd();
        assert_eq!(raised(fd).as_raw_fd(), number);
        keep_numbers_above(0);
        let fd = made();
        let number = fd.as_raw_fd();
        assert_eq!(raised(fd).as_raw_fd(), number);
    }
}

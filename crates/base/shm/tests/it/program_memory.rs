//! Memory of the program: copies in and out, and what happens when the program takes it away.

use std::ffi::c_void;
use std::ptr;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use shm::{AtomicOp, Region, RegionError};

const PAGE: usize = 4096;

/// Pages as a program has them.
struct Pages(*mut c_void, usize);

impl Pages {
    fn new(pages: usize) -> Self {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), pages * PAGE, prot, MapFlags::PRIVATE) };
        Self(at.expect("memory"), pages * PAGE)
    }

    fn region(&self) -> Region {
        // SAFETY: these bytes are reached by copies of the region alone.
        unsafe { Region::of_program(self.0.expose_provenance(), self.1, true) }.expect("the kernel copies own memory")
    }

    fn unmap(&self, page: usize) {
        // SAFETY: a page of this mapping, to which no reference exists.
        unsafe { munmap(self.0.byte_add(page * PAGE), PAGE) }.expect("unmapped");
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: as in `unmap`; what is unmapped already is no error.
        unsafe { munmap(self.0, self.1) }.expect("unmapped");
    }
}

#[test]
fn copies_of_all_lengths_land() {
    let pages = Pages::new(17);
    let region = pages.region();
    let mut bytes = vec![0; 65_536];
    bytes.iter_mut().zip(1_u32..).for_each(|(byte, n)| *byte = n.to_le_bytes()[0] ^ n.to_le_bytes()[1]);
    for len in [0, 1, 2, 7, 8, 9, 15, 16, 63, 4095, 4096, 4097, 65_536] {
        region.write(3, &bytes[..len]).expect("inside");
        let mut back = vec![0; len + 1];
        region.read(3, &mut back).expect("inside");
        assert_eq!(back[..len], bytes[..len], "{len}");
    }
    assert_eq!(region.len(), 17 * PAGE as u64);
}

#[test]
fn bounds_rights_and_words_are_refused() {
    let pages = Pages::new(2);
    let region = pages.region();
    let outside = |result| matches!(result, Err(RegionError::OutOfBounds { size: 8192, .. }));
    assert!(outside(region.write(8191, b"ab")));
    assert!(outside(region.read(u64::MAX, &mut [0])));
    assert!(region.word64(0).is_err(), "no word can be had of memory that may go");
    assert!(region.discard(0, 4096).is_err());
    assert!(region.copy_from(0, &region, 8, 8).is_err());
    // SAFETY: as above.
    let read_only = unsafe { Region::of_program(pages.0.expose_provenance(), 64, false) }.expect("memory");
    assert_eq!(read_only.write(0, b"a"), Err(RegionError::ReadOnly));
    assert_eq!(read_only.atomic64(0, AtomicOp::Add(1)), Err(RegionError::ReadOnly));
    read_only.read(0, &mut [0; 64]).expect("it may be read");
    for (start, len) in [(0, 1), (4096, 0), (usize::MAX, 2), (4096, usize::MAX)] {
        // SAFETY: nothing is copied.
        assert!(unsafe { Region::of_program(start, len, true) }.is_err(), "{start:#x} {len}");
    }
}

#[test]
fn what_the_program_took_away_fails_and_raises_no_signal() {
    let pages = Pages::new(3);
    let region = pages.region();
    region.write(0, &[1; 3 * PAGE]).expect("all is there");
    pages.unmap(1);
    let is_gone = |result| matches!(result, Err(RegionError::Unmapped { .. }));
    assert!(is_gone(region.write(PAGE as u64, b"x")));
    assert!(is_gone(region.read(PAGE as u64 + 100, &mut [0; 8])));
    assert!(is_gone(region.write(PAGE as u64 - 1, b"xy")), "half of it is there");
    assert!(is_gone(region.atomic64(PAGE as u64, AtomicOp::Add(1)).map(drop)));
    let mut last = [0; 8];
    region.read(2 * PAGE as u64, &mut last).expect("the third page is there");
    assert_eq!(last, [1; 8]);
    // SAFETY: a page of this mapping, to which no reference exists.
    unsafe { mprotect(pages.0, PAGE, MprotectFlags::READ) }.expect("protected");
    assert!(is_gone(region.write(0, b"x")), "it may only be read");
    assert!(is_gone(region.atomic64(0, AtomicOp::Add(0)).map(drop)));
    region.read(0, &mut last).expect("it may be read");
}

#[test]
fn atomics_give_what_was_there() {
    let pages = Pages::new(1);
    let region = pages.region();
    assert_eq!(region.atomic64(8, AtomicOp::Add(5)), Ok(0));
    assert_eq!(region.atomic64(8, AtomicOp::CompareSwap { expected: 5, new: 9 }), Ok(5));
    assert_eq!(region.atomic64(8, AtomicOp::CompareSwap { expected: 5, new: 1 }), Ok(9));
    assert_eq!(region.atomic64(8, AtomicOp::Add(u64::MAX)), Ok(9));
    assert_eq!(region.atomic64(8, AtomicOp::Swap(0)), Ok(8));
}

#[test]
fn the_last_byte_of_a_copy_is_seen_last() {
    const LEN: usize = 4096;
    let pages = Pages::new(1);
    let region = pages.region();
    let start = pages.0.expose_provenance();
    let look = move |at: usize| {
        // SAFETY: a byte of the mapping, which outlives the thread; a volatile look at a byte that others write.
        unsafe { ptr::with_exposed_provenance::<u8>(start + at).read_volatile() }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=200_u8 {
                region.write(0, &[round; LEN]).expect("it is there");
                while look(0) != 0 {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..=200_u8 {
            while look(LEN - 1) != round {
                std::thread::yield_now();
            }
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            assert!((0..LEN).all(|at| look(at) == round), "round {round}: a byte came after the last one");
            region.write(0, &[0]).expect("it is there");
        }
    });
}

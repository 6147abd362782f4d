//! The library's memory, which is not the C library's: a signal handler of the program's may have interrupted `malloc`,
//! and write to a connection.
//!
//! Owns blocks of a few sizes in lists without locks, so that a handler, another thread, and a forked child find them
//! whole at every moment. Blocks of those sizes are kept for ever; larger ones are mappings of their own.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// The smallest block, and the largest one that is kept, as powers of two.
const LEAST: u32 = 4;
const MOST: u32 = 17;
const CLASSES: usize = (MOST - LEAST + 1) as usize;
/// So much is mapped at once, or two blocks.
const CHUNK: usize = 64 << 10;
const PAGE: usize = 4096;
/// A block's address without its zeros at the end; above it a number that each change of the list counts up, so that a
/// list which is as before by accident is not taken for the same.
const ADDRESS_BITS: u32 = 44;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;

/// Free blocks of one size. The first bytes of each name the next.
struct Free(AtomicU64);

static FREE: [Free; CLASSES] = [const { Free(AtomicU64::new(0)) }; CLASSES];

impl Free {
    fn pop(&self) -> *mut u8 {
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let block = ((head & ADDRESS) << LEAST) as *mut u8;
            if block.is_null() {
                return block;
            }
            // SAFETY: a block is mapped for ever. If another thread has just taken it, the bytes are not used: the number
            // in the head has changed.
            let next = unsafe { (*block.cast::<AtomicU64>()).load(Ordering::Relaxed) };
            match self.change(head, next) {
                Ok(_) => return block,
                Err(now) => head = now,
            }
        }
    }

    fn change(&self, head: u64, address: u64) -> Result<u64, u64> {
        let count = (head >> ADDRESS_BITS).wrapping_add(1) << ADDRESS_BITS;
        self.0.compare_exchange_weak(head, address & ADDRESS | count, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Adds blocks, each of which names the next but for the last.
    fn push(&self, first: *mut u8, last: *mut u8) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: the block is the caller's, and has room for a number.
            unsafe { (*last.cast::<AtomicU64>()).store(head & ADDRESS, Ordering::Relaxed) };
            match self.change(head, first as u64 >> LEAST) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Heap;

/// Which list has blocks for it. None: it is a mapping.
fn class(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << LEAST);
    let power = size.next_power_of_two().trailing_zeros();
    (power <= MOST).then(|| (power - LEAST) as usize)
}

/// New memory, of zeros. `align` is a power of two.
fn map(size: usize, align: usize) -> *mut u8 {
    let Some(size) = size.checked_next_multiple_of(PAGE) else { return null_mut() };
    let more = if align > PAGE { align } else { 0 };
    let Some(all) = size.checked_add(more) else { return null_mut() };
    let (how, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, anywhere.
    let at = unsafe { libc::mmap(null_mut(), all, how, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return null_mut();
    }
    let at = at.cast::<u8>();
    let before = if more > 0 { at.align_offset(align) } else { 0 };
    // SAFETY: within the mapping, whose parts outside of the aligned one are given back.
    unsafe {
        let begin = at.add(before);
        if before > 0 {
            libc::munmap(at.cast(), before);
        }
        if more > before {
            libc::munmap(begin.add(size).cast(), more - before);
        }
        begin
    }
}

/// A block of a list that has none.
#[cold]
fn more(class: usize) -> *mut u8 {
    let size = 1usize << (class as u32 + LEAST);
    let chunk = CHUNK.max(2 * size);
    let first = map(chunk, size);
    if first.is_null() {
        return first;
    }
    // SAFETY: all blocks are within the chunk.
    let block = |n: usize| unsafe { first.add(n * size) };
    let last = chunk / size - 1;
    for n in 1..last {
        // SAFETY: nobody else has the block, which has room for a number.
        unsafe { (*block(n).cast::<AtomicU64>()).store(block(n + 1) as u64 >> LEAST, Ordering::Relaxed) };
    }
    FREE[class].push(block(1), block(last));
    first
}

// SAFETY: a block is in a list or is one caller's, has at least the size and the alignment that were asked for, and
// nothing here unwinds.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else { return map(layout.size(), layout.align()) };
        let block = FREE[class].pop();
        if block.is_null() { more(class) } else { block }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && class(layout).is_some() {
            // SAFETY: the block has so many bytes.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(layout) {
            Some(class) => FREE[class].push(block, block),
            // SAFETY: the mapping is the caller's, which gives it back.
            None => unsafe {
                libc::munmap(block.cast(), layout.size().next_multiple_of(PAGE));
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_aligned_and_one_callers_while_threads_take_and_give_them_back() {
        let work = |seed: usize| {
            let mut held: Vec<(*mut u8, Layout, u8)> = Vec::new();
            let mut number = seed;
            for _ in 0..20_000 {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (size, power) = (number >> 20 & 0x1ff, number >> 40 & 7);
                let size = if number >> 60 == 0 { size << 10 } else { size } + 1;
                let layout = Layout::from_size_align(size, 1 << power).unwrap();
                if held.len() > 50 {
                    let (block, layout, mark) = held.swap_remove(number % 50);
                    // SAFETY: the block is this thread's, with so many bytes.
                    unsafe {
                        let bytes = std::slice::from_raw_parts(block, layout.size());
                        assert!(bytes.iter().all(|byte| *byte == mark), "somebody else wrote to it");
                        Heap.dealloc(block, layout);
                    }
                }
                // SAFETY: the size is not zero.
                let block = unsafe { Heap.alloc(layout) };
                assert!(!block.is_null() && block.align_offset(layout.align()) == 0);
                // SAFETY: the block has so many bytes.
                unsafe { block.write_bytes(seed as u8, size) };
                held.push((block, layout, seed as u8));
            }
        };
        std::thread::scope(|scope| (1..5).for_each(|seed| drop(scope.spawn(move || work(seed)))));
    }

    #[test]
    fn large_and_much_aligned_blocks_are_zeros_where_asked_for() {
        for (size, align) in [(1, 1), (100, 4096), (200_000, 8), (10, 1 << 16), (300_000, 1 << 18), (1 << 17, 1 << 17)]
        {
            let layout = Layout::from_size_align(size, align).unwrap();
            for _ in 0..3 {
                // SAFETY: the size is not zero; the block has so many bytes, and is given back once.
                unsafe {
                    let block = Heap.alloc_zeroed(layout);
                    assert_eq!(block.align_offset(align), 0);
                    assert!(std::slice::from_raw_parts(block, size).iter().all(|byte| *byte == 0));
                    block.write_bytes(1, size);
                    Heap.dealloc(block, layout);
                }
            }
        }
    }
}

//! A bare ring: two byte rings between two processes and nothing else, the limit of a path over shared memory.
//!
//! Owns the memory's layout and the order of copies and cursors. It must stay as plain as it can be: each check or wait
//! that a service needs, and this program does not have, is a cost that the comparison must show. docs/proof/benchmarks.md
//! lists what it leaves out.
//!
//! Each side trusts the other. There is one thread for each process. A side that waits looks repeatedly, and never
//! sleeps in the kernel.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use shm::{Region, Segment, SegmentError, Sharing, Word64};

/// Nothing is silent for longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Looks between two at the clock.
const LOOKS: u32 = 1 << 16;
/// Each word has two cache lines of its own, since processors fetch them in pairs.
const WORD_BYTES: u64 = 128;
/// Where the rings begin.
const RINGS_AT: u64 = 4096;
/// Least and most bytes of a ring.
pub(crate) const RING_BYTES: std::ops::RangeInclusive<u64> = 4096..=64 << 20;

/// How a side waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It keeps its processor.
    Spin,
    /// It lets others run.
    Yield,
}

/// The memory of both rings, which the other process opens by its path.
#[derive(Debug)]
pub(crate) struct BareSegment {
    segment: Segment,
    ring_bytes: u64,
}

impl BareSegment {
    /// Makes one; `ring_bytes`, of each of the two rings, is a power of two within [`RING_BYTES`].
    pub(crate) fn create(ring_bytes: u64) -> io::Result<Self> {
        check(ring_bytes)?;
        let segment =
            Segment::create("bare-ring", segment_bytes(ring_bytes), Sharing::ReadWrite).map_err(io::Error::other)?;
        Ok(Self { segment, ring_bytes })
    }

    /// Opens one that another process of this user made, by the path that it printed.
    pub(crate) fn open(path: &str) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let ring_bytes = file.metadata()?.len().saturating_sub(RINGS_AT) / 2;
        check(ring_bytes)?;
        let accepted = Segment::accept(OwnedFd::from(file), segment_bytes(ring_bytes), Sharing::ReadWrite);
        let segment = accepted.map_err(|refused: SegmentError| io::Error::other(format!("{path}: {refused}")))?;
        Ok(Self { segment, ring_bytes })
    }

    /// The path by which a process of the same user can open it while this one lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.segment.fd().as_raw_fd())
    }

    /// The first or the second end: one process has the one, one the other, and each takes its end once.
    pub(crate) fn end(&self, second: bool, wait: Wait) -> io::Result<BareRing> {
        let region = self.segment.region();
        let word = |index: u64| region.word64(index * WORD_BYTES).map_err(io::Error::other);
        let direction = |index: u64| -> io::Result<Direction> {
            let at = RINGS_AT + index * self.ring_bytes;
            let (tail, head) = (word(3 * index)?, word(3 * index + 1)?);
            let closed = word(3 * index + 2)?;
            let [own, seen] = [Cell::new(0), Cell::new(0)];
            Ok(Direction { region: region.clone(), at, bytes: self.ring_bytes, tail, head, closed, own, seen })
        };
        let (tx, rx) = if second { (direction(1)?, direction(0)?) } else { (direction(0)?, direction(1)?) };
        Ok(BareRing { tx, rx, wait })
    }
}

fn check(ring_bytes: u64) -> io::Result<()> {
    if ring_bytes.is_power_of_two() && RING_BYTES.contains(&ring_bytes) {
        return Ok(());
    }
    let (least, most) = (RING_BYTES.start(), RING_BYTES.end());
    let told = format!("a bare ring of {ring_bytes} bytes: it must be a power of two from {least} to {most}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, told))
}

fn segment_bytes(ring_bytes: u64) -> u64 {
    RINGS_AT + 2 * ring_bytes
}

/// One direction.
#[derive(Debug)]
struct Direction {
    region: Region,
    at: u64,
    bytes: u64,
    tail: Word64,
    head: Word64,
    closed: Word64,
    /// Own cursor: the tail of a writer, the head of a reader.
    own: Cell<u64>,
    /// The other side's cursor when it was last looked at.
    seen: Cell<u64>,
}

impl Direction {
    /// Calls `copy` for each piece of `count` bytes from the own cursor on: place, and part of the buffer.
    #[inline]
    fn pieces(&self, count: usize, mut copy: impl FnMut(u64, std::ops::Range<usize>)) {
        let place = self.own.get() & (self.bytes - 1);
        let first = count.min((self.bytes - place) as usize);
        copy(self.at + place, 0..first);
        if first < count {
            copy(self.at, first..count);
        }
    }

    #[inline]
    fn write(&self, from: &[u8]) -> usize {
        let room = || (self.bytes - (self.own.get() - self.seen.get())) as usize;
        if room() < from.len() {
            // PAIRS WITH the release store in `read`: what lay there is copied out.
            self.seen.set(self.head.load(Ordering::Acquire));
        }
        let count = from.len().min(room());
        if count > 0 {
            self.pieces(count, |at, part| self.region.write(at, &from[part]).expect("a ring lies in its segment"));
            self.own.set(self.own.get() + count as u64);
            // PAIRS WITH the acquire load in `read`: a reader that sees the tail sees the bytes.
            self.tail.store(self.own.get(), Ordering::Release);
        }
        count
    }

    #[inline]
    fn read(&self, into: &mut [u8]) -> usize {
        let there = || (self.seen.get() - self.own.get()) as usize;
        if there() < into.len() {
            // PAIRS WITH the release store in `write`.
            self.seen.set(self.tail.load(Ordering::Acquire));
        }
        let count = into.len().min(there());
        if count > 0 {
            self.pieces(count, |at, part| {
                self.region.read(at, &mut into[part]).expect("a ring lies in its segment");
            });
            self.own.set(self.own.get() + count as u64);
            // PAIRS WITH the acquire load in `write`.
            self.head.store(self.own.get(), Ordering::Release);
        }
        count
    }
}

/// One process's end of both rings. Dropping it closes.
#[derive(Debug)]
pub(crate) struct BareRing {
    tx: Direction,
    rx: Direction,
    wait: Wait,
}

impl BareRing {
    /// Copies in what fits now; 0: nothing does.
    #[inline]
    pub(crate) fn try_write(&self, from: &[u8]) -> usize {
        self.tx.write(from)
    }

    /// Copies out what is there now; 0: nothing is.
    #[inline]
    pub(crate) fn try_read(&self, into: &mut [u8]) -> usize {
        self.rx.read(into)
    }

    /// Copies in at least one byte of `from`, which is not empty, when there is room.
    #[inline]
    pub(crate) fn write(&self, from: &[u8]) -> io::Result<usize> {
        match self.try_write(from) {
            0 => self.until(|| Some(self.try_write(from)).filter(|count| *count > 0)),
            count => Ok(count),
        }
    }

    /// Copies out at least one byte when there is one; 0: the other side has finished.
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self.try_read(into) {
            0 => self.until(|| {
                let closed = self.rx.closed.load(Ordering::Acquire) != 0;
                Some(self.try_read(into)).filter(|count| *count > 0 || closed)
            }),
            count => Ok(count),
        }
    }

    /// Nothing more will be written.
    pub(crate) fn finish(&self) {
        self.tx.closed.store(1, Ordering::Release);
    }

    fn until(&self, mut look: impl FnMut() -> Option<usize>) -> io::Result<usize> {
        let begin = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if let Some(count) = look() {
                    return Ok(count);
                }
                match self.wait {
                    Wait::Spin => std::hint::spin_loop(),
                    Wait::Yield => std::thread::yield_now(),
                }
            }
            if begin.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Drop for BareRing {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ring_bytes: u64) -> (BareRing, BareRing) {
        let made = BareSegment::create(ring_bytes).expect("a segment");
        let opened = BareSegment::open(&made.path()).expect("the same segment");
        (made.end(false, Wait::Yield).expect("an end"), opened.end(true, Wait::Yield).expect("the other"))
    }

    #[test]
    fn bytes_pass_in_order_around_the_ring_in_both_directions() {
        let (a, b) = pair(4096);
        let sent: Vec<u8> = (0..100_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let expected = sent.clone();
        let other = std::thread::spawn(move || {
            let mut got = vec![0; expected.len()];
            let mut filled = 0;
            loop {
                match b.read(&mut got[filled..]).expect("bytes or the end") {
                    0 => break,
                    count => {
                        assert_eq!(b.write(&[count as u8]).expect("room"), 1);
                        filled += count;
                    }
                }
                if filled == got.len() {
                    break;
                }
            }
            assert!(got == expected, "the bytes differ");
        });
        let (mut rest, mut answers) = (&sent[..], 0);
        while !rest.is_empty() {
            let count = a.write(&rest[..rest.len().min(1000)]).expect("room");
            rest = &rest[count..];
            answers += a.try_read(&mut [0; 4096]);
        }
        a.finish();
        while answers == 0 {
            answers += a.read(&mut [0; 4096]).expect("answers");
        }
        other.join().expect("the reader");
    }

    #[test]
    fn a_full_ring_takes_nothing_and_an_end_is_told_after_the_last_byte() {
        let (a, b) = pair(4096);
        assert_eq!(a.try_write(&[1; 5000]), 4096);
        assert_eq!(a.try_write(&[1]), 0);
        drop(a);
        let mut into = [0; 8192];
        assert_eq!(b.read(&mut into).expect("what was written"), 4096);
        assert_eq!(b.read(&mut into).expect("the end"), 0);
    }

    #[test]
    fn sizes_that_are_no_ring_are_refused() {
        for bytes in [0, 4095, 5000, 128 << 20] {
            let told = BareSegment::create(bytes).expect_err("not a ring").to_string();
            assert!(told.contains("power of two"), "{told}");
        }
    }
}

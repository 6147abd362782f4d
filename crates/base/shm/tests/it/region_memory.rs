//! The memory of regions: who may write it, atomics between processes, words that are never torn.
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use rustix::fs::{Mode, OFlags};
use shm::{AtomicOp, Region, RegionError, RegionMemory, SegmentError};

/// What the other program gets: a descriptor of its own.
fn own(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().unwrap()
}

#[test]
fn two_programs_share_it_and_a_reader_cannot_write() {
    let memory = RegionMemory::create(10_000, false).unwrap();
    let writer = RegionMemory::accept(own(&memory.writable_fd()), 10_000, true).unwrap();
    let reader = RegionMemory::accept(own(&memory.read_only_fd().unwrap()), 10_000, false).unwrap();
    assert_eq!((writer.len(), reader.len(), memory.bytes()), (10_000, 10_000, 10_000));
    writer.write_whole_words(9_990, b"ten bytes!").unwrap();
    let mut got = [0; 10];
    reader.read_whole_words(9_990, &mut got).unwrap();
    assert_eq!(&got, b"ten bytes!");
    assert_eq!(reader.write_whole_words(0, &[1]), Err(RegionError::ReadOnly));
    assert_eq!(reader.atomic64(0, AtomicOp::Add(1)), Err(RegionError::ReadOnly));
    // The kernel, too, maps no such descriptor for writing.
    let refused = RegionMemory::accept(own(&memory.read_only_fd().unwrap()), 10_000, true);
    assert!(matches!(refused, Err(SegmentError::Os { call: "mmap", .. })), "{refused:?}");
}

#[test]
fn a_descriptor_for_reading_cannot_be_opened_again_for_writing() {
    if !rustix::process::geteuid().is_root() {
        return reopen(&RegionMemory::create(4096, false).unwrap());
    }
    // Root may open anything; so the thread becomes another user, as the program of another user is.
    let memory = RegionMemory::create(4096, false).unwrap();
    let reader = memory.read_only_fd().unwrap();
    std::thread::scope(|scope| {
        let as_other = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(4001);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
            rustix::fs::open(path, OFlags::RDWR, Mode::empty()).unwrap_err()
        });
        assert!(is_refusal(as_other.join().unwrap()));
    });
}

/// By its mode or, where the maker made it immutable, by that.
fn is_refusal(error: rustix::io::Errno) -> bool {
    matches!(error, rustix::io::Errno::ACCESS | rustix::io::Errno::PERM)
}

fn reopen(memory: &RegionMemory) {
    let fd = memory.read_only_fd().unwrap();
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    assert!(is_refusal(rustix::fs::open(path, OFlags::RDWR, Mode::empty()).unwrap_err()));
}

#[test]
fn descriptors_that_are_no_regions_are_refused() {
    let file = tempfile();
    assert!(RegionMemory::accept(file, 4096, true).is_err());
    let memory = RegionMemory::create(4096, false).unwrap();
    let short = RegionMemory::accept(own(&memory.writable_fd()), 4097, true).unwrap_err();
    assert!(short.to_string().contains("4096") && short.to_string().contains("4097"), "{short}");
    assert!(RegionMemory::accept(own(&memory.writable_fd()), 0, true).is_err());
    let unsealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    assert!(RegionMemory::accept(unsealed, 4096, true).unwrap_err().to_string().contains("seals"));
    for bytes in [0, u64::MAX, 1 << 63] {
        assert!(RegionMemory::create(bytes, false).is_err(), "{bytes}");
        assert!(RegionMemory::create(bytes, true).is_err(), "{bytes} of huge pages");
    }
}

/// Whether the system has huge pages decides what is to be seen; either way it must be an answer.
#[test]
fn huge_pages_are_there_or_refused() {
    let free = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = free.lines().find_map(|l| l.strip_prefix("HugePages_Free:")).map_or(0, |n| n.trim().parse().unwrap());
    match RegionMemory::create(5000, true) {
        Ok(memory) => {
            let region = memory.map().unwrap();
            region.write(4990, &[7; 10]).unwrap();
            let other = RegionMemory::accept(own(&memory.writable_fd()), 5000, true).unwrap();
            let mut got = [0; 10];
            other.read(4990, &mut got).unwrap();
            assert_eq!(got, [7; 10]);
        }
        Err(e) => assert!(free == 0, "{e}, with {free} huge pages free"),
    }
}

fn tempfile() -> std::os::fd::OwnedFd {
    let dir = std::env::temp_dir();
    rustix::fs::open(dir, OFlags::RDWR | OFlags::TMPFILE, Mode::from_raw_mode(0o600)).unwrap()
}

#[test]
fn atomics_do_what_their_model_says_and_check_first() {
    let region = Region::anonymous(20).unwrap();
    let ops = [
        AtomicOp::Add(u64::MAX),
        AtomicOp::Swap(12),
        AtomicOp::CompareSwap { expected: 12, new: 77 },
        AtomicOp::CompareSwap { expected: 12, new: 78 },
        AtomicOp::Or(0xf00),
        AtomicOp::And(0xff),
        AtomicOp::Xor(0x5a),
        AtomicOp::Min(100),
        AtomicOp::Min(5),
        AtomicOp::Max(3),
        AtomicOp::Max(1 << 63),
        AtomicOp::Min(1 << 62),
    ];
    let mut value = 0;
    for op in ops {
        assert_eq!(region.atomic64(8, op), Ok(value), "{op:?}");
        value = op.apply(value);
        assert_eq!(region.word64(8).unwrap().load(Ordering::SeqCst), value, "{op:?}");
    }
    for offset in [1, 4, 7, 12] {
        let refused = region.atomic64(offset, AtomicOp::Add(1));
        assert_eq!(refused, Err(RegionError::Misaligned { offset, align: 8 }));
    }
    for offset in [16, 24, u64::MAX - 7] {
        let refused = region.atomic64(offset, AtomicOp::Add(1));
        assert!(matches!(refused, Err(RegionError::OutOfBounds { .. })), "{refused:?}");
    }
}

/// Long copies in both directions, at offsets that are not those of the words: each aligned word is as one store left
/// it.
#[test]
fn words_are_never_torn() {
    let region = Region::anonymous(4096).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let (region, done) = (&region, &done);
            scope.spawn(move || {
                let mut value = thread;
                while !done.load(Ordering::Relaxed) {
                    value = value.wrapping_add(2);
                    region.write_whole_words(0, &[value; 4096]).unwrap();
                }
            });
        }
        let mut got = [0; 4090];
        for _ in 0..20_000 {
            region.read_whole_words(3, &mut got).unwrap();
            let torn = got[5..].chunks_exact(8).position(|word| word.iter().any(|b| *b != word[0]));
            if torn.is_some() {
                done.store(true, Ordering::Relaxed);
            }
            assert_eq!(torn, None);
        }
        done.store(true, Ordering::Relaxed);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn whole_words_move_the_same_bytes_as_plain_copies(
        offset in 0u64..300,
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (one, other) = (Region::anonymous(257).unwrap(), Region::anonymous(257).unwrap());
        prop_assert_eq!(one.write(offset, &bytes), other.write_whole_words(offset, &bytes));
        let (mut a, mut b) = (vec![0; 257], vec![1; 257]);
        one.read(0, &mut a).unwrap();
        other.read_whole_words(0, &mut b).unwrap();
        prop_assert_eq!(a, b);
        let (mut a, mut b) = (vec![0; bytes.len()], vec![0; bytes.len()]);
        prop_assert_eq!(one.read(offset, &mut a), other.read_whole_words(offset, &mut b));
        prop_assert_eq!(a, b);
    }
}

/// Whether something under `/proc/self` shows a file with this number: its mappings, or its descriptors.
fn shows(what: &str, file: u64) -> bool {
    match what {
        "maps" => std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .any(|line| line.split_whitespace().nth(4) == Some(&file.to_string())),
        _ => std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(|entry| {
            let stat = std::fs::metadata(entry.path());
            stat.is_ok_and(|stat| std::os::unix::fs::MetadataExt::ino(&stat) == file)
        }),
    }
}

fn eventually_not(what: &str, file: u64) {
    let start = std::time::Instant::now();
    while shows(what, file) {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{what} still shows it");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn memory_is_taken_down_by_a_thread_of_its_own() {
    shm::take_down_elsewhere().unwrap();
    shm::take_down_elsewhere().unwrap();
    // A thread has its name a moment after it is there.
    let named = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |t: &std::fs::DirEntry| std::fs::read_to_string(t.path().join("comm")).unwrap_or_default();
        threads.filter(|t| name(t).trim() == "raas-undertaker").count()
    };
    let start = std::time::Instant::now();
    while named() != 1 {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{} threads", named());
    }
    let memory = RegionMemory::create(100 << 20, false).unwrap();
    let region = memory.map().unwrap();
    (0..100).for_each(|piece| region.write(piece << 20, &[1]).unwrap());
    let (_, file) = region.identity();
    // One that is on its way to a program.
    let copy = memory.writable_fd();
    assert!(shows("maps", file) && shows("fd", file));
    drop((region, memory));
    eventually_not("maps", file);
    assert!(shows("fd", file));
    drop(copy);
    eventually_not("fd", file);
}

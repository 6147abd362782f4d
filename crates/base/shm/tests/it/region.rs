//! Regions and words: bounds, alignment, access rights, giving pages back, lifetimes, fork.
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use shm::{Doorbell, Region, RegionError, RingMemory, RingReader, RingWriter, Segment, Sharing, Word32, Word64};

fn read_only() -> Region {
    let made = Segment::create("shm-test", 8192, Sharing::PeerReadOnly).unwrap();
    let fd = made.fd().try_clone_to_owned().unwrap();
    Segment::accept(fd, 8192, Sharing::PeerReadOnly).unwrap().into_region()
}

/// The panic message of `action`, which must panic.
fn panic_of(action: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(action).expect_err("it must panic");
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap()
}

#[test]
fn handles_may_be_sent_and_shared() {
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<Region>();
    sendable::<Word64>();
    sendable::<Word32>();
    sendable::<Doorbell>();
    sendable::<RingWriter>();
    sendable::<RingReader>();
}

#[test]
fn a_region_is_never_empty() {
    assert_eq!(Region::anonymous(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert!(Region::anonymous(usize::MAX).is_err());
    let region = Region::anonymous(5).unwrap();
    assert_eq!((region.len(), region.is_empty(), region.is_writable()), (5, false, true));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// A copy works exactly if it lies inside, and then moves exactly its bytes.
    #[test]
    fn copies_are_checked(
        offset in prop_oneof![0u64..300, any::<u64>(), (0u64..300).prop_map(|below| u64::MAX - below)],
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let region = Region::anonymous(257).unwrap();
        let inside = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= 257);
        let mut all = vec![0xaa; 257];
        region.write(0, &all).unwrap();
        let refused = RegionError::OutOfBounds { offset, len: bytes.len() as u64, size: 257 };
        let mut back = vec![0; bytes.len()];
        if inside {
            region.write(offset, &bytes).unwrap();
            region.read(offset, &mut back).unwrap();
            prop_assert_eq!(&back, &bytes);
            all[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
        } else {
            prop_assert_eq!(region.write(offset, &bytes), Err(refused));
            prop_assert_eq!(region.read(offset, &mut back), Err(refused));
        }
        let mut now = vec![0; 257];
        region.read(0, &mut now).unwrap();
        prop_assert_eq!(now, all);
    }

    /// After `discard` the range reads as zero, what is around it is untouched.
    #[test]
    fn discard_clears_exactly_the_range(offset in 0u64..40000, len in 0u64..40000, shared: bool) {
        const SIZE: usize = 40000;
        let region = if shared {
            Segment::create("shm-test", SIZE as u64, Sharing::ReadWrite).unwrap().into_region()
        } else {
            Region::anonymous(SIZE).unwrap()
        };
        region.write(0, &[1; SIZE]).unwrap();
        let inside = offset + len <= region.len();
        prop_assert_eq!(region.discard(offset, len).is_ok(), inside);
        let mut now = vec![0; SIZE];
        region.read(0, &mut now).unwrap();
        for (at, &byte) in now.iter().enumerate() {
            let cleared = inside && (offset..offset + len).contains(&(at as u64));
            prop_assert_eq!(byte, u8::from(!cleared), "byte {}", at);
        }
    }
}

#[test]
fn words_must_be_aligned_and_inside() {
    let region = Region::anonymous(20).unwrap();
    assert_eq!(region.word64(4).unwrap_err(), RegionError::Misaligned { offset: 4, align: 8 });
    assert_eq!(region.word32(6).unwrap_err(), RegionError::Misaligned { offset: 6, align: 4 });
    assert_eq!(region.word64(16).unwrap_err(), RegionError::OutOfBounds { offset: 16, len: 8, size: 20 });
    assert_eq!(region.word32(20).unwrap_err(), RegionError::OutOfBounds { offset: 20, len: 4, size: 20 });
    assert!(region.word64(u64::MAX - 7).is_err());
    assert!(region.word64(8).is_ok());
    assert!(region.word32(16).is_ok());
}

#[test]
fn words_are_little_endian_bytes_of_the_region() {
    let region = Region::anonymous(16).unwrap();
    let (wide, narrow) = (region.word64(0).unwrap(), region.word32(8).unwrap());
    wide.store(0x0807_0605_0403_0201, Ordering::Release);
    narrow.store(0x0c0b_0a09, Ordering::Release);
    let mut bytes = [0; 12];
    region.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(wide.swap(6, Ordering::AcqRel), 0x0807_0605_0403_0201);
    assert_eq!(wide.fetch_or(1, Ordering::AcqRel), 6);
    assert_eq!(wide.fetch_and(5, Ordering::AcqRel), 7);
    assert_eq!(wide.fetch_add(u64::MAX, Ordering::AcqRel), 5);
    assert_eq!(wide.compare_exchange(4, 9, Ordering::AcqRel, Ordering::Acquire), Ok(4));
    assert_eq!(wide.compare_exchange(4, 1, Ordering::AcqRel, Ordering::Acquire), Err(9));
    assert_eq!(wide.load(Ordering::SeqCst), 9);
    assert_eq!(narrow.swap(3, Ordering::AcqRel), 0x0c0b_0a09);
}

#[test]
fn a_read_only_region_refuses_stores_without_a_fault() {
    let region = read_only();
    assert!(!region.is_writable());
    assert_eq!(region.write(0, &[1]), Err(RegionError::ReadOnly));
    assert_eq!(region.discard(0, 4096).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    let word = region.word64(0).unwrap();
    for order in [Ordering::Relaxed, Ordering::Acquire, Ordering::SeqCst] {
        assert_eq!(word.load(order), 0);
    }
    assert_eq!(word.clone().writable().unwrap_err(), RegionError::ReadOnly);
    assert!(panic_of(move || word.store(1, Ordering::Relaxed)).contains("read-only mapping"));
    let word = region.word32(0).unwrap();
    assert!(panic_of(move || word.store(1, Ordering::Relaxed)).contains("read-only mapping"));
}

#[test]
fn constructors_that_will_store_refuse_read_only_memory() {
    let (theirs, own) = (read_only(), Region::anonymous(8192).unwrap());
    let ring = |region: &Region| RingMemory { region: region.clone(), offset: 4096, bytes: 4096 };
    let word = |region: &Region, at| region.word64(at).unwrap();
    // A writer needs its own memory and tail, a reader its own head; the rest may be the peer's.
    assert!(RingWriter::new(ring(&own), word(&own, 0), word(&theirs, 8), 0).is_ok());
    assert!(RingReader::new(ring(&theirs), word(&theirs, 0), word(&own, 8), 0).is_ok());
    let refused = [
        RingWriter::new(ring(&theirs), word(&own, 0), word(&theirs, 8), 0).err(),
        RingWriter::new(ring(&own), word(&theirs, 0), word(&theirs, 8), 0).err(),
        RingReader::new(ring(&theirs), word(&theirs, 0), word(&theirs, 8), 0).err(),
        Doorbell::new(&theirs, 0, 64).err(),
        shm::PairWaiter::new(theirs.word32(0).unwrap()).err(),
    ];
    assert_eq!(refused, [Some(RegionError::ReadOnly); 5]);
}

#[test]
fn memory_lives_as_long_as_its_last_handle() {
    let region = Region::anonymous(4096).unwrap();
    let word = region.word64(64).unwrap();
    let second = word.clone();
    drop(region);
    word.store(42, Ordering::Relaxed);
    drop(word);
    assert_eq!(second.load(Ordering::Relaxed), 42);
}

/// Two mappings of one segment through duplicated descriptors share bytes, not lifetimes.
#[test]
fn duplicated_descriptors_map_the_same_bytes_independently() {
    let made = Segment::create("shm-test", 4096, Sharing::ReadWrite).unwrap();
    let fd = made.fd().try_clone_to_owned().unwrap();
    let first = made.region().clone();
    let second = Segment::accept(fd, 4096, Sharing::ReadWrite).unwrap().into_region();
    assert_ne!(first.as_ptr(), second.as_ptr());
    first.write(10, b"through").unwrap();
    drop((made, first));
    let mut seen = [0; 7];
    second.read(10, &mut seen).unwrap();
    assert_eq!(&seen, b"through");
}

/// A child made by fork has its own copy of private memory and of cursors, but shares segments.
#[test]
fn fork_copies_private_memory_and_cursors_and_shares_segments() {
    let private = Region::anonymous(4096).unwrap();
    let shared = Segment::create("shm-test", 8192, Sharing::ReadWrite).unwrap().into_region();
    let memory = RingMemory { region: shared.clone(), offset: 4096, bytes: 4096 };
    let words = || (shared.word64(0).unwrap(), shared.word64(8).unwrap());
    let (tail, head) = words();
    let mut writer = RingWriter::new(memory.clone(), tail, head, 0).unwrap();
    writer.write(b"parent").unwrap();
    let (in_child, word) = (private.clone(), shared.word32(256).unwrap());
    let (tail, head) = words();
    let mut child_writer = RingWriter::resume(memory, tail, head, 6, 0).unwrap();
    let mut command = Command::new("true");
    // SAFETY: the closure only copies into mapped memory and stores atomics: no allocation, no locks.
    unsafe {
        command.pre_exec(move || {
            in_child.write(0, b"child").map_err(|_| io::ErrorKind::Other)?;
            child_writer.write(b"+child").map_err(|_| io::ErrorKind::Other)?;
            word.store(child_writer.tail() as u32, Ordering::Release);
            Ok(())
        });
    }
    assert!(command.status().unwrap().success());
    let mut seen = [1; 5];
    private.read(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 5], "a private region is copied on fork");
    assert_eq!(shared.word32(256).unwrap().load(Ordering::Acquire), 12, "the child's own cursor went on");
    assert_eq!(writer.tail(), 6, "the parent's cursor did not: two writers on one ring need an owner");
    let (tail, head) = words();
    let memory = RingMemory { region: shared.clone(), offset: 4096, bytes: 4096 };
    let mut reader = RingReader::new(memory, tail, head, 0).unwrap();
    let mut all = [0; 32];
    let count = reader.read(&mut all).unwrap();
    assert_eq!(&all[..count], b"parent+child");
}

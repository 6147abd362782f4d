//! Sealed memfds: what is made, and what is refused.
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::io::{Errno, FdFlags};
use shm::{RegionMemory, Segment, SegmentError, Sharing};

const LEN: u64 = 8192;
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("shm-test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[track_caller]
fn refused(fd: impl Into<OwnedFd>, sharing: Sharing, why: &str) {
    match Segment::accept(fd.into(), LEN, sharing) {
        Err(SegmentError::Refused(text)) => assert!(text.contains(why), "refused, but: {text}"),
        other => panic!("expected a refusal with '{why}', not {other:?}"),
    }
}

#[test]
fn a_segment_is_sealed_and_shared() {
    let made = Segment::create("shm-test", LEN - 100, Sharing::ReadWrite).unwrap();
    assert_eq!(made.region().len(), LEN, "whole pages");
    assert!(rustix::io::fcntl_getfd(made.fd()).unwrap().contains(FdFlags::CLOEXEC));
    assert_eq!(rustix::fs::ftruncate(made.fd(), 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(made.fd(), 2 * LEN), Err(Errno::PERM));
    assert_eq!(rustix::fs::fcntl_add_seals(made.fd(), SealFlags::WRITE), Err(Errno::PERM));
    let passed = made.fd().try_clone_to_owned().unwrap();
    rustix::io::fcntl_setfd(&passed, FdFlags::empty()).unwrap();
    let accepted = Segment::accept(passed, LEN - 100, Sharing::ReadWrite).unwrap();
    assert!(rustix::io::fcntl_getfd(accepted.fd()).unwrap().contains(FdFlags::CLOEXEC));
    accepted.region().write(LEN - 3, b"end").unwrap();
    let mut seen = [0; 3];
    made.into_region().read(LEN - 3, &mut seen).unwrap();
    assert_eq!(&seen, b"end");
}

#[test]
fn the_peer_of_a_read_only_segment_cannot_get_write_access() {
    let made = Segment::create("shm-test", LEN, Sharing::PeerReadOnly).unwrap();
    assert!(made.region().is_writable());
    let accepted = Segment::accept(made.fd().try_clone_to_owned().unwrap(), LEN, Sharing::PeerReadOnly).unwrap();
    assert!(!accepted.region().is_writable());
    made.region().write(0, b"still").unwrap();
    let mut seen = [0; 5];
    accepted.region().read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"still");
    // Neither by write(2), nor by reopening, nor by punching a hole.
    assert_eq!(rustix::io::pwrite(accepted.fd(), b"x", 0), Err(Errno::PERM));
    refused(accepted.fd().try_clone_to_owned().unwrap(), Sharing::ReadWrite, "sealed against writes");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&accepted.fd()));
    let reopened = File::options().read(true).write(true).open(path).unwrap();
    refused(reopened, Sharing::ReadWrite, "sealed against writes");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(accepted.fd(), punch, 0, 4096), Err(Errno::PERM));
    // The maker's own discard stores zeros instead.
    made.region().discard(0, LEN).unwrap();
    accepted.region().read(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 5]);
}

#[test]
fn missing_seals_are_refused() {
    for (seals, missing) in [
        (SealFlags::empty(), "SHRINK"),
        (SealFlags::GROW | SealFlags::SEAL, "SHRINK"),
        (SealFlags::SHRINK | SealFlags::SEAL, "GROW"),
        (SealFlags::SHRINK | SealFlags::GROW, "SEAL"),
    ] {
        refused(memfd(LEN, seals), Sharing::ReadWrite, missing);
        refused(memfd(LEN, seals | SealFlags::FUTURE_WRITE), Sharing::PeerReadOnly, missing);
    }
    refused(memfd(LEN, FIXED_SIZE), Sharing::PeerReadOnly, "FUTURE_WRITE");
    refused(memfd(LEN, FIXED_SIZE | SealFlags::WRITE), Sharing::ReadWrite, "sealed against writes");
    Segment::accept(memfd(LEN, FIXED_SIZE), LEN, Sharing::ReadWrite).unwrap();
    Segment::accept(memfd(LEN, FIXED_SIZE | SealFlags::FUTURE_WRITE), LEN, Sharing::PeerReadOnly).unwrap();
    Segment::accept(memfd(LEN, FIXED_SIZE | SealFlags::WRITE), LEN, Sharing::PeerReadOnly).unwrap();
}

#[test]
fn other_sizes_are_refused() {
    for len in [0, 1, LEN - 4096, LEN - 1, LEN + 1, LEN + 4096, 1 << 40] {
        refused(memfd(len, FIXED_SIZE), Sharing::ReadWrite, "the message said 8192");
    }
    for len in [0, u64::MAX, u64::MAX - 5000, 1 << 63] {
        let result = Segment::accept(memfd(LEN, FIXED_SIZE), len, Sharing::ReadWrite);
        assert!(matches!(&result, Err(SegmentError::Refused(_))), "{len}: {result:?}");
        let result = Segment::create("shm-test", len, Sharing::ReadWrite);
        assert!(matches!(&result, Err(SegmentError::Refused(_))), "{len}: {result:?}");
    }
}

#[test]
fn what_is_not_a_memfd_is_refused() {
    let file = tempfile();
    refused(file, Sharing::ReadWrite, "seals missing");
    refused(File::open("/dev/zero").unwrap(), Sharing::ReadWrite, "not a memfd");
    refused(File::open("/").unwrap(), Sharing::ReadWrite, "not a memfd");
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    refused(reader, Sharing::ReadWrite, "not a memfd");
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    refused(socket, Sharing::ReadWrite, "not a memfd");
}

/// A file in /dev/shm is on the same filesystem as a memfd, but cannot be sealed.
fn tempfile() -> OwnedFd {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let dir = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let fd = rustix::fs::open(dir, flags, 0o600.into()).unwrap();
    rustix::fs::ftruncate(&fd, LEN).unwrap();
    fd
}

#[test]
fn a_path_descriptor_is_an_error_not_a_mapping() {
    let made = Segment::create("shm-test", LEN, Sharing::ReadWrite).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made.fd()));
    let by_path = rustix::fs::open(&*path, OFlags::PATH, 0.into()).unwrap();
    assert!(Segment::accept(by_path, LEN, Sharing::ReadWrite).is_err());
    let read_only = rustix::fs::open(&*path, OFlags::RDONLY, 0.into()).unwrap();
    let result = Segment::accept(read_only, LEN, Sharing::ReadWrite);
    assert!(matches!(&result, Err(SegmentError::Os { call: "mmap", .. })), "{result:?}");
}

#[test]
fn huge_pages_are_refused() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let fd = match rustix::fs::memfd_create("shm-test-huge", flags) {
        Ok(fd) => fd,
        Err(errno) => {
            eprintln!("SKIPPED huge_pages_are_refused: this kernel makes no hugetlb memfd ({errno})");
            return;
        }
    };
    let huge_page = 2 << 20;
    rustix::fs::ftruncate(&fd, huge_page).unwrap();
    rustix::fs::fcntl_add_seals(&fd, FIXED_SIZE).unwrap();
    match Segment::accept(fd, huge_page, Sharing::ReadWrite) {
        Err(SegmentError::Refused(text)) => assert!(text.contains("huge pages"), "{text}"),
        other => panic!("{other:?}"),
    }
}

/// Holes may be punched into a segment that both sides write: the bytes become zero, nobody crashes.
#[test]
fn a_punched_hole_reads_as_zero() {
    let made = Segment::create("shm-test", LEN, Sharing::ReadWrite).unwrap();
    made.region().write(0, &[7; LEN as usize]).unwrap();
    let peer = Segment::accept(made.fd().try_clone_to_owned().unwrap(), LEN, Sharing::ReadWrite).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(peer.fd().as_fd(), punch, 4096, 4096).unwrap();
    let mut seen = vec![1; LEN as usize];
    made.region().read(0, &mut seen).unwrap();
    assert_eq!(&seen[..4096], &[7; 4096]);
    assert_eq!(&seen[4096..], &[0; 4096]);
    made.region().write(5000, b"again").unwrap();
}

/// Whoever touches a page of a hole waits until all of them are free: a daemon that may forbids holes.
#[test]
fn no_holes_are_punched_into_a_region_whose_maker_may_forbid_it() {
    const BYTES: u64 = 1 << 20;
    let memory = RegionMemory::create(BYTES, false).unwrap();
    let fd = memory.writable_fd();
    let mapped = RegionMemory::accept(fd.try_clone().unwrap(), BYTES, true).unwrap();
    mapped.write(4096, &[7; 4096]).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = rustix::fs::fallocate(&fd, punch, 4096, 4096);
    let given_back = mapped.discard(0, BYTES / 2);
    if !memory.has_no_holes() {
        assert!(!rustix::process::geteuid().is_root() || std::env::var_os("CI").is_none(), "root forbids holes");
        return;
    }
    assert_eq!(punched, Err(Errno::PERM));
    // What the mapping gives back is stored as zeroes, and the pages stay.
    given_back.unwrap();
    let mut found = [1; 2];
    mapped.read(4096, &mut found).unwrap();
    assert_eq!(found, [0; 2]);
    let reader = RegionMemory::accept(memory.read_only_fd().unwrap().try_clone().unwrap(), BYTES, false).unwrap();
    mapped.write(BYTES - 2, &[9; 2]).unwrap();
    reader.read(BYTES - 2, &mut found).unwrap();
    assert_eq!(found, [9; 2]);
}

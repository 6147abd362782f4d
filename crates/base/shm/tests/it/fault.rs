//! Accesses that raise SIGBUS: survived where somebody asked for that, and only to shared mappings. Each in a process
//! of its own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::FallocateFlags;
use shm::{Region, RegionMemory, Segment, Session, Sharing, survive_faults, survived_faults};

const STEP: &str = "RAAS_FAULT_STEP";
const PAGE: u64 = 4096;
const SIGBUS: i32 = 7;

fn without_pages(pages: u64) -> Region {
    Region::without_pages((pages * PAGE) as usize).unwrap()
}

/// Runs the test `name` again, in a process that has `STEP`.
fn in_a_process(name: &str, step: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap()).env(STEP, step).args(["--exact", name]).status().unwrap()
}

fn survive() {
    survive_faults().unwrap();
    survive_faults().unwrap();
    let (sound, holes) = (Segment::create("sound", PAGE, Sharing::ReadWrite).unwrap(), without_pages(8));
    sound.region().write(0, b"sound").unwrap();
    let mut bytes = [9; 16];
    holes.read(PAGE - 8, &mut bytes).unwrap();
    assert_eq!((bytes, survived_faults()), ([0; 16], 2), "two pages of zeroes");
    holes.write(5 * PAGE, b"written").unwrap();
    holes.read(5 * PAGE, &mut bytes).unwrap();
    assert_eq!((&bytes[..7], survived_faults()), (&b"written"[..], 3), "a page is put there once");
    assert!(holes.has_faulted() && !sound.region().has_faulted());
    // Words too, read only mappings too, and the place of a mapping that is gone says nothing about the next one there.
    drop(holes);
    let holes = without_pages(8);
    assert!(!holes.has_faulted());
    holes.word64(3 * PAGE).unwrap().store(7, std::sync::atomic::Ordering::SeqCst);
    let session = Session::format(without_pages(64), 64, 1).unwrap();
    assert!(holes.has_faulted() && session.has_faulted());
    sound.region().read(0, &mut bytes[..5]).unwrap();
    assert_eq!(&bytes[..5], b"sound");
}

const POOL: &str = "/proc/sys/vm/nr_hugepages";

/// The hole of a huge page, when the system has no other one.
fn survive_in_huge_pages() {
    const HUGE: u64 = 2 << 20;
    let pool = || std::fs::read_to_string(POOL).unwrap().trim().parse::<u32>().unwrap();
    let set = |pages: u32| std::fs::write(POOL, pages.to_string());
    let before = pool();
    if set(before + 2).is_err() || pool() < before + 2 {
        eprintln!("SKIP huge pages: this process cannot have the system make one");
        return;
    }
    survive_faults().unwrap();
    let memory = RegionMemory::create(2 * HUGE, true).unwrap();
    let region = memory.map().unwrap();
    region.write(0, b"kept").unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(memory.writable_fd(), flags, HUGE, HUGE).unwrap();
    set(before).unwrap();
    let mut bytes = [9; 16];
    region.read(HUGE + 4096 - 8, &mut bytes).unwrap();
    region.write(2 * HUGE - 8, b"the end.").unwrap();
    if survived_faults() == 0 {
        eprintln!("SKIP huge pages: the system had one more");
        return;
    }
    assert_eq!((bytes, survived_faults()), ([0; 16], 1), "all of the page is zeroes");
    assert!(region.has_faulted());
    region.read(0, &mut bytes[..4]).unwrap();
    assert_eq!(&bytes[..4], b"kept");
}

fn survive_in_many_threads() {
    survive_faults().unwrap();
    let holes = Arc::new(without_pages(512));
    let threads: Vec<_> = (0..8u64)
        .map(|thread| {
            let holes = Arc::clone(&holes);
            std::thread::spawn(move || {
                for page in 0..64 {
                    let at = (page * 8 + thread) * PAGE + thread;
                    holes.write(at, &[thread as u8 + 1; 100]).unwrap();
                    // Mappings come and go meanwhile.
                    without_pages(1).read(0, &mut [0; 8]).unwrap();
                    let mut bytes = [0; 100];
                    holes.read(at, &mut bytes).unwrap();
                    assert_eq!(bytes, [thread as u8 + 1; 100]);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(survived_faults(), 512 + 512);
}

#[test]
fn accesses_to_shared_mappings_are_survived_and_no_others() {
    const NAME: &str = "fault::accesses_to_shared_mappings_are_survived_and_no_others";
    let early = without_pages(1);
    match std::env::var(STEP).as_deref() {
        Ok("survive") => return survive(),
        Ok("huge pages") => return survive_in_huge_pages(),
        Ok("threads") => return survive_in_many_threads(),
        Ok("nobody asked") => return early.read(0, &mut [0]).unwrap(),
        Ok("not watched") => {
            survive_faults().unwrap();
            return early.read(0, &mut [0]).unwrap();
        }
        Ok("sent") => {
            survive_faults().unwrap();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::BUS).unwrap();
            let start = Instant::now();
            while start.elapsed().as_secs() < 60 {}
            return;
        }
        _ => {}
    }
    for (step, signal) in [
        ("survive", None),
        ("huge pages", None),
        ("threads", None),
        ("nobody asked", Some(SIGBUS)),
        ("not watched", Some(SIGBUS)),
        ("sent", Some(SIGBUS)),
    ] {
        let status = in_a_process(NAME, step);
        assert_eq!((status.signal(), status.success()), (signal, signal.is_none()), "{step}: {status}");
    }
}

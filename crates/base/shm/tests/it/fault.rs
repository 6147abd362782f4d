//! Accesses that raise SIGBUS: survived where somebody asked for that, and only to shared mappings. Each in a process
//! of its own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Instant;

use shm::{Region, Segment, Session, Sharing, survive_faults, survived_faults};

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
        ("threads", None),
        ("nobody asked", Some(SIGBUS)),
        ("not watched", Some(SIGBUS)),
        ("sent", Some(SIGBUS)),
    ] {
        let status = in_a_process(NAME, step);
        assert_eq!((status.signal(), status.success()), (signal, signal.is_none()), "{step}: {status}");
    }
}

//! Strict overcommit: a hole of a memfd raises SIGBUS, memory that was allocated does not, and a process that asked
//! for it survives.
//!
//! It needs `vm.overcommit_memory=2`, which is of the whole machine, so it runs in a guest: `cargo xtask vm --suite
//! overcommit`. Prints a result line for each case (docs/proof/guests.md).

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use shm::{Region, Segment, Sharing, overcommit_is_strict, refill_fault_reserve, survive_faults, survived_faults};

const BYTES: u64 = 4 << 20;
const PAGE: u64 = 4096;
const SIGBUS: i32 = 7;

/// Each in a process of its own, and how it ends.
const CASES: [(&str, Option<i32>); 6] = [
    ("read a hole", Some(SIGBUS)),
    ("write to a hole", Some(SIGBUS)),
    ("allocate", None),
    ("allocated", None),
    ("survive", None),
    ("survive again", None),
];

/// Takes all memory that the system still promises.
fn exhaust() -> Vec<Region> {
    let mut held = Vec::with_capacity(1024);
    let mut len = 1 << 30;
    while len >= 4096 {
        match Region::anonymous(len) {
            Ok(region) => held.push(region),
            Err(_) => len /= 2,
        }
    }
    held
}

fn segment() -> Segment {
    Segment::create("raas-overcommit", BYTES, Sharing::ReadWrite).expect("a memfd")
}

/// Writes to every page. All of them were there, or are pages of a reserve.
fn touch(segment: &Segment) {
    for at in (0..BYTES).step_by(PAGE as usize) {
        segment.region().write(at, &[1; 8]).expect("inside");
        let mut found = [0; 8];
        segment.region().read(at, &mut found).expect("inside");
        assert_eq!(found, [1; 8]);
    }
}

/// What a daemon would do when the system promises no more memory.
fn case(name: &str) {
    if name.starts_with("survive") {
        survive_faults().expect("a handler");
    }
    let (hole, filled) = (segment(), segment());
    if name == "allocated" {
        filled.allocate(BYTES).expect("memory");
    }
    let held = exhaust();
    match name {
        "read a hole" => hole.region().read(BYTES / 2, &mut [0; 8]).expect("inside"),
        "write to a hole" => hole.region().write(BYTES / 2, &[1; 8]).expect("inside"),
        "allocate" => assert!(hole.allocate(BYTES).is_err(), "memory that is not there"),
        "allocated" => touch(&filled),
        _ => {
            touch(&hole);
            assert!(hole.region().has_faulted() && !filled.region().has_faulted());
            assert_eq!(survived_faults(), BYTES / PAGE);
        }
    }
    if name == "survive again" {
        // The reserve is used in part; with memory again it is made whole, and serves as much again.
        drop(held);
        refill_fault_reserve().expect("memory");
        let _held = exhaust();
        touch(&filled);
        assert!(filled.region().has_faulted());
        assert_eq!(survived_faults(), 2 * BYTES / PAGE);
    }
}

fn main() -> ExitCode {
    if let Some(name) = std::env::args().nth(1) {
        case(&name);
        return ExitCode::SUCCESS;
    }
    if !overcommit_is_strict() {
        println!("FAIL strict overcommit: vm.overcommit_memory is not 2");
        return ExitCode::FAILURE;
    }
    let mut failed = false;
    for (name, signal) in CASES {
        let program = std::env::current_exe().expect("this program's file");
        match Command::new(program).arg(name).status() {
            Ok(status) if (status.signal(), status.success()) == (signal, signal.is_none()) => println!("PASS {name}"),
            ended => {
                println!("FAIL {name}: {ended:?}");
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}

//! Strict overcommit: a hole of a memfd raises SIGBUS, memory that was allocated does not.
//!
//! It needs `vm.overcommit_memory=2`, which is of the whole machine, so it runs in a guest of its own (docs/vm.md):
//! `cargo xtask vm -- sh -c "echo 2 > /proc/sys/vm/overcommit_memory; echo 5 > /proc/sys/vm/overcommit_ratio; TEST"`.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use shm::{Region, Segment, Sharing, overcommit_is_strict};

const STEP: &str = "RAAS_OVERCOMMIT_STEP";
const BYTES: u64 = 4 << 20;

/// Takes all memory that the system still promises.
fn exhaust() -> Vec<Region> {
    let mut held = Vec::new();
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
    Segment::create("raas-overcommit", BYTES, Sharing::ReadWrite).unwrap()
}

/// In a process of its own: what a daemon would do when the system promises no more memory.
fn step(name: &str) {
    let (hole, filled) = (segment(), segment());
    if name == "filled" {
        filled.allocate(BYTES).unwrap();
    }
    if name == "survive" {
        shm::survive_faults().unwrap();
    }
    let watched = segment();
    let _held = exhaust();
    match name {
        "survive" => {
            for at in (0..BYTES).step_by(4096) {
                watched.region().write(at, &[1; 8]).unwrap();
            }
            assert!(watched.region().has_faulted() && shm::survived_faults() > 100, "{}", shm::survived_faults());
        }
        "read a hole" => hole.region().read(BYTES / 2, &mut [0; 8]).unwrap(),
        "write to a hole" => hole.region().write(BYTES / 2, &[1; 8]).unwrap(),
        "allocate" => assert!(hole.allocate(BYTES).is_err(), "memory that is not there"),
        _ => {
            for at in (0..BYTES).step_by(4096) {
                filled.region().write(at, &[1; 8]).unwrap();
            }
        }
    }
}

#[test]
fn holes_raise_sigbus_and_allocated_memory_does_not() {
    if let Ok(name) = std::env::var(STEP) {
        return step(&name);
    }
    if !overcommit_is_strict() {
        eprintln!(
            "this machine does not overcommit strictly: the header of this test has the command for a guest that does"
        );
        segment().allocate(BYTES).unwrap();
        return;
    }
    const SIGBUS: i32 = 7;
    for (name, signal) in [
        ("read a hole", Some(SIGBUS)),
        ("write to a hole", Some(SIGBUS)),
        ("allocate", None),
        ("filled", None),
        ("survive", None),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let status = command.env(STEP, name).arg("--exact").arg("holes_raise_sigbus_and_allocated_memory_does_not");
        let status = status.status().unwrap();
        assert_eq!(status.signal(), signal, "{name}: {status}");
        assert!(signal.is_some() || status.success(), "{name}: {status}");
        println!("{name}: {status}");
    }
}

//! Kernels: requests of hostile clients, and modules of hostile owners.
//!
//! The promise is that a run ends within its fuel, with an answer or a failure that fits, and touches nothing outside of
//! its region; and that bytes of a daemon are an answer, a failure, or neither.

use kernels::{
    ANSWER_BYTES_MAX, Call, Chain, Distinct, Failure, Job, Library, Progress, Shuffle, Sorted, UserKernel, View,
};
use shm::Region;

/// Bytes of the region: of the input, the rest is zero.
const REGION_BYTES: usize = 4096;
/// Fuel of a run, so that inputs stay short.
const FUEL_MAX: u64 = 60_000;
/// Most that a step may spend beyond its slice: filling the memory of a module.
const STEP_FUEL: u64 = 80_000;
const SLICE: u64 = 1_000;

/// The first byte says what the rest is: a request for a built-in kernel, whose first 512 bytes are the region too; a
/// module; or what a daemon says.
pub(crate) fn kernel(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => run(rest, &Library::new(), rest),
        1 => {
            let Ok(kernel) = UserKernel::new(rest) else { return };
            let mut library = Library::new();
            assert!(library.install("u", kernel));
            run(b"\x01uargs", &library, rest);
        }
        _ => {
            if let Some(failure) = Failure::parse(rest) {
                let _ = failure.to_string();
            }
            let _ = (Chain::answer(rest), Distinct::answer(rest), Shuffle::answer(rest), Sorted::answer(rest));
        }
    }
}

fn run(request: &[u8], library: &Library, memory: &[u8]) {
    let Ok(region) = Region::anonymous(REGION_BYTES) else { return };
    let beginning = &memory[..memory.len().min(512)];
    region.write(0, beginning).expect("it lies in the region");
    let views = [View::new(region.clone(), true, true), View::new(region, true, false)];
    let mut job = match Job::begin(request, library, FUEL_MAX, ANSWER_BYTES_MAX) {
        Ok(job) => job,
        Err(failure) => {
            assert_eq!(Failure::parse(&failure.to_bytes()), Some(failure));
            return;
        }
    };
    let mut total = 0;
    loop {
        let (progress, spent) = job.run(&views, SLICE);
        assert!((1..=SLICE + STEP_FUEL).contains(&spent), "a slice of {spent}");
        total += spent;
        assert!(total <= FUEL_MAX + SLICE + STEP_FUEL, "it goes on");
        match progress {
            Progress::More => {}
            Progress::Done(answer) => return assert!(answer.len() <= ANSWER_BYTES_MAX),
            Progress::Failed(failure) => {
                let bytes = failure.to_bytes();
                assert!(bytes.len() <= ANSWER_BYTES_MAX, "{failure}");
                assert_eq!(Failure::parse(&bytes), Some(failure));
                return;
            }
        }
    }
}

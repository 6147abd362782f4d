//! Replays the kept corpora, and mutates them from a seed: the part of fuzzing that every test run does.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use fuzz_targets::{TARGETS, Target};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Time that each target's mutations get.
const MUTATING: Duration = Duration::from_millis(1500);
/// Longest input that mutations make.
const INPUT_BYTES_MAX: usize = 4096;

thread_local! {
    /// Whether this thread runs a target, whose panics [`run`] tells of.
    static IN_TARGET: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target.name);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Runs one input; if the target panics, says how and with which bytes.
///
/// Panics are printed only then: a target may catch those of a library, and thousands of them, each with its backtrace,
/// would take the time of the mutations.
fn run(target: &Target, what: &str, bytes: &[u8]) {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if IN_TARGET.get() {
                LAST_PANIC.set(panic.to_string());
            } else {
                print(panic);
            }
        }));
    });
    IN_TARGET.set(true);
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    IN_TARGET.set(false);
    assert!(ran.is_ok(), "target {}: {} with {what}: {bytes:02x?}", target.name, LAST_PANIC.take());
}

#[test]
fn every_kept_input_keeps_the_promises() {
    for target in TARGETS {
        let inputs = corpus(target);
        assert!(inputs.len() >= 10, "the corpus of {} has {} inputs", target.name, inputs.len());
        for (path, bytes) in &inputs {
            run(target, &path.display().to_string(), bytes);
        }
        run(target, "no bytes", &[]);
    }
}

#[test]
fn mutations_of_the_corpora_keep_the_promises() {
    let seed = std::env::var("RAAS_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(fresh_seed);
    println!("RAAS_FUZZ_SEED={seed}");
    for target in TARGETS {
        let mut rng = SmallRng::seed_from_u64(seed);
        let inputs: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, bytes)| bytes).collect();
        let start = Instant::now();
        while start.elapsed() < MUTATING {
            let mut bytes = inputs[rng.random_range(0..inputs.len())].clone();
            mutate(&mut bytes, &inputs, &mut rng);
            run(target, &format!("a mutation of seed {seed}"), &bytes);
        }
    }
}

/// Any number will do, as long as it is another one each time and people can type it.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_millis() as u64 % 1_000_000_000
}

fn mutate(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], rng: &mut SmallRng) {
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.random()),
            2 => bytes.iter_mut().skip(at).take(1).for_each(|b| *b ^= 1 << rng.random_range(0..8)),
            3 => {
                let end = (at + rng.random_range(0..8)).min(bytes.len());
                rng.fill_bytes(&mut bytes[at..end]);
            }
            4 => {
                let other = &inputs[rng.random_range(0..inputs.len())];
                let from = rng.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let end = (at + rng.random_range(0..32)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
}

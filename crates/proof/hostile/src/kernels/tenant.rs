//! A tenant whose kernels misbehave: one thread has some loop all the time, and another one does everything else.
//!
//! Owns the list of misdeeds, and which failure each must end with. It goes through the library: what a program could
//! send that the library does not, the siege's tenant sends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use raas::kernels::{Chain, Failure, Order};
use raas::{Region, RegionAccess, RegionError, RegionKey, RegionOptions, Session};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};

/// What the process says when it begins.
pub const READY: &str = "ready";

const NAME: &str = "hostile-list";
const KEY: RegionKey = RegionKey::new([0x66; 16]);
const BYTES: u64 = 64 << 10;
/// A list that is a ring begins here.
const RING_AT: u64 = 2048;

struct Misdeed {
    name: &'static str,
    /// The module that is run, if it is not built in.
    module: Option<&'static str>,
    is_right: fn(&Failure) -> bool,
}

const LOOP: Misdeed = Misdeed {
    name: "loop",
    module: Some(r#"(module (memory (export "memory") 1) (func (export "run") (loop $l (br $l))))"#),
    is_right: |failure| matches!(failure, Failure::OutOfFuel { .. }),
};

/// Quick ones.
const QUICK: &[Misdeed] = &[
    Misdeed {
        name: "trap",
        module: Some(r#"(module (memory (export "memory") 1) (func (export "run") unreachable))"#),
        is_right: |failure| matches!(failure, Failure::Trap { .. }),
    },
    Misdeed {
        name: "recursion",
        module: Some(r#"(module (memory (export "memory") 1) (func $f (export "run") (call $f)))"#),
        is_right: |failure| matches!(failure, Failure::Trap { .. }),
    },
    Misdeed {
        name: "write outside",
        module: Some(
            r#"(module (import "region" "store" (func $store (param i32 i64 i64))) (memory (export "memory") 1)
                (func (export "run") (call $store (i32.const 0) (i64.const -8) (i64.const 1))))"#,
        ),
        is_right: |failure| matches!(failure, Failure::OutOfBounds { .. }),
    },
    Misdeed {
        name: "another region",
        module: Some(
            r#"(module (import "region" "load" (func $load (param i32 i64) (result i64))) (memory (export "memory") 1)
                (func (export "run") (drop (call $load (i32.const 7) (i64.const 0)))))"#,
        ),
        is_right: |failure| matches!(failure, Failure::BadArguments { .. }),
    },
    Misdeed {
        name: "long answer",
        module: Some(
            r#"(module (import "region" "answer" (func $answer (param i32 i32))) (memory (export "memory") 1)
                (func (export "run") (call $answer (i32.const 0) (i32.const 60000))))"#,
        ),
        is_right: |failure| matches!(failure, Failure::AnswerTooLong { .. }),
    },
    Misdeed { name: "no kernel", module: None, is_right: |failure| matches!(failure, Failure::Unknown { .. }) },
];

/// Built-in kernels, asked for what cannot be.
const RING: &str = "ring";
const GARBAGE: &str = "garbage";

/// Names of all misdeeds.
pub fn names() -> impl Iterator<Item = &'static str> {
    QUICK.iter().map(|misdeed| misdeed.name).chain([LOOP.name, RING, GARBAGE])
}

type Deeds = BTreeMap<&'static str, u64>;

/// Misbehaves for a while; what it did, and how often. The owner makes the region and installs the kernels, of which
/// others find them.
pub fn run(socket: &Path, host: IpAddr, is_owner: bool, seed: u64, time: Duration) -> Result<String> {
    let session = Session::builder().socket(socket).name("hostile-kernels").connect().context("no session")?;
    let access = RegionAccess::ALL | RegionAccess::EXECUTE;
    let region = if is_owner {
        let own = RegionOptions::new().key(KEY).access(access).create(&session, NAME, BYTES)?;
        own.store(RING_AT, RING_AT + 8)?;
        own.store(RING_AT + 8, RING_AT + 8)?;
        for misdeed in QUICK.iter().chain([&LOOP]) {
            if let Some(text) = misdeed.module {
                own.install_kernel(misdeed.name, &wat::parse_str(text)?)?;
            }
        }
        own
    } else {
        Region::open_for(&session, host, NAME, KEY, access).context("no handle to the other tenant's region")?
    };
    println!("{READY}");
    let end = Instant::now() + time;
    let mut deeds = Deeds::new();
    std::thread::scope(|scope| {
        let looping = scope.spawn(|| loops(&region, seed, end));
        let mut done = quick(&region, seed, end)?;
        let looped = looping.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        deeds.append(&mut done);
        deeds.extend(looped);
        anyhow::Ok(())
    })?;
    Ok(deeds.iter().map(|(name, times)| format!("{name} {times}")).collect::<Vec<_>>().join(", "))
}

/// Whether the region is gone, since its owner has ended.
fn is_gone(error: &RegionError) -> bool {
    matches!(
        error,
        RegionError::Kernel { failure: Failure::Revoked, .. }
            | RegionError::Revoked { .. }
            | RegionError::OwnerGone { .. }
    )
}

/// Whether a run ended as it must. `None`: the region is gone.
fn judged(name: &str, result: Result<Vec<u8>, RegionError>, is_right: fn(&Failure) -> bool) -> Result<Option<()>> {
    match result {
        Err(error) if is_gone(&error) => Ok(None),
        Err(RegionError::Kernel { failure, .. }) => {
            ensure!(is_right(&failure), "{name} ended with {failure}");
            Ok(Some(()))
        }
        Err(other) => bail!("{name}: {other}"),
        Ok(answer) => bail!("{name} has an answer of {} bytes", answer.len()),
    }
}

fn loops(region: &Region, seed: u64, end: Instant) -> Result<Deeds> {
    let ring = Chain { order: Order::Nth(u64::MAX), ..Chain::list(RING_AT) };
    let mut deeds = Deeds::new();
    while Instant::now() < end {
        // On the region's own host a built-in kernel takes this program's time, and nobody else's.
        // A slow machine has time for one of both: who begins with which is drawn.
        let [loops, rings] = [LOOP.name, RING].map(|name| deeds.get(name).copied().unwrap_or(0));
        let is_ring = if seed.is_multiple_of(2) { loops >= rings } else { loops > rings };
        let (name, result) = match is_ring {
            true => (RING, region.call(&ring).map(|_| Vec::new())),
            false => (LOOP.name, region.run(LOOP.name, &[])),
        };
        if judged(name, result, LOOP.is_right)?.is_none() {
            break;
        }
        *deeds.entry(name).or_default() += 1;
    }
    Ok(deeds)
}

fn quick(region: &Region, seed: u64, end: Instant) -> Result<Deeds> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut deeds = Deeds::new();
    let mut order: Vec<&Misdeed> = QUICK.iter().collect();
    while Instant::now() < end {
        order.shuffle(&mut rng);
        for misdeed in &order {
            if judged(misdeed.name, region.run(misdeed.name, &[]), misdeed.is_right)?.is_none() {
                return Ok(deeds);
            }
            *deeds.entry(misdeed.name).or_default() += 1;
        }
        let mut args = vec![0; rng.random_range(0..60)];
        rng.fill_bytes(&mut args);
        let names = ["chain", "tree", "consistent", "sorted"];
        // Whatever it answers: it must end.
        match region.run(names[rng.random_range(0..names.len())], &args) {
            Err(error) if is_gone(&error) => return Ok(deeds),
            Ok(_) | Err(RegionError::Kernel { .. }) => *deeds.entry(GARBAGE).or_default() += 1,
            Err(other) => bail!("garbage: {other}"),
        }
    }
    Ok(deeds)
}

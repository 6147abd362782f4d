//! The owner of the pool: it makes, replaces and frees tensors all the time.
//!
//! Owns their bytes: each word of a tensor says which it is. It answers what the judge asks on its standard input, and ends
//! with that.

use std::io::BufRead as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use raas::Session;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tensor::{DType, Error, Layout, Pool, PoolOptions};

use super::{KEY, POOL, POOL_BYTES, word};

pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const WORDS_MAX: u64 = 6000;
/// So long there may be no room before everything is taken back.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs one.
pub fn run(socket: &Path, seed: u64) -> Result<()> {
    let session = Session::builder().socket(socket).background(true).connect()?;
    let pool = make_pool(&session)?;
    println!("ready");
    let asked = questions();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut full_since = None;
    let mut is_empty = false;
    loop {
        match asked.try_recv() {
            Ok(question) => answer(&pool, &question, &mut is_empty)?,
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {}
        }
        if !is_empty {
            step(&pool, &mut rng, &mut full_since)?;
        }
        std::thread::sleep(Duration::from_micros(rng.random_range(50..600)));
    }
}

/// The pool of an owner that was killed just now may still be there.
fn make_pool(session: &Session) -> Result<Pool> {
    let begin = Instant::now();
    loop {
        match PoolOptions::new().key(KEY).create(session, POOL, POOL_BYTES) {
            Ok(pool) => return Ok(pool),
            Err(error) if begin.elapsed() > crate::host::WATCHDOG => bail!(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn questions() -> Receiver<String> {
    let (ask, asked) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if ask.send(line).is_err() {
                return;
            }
        }
    });
    asked
}

fn answer(pool: &Pool, question: &str, is_empty: &mut bool) -> Result<()> {
    match question {
        "pins" => println!("pins {}", pool.holders().len()),
        "revoke" => {
            pool.revoke()?;
            println!("revoked");
        }
        "empty" => {
            *is_empty = true;
            for (name, ..) in pool.names() {
                pool.free(&name)?;
            }
            println!("free {}", pool.free_bytes());
        }
        other => bail!("the judge asks `{other}`"),
    }
    Ok(())
}

fn step(pool: &Pool, rng: &mut SmallRng, full_since: &mut Option<Instant>) -> Result<()> {
    let name = NAMES[rng.random_range(0..NAMES.len())];
    if rng.random_range(0..4) == 0 {
        return match pool.free(name) {
            Ok(_) | Err(Error::Unknown { .. }) => Ok(()),
            Err(error) => bail!(error),
        };
    }
    match put(pool, name, rng.random_range(0..WORDS_MAX)) {
        Ok(()) => *full_since = None,
        Err(Error::NoRoom { .. }) => {
            let since = *full_since.get_or_insert_with(Instant::now);
            if since.elapsed() > PATIENCE {
                // Of programs of this host that were connected by a daemon that has ended nobody can know.
                pool.revoke()?;
                *full_since = None;
            }
        }
        // The pool moves, or its daemon is not back.
        Err(Error::Revoked { .. } | Error::Region(_)) => std::thread::sleep(Duration::from_millis(2)),
        Err(error) => bail!(error),
    }
    Ok(())
}

fn put(pool: &Pool, name: &str, words: u64) -> Result<(), Error> {
    let draft = pool.make(Layout::new(DType::U64, &[words])?)?;
    let word = word(pool.number(), draft.generation()).to_le_bytes();
    draft.write(0, &word.repeat(words as usize))?;
    pool.put(name, draft).map(drop)
}

//! A reader: it asks for names and for references, holds what it gets for a while, and looks at every byte.
//!
//! Owns the judgement of bytes. What is mapped must be of its generation whatever the library says of it, and what is
//! copied if the library says that all is well.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use raas::Session;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tensor::{Error, Pool, Reader, Tensor, TensorRef};

use super::owner::NAMES;
use super::{KEY, POOL, word};

const HELD_MAX: usize = 6;
const KNOWN_MAX: usize = 32;

struct Desk {
    rng: SmallRng,
    reader: Reader,
    own: Pool,
    held: Vec<Tensor>,
    known: Vec<TensorRef>,
    found: BTreeMap<&'static str, u64>,
}

/// Runs one until its standard input ends, and says what it found.
pub fn run(socket: &Path, host: IpAddr, seed: u64) -> Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut found = BTreeMap::new();
    let mut known: Vec<TensorRef> = Vec::new();
    let mut is_ready = false;
    while !is_over.load(Ordering::Relaxed) {
        // The daemon may be another one, or the pool.
        let Ok((reader, own)) = open(socket, host, rng.random()) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        if !is_ready {
            println!("ready");
            follow_input(&is_over);
            is_ready = true;
        }
        let mut desk = Desk { rng, reader, own, held: Vec::new(), known, found };
        while desk.turn()? && !is_over.load(Ordering::Relaxed) {}
        Desk { rng, known, found, .. } = desk;
    }
    let told: Vec<String> = found.iter().map(|(what, times)| format!("{what}={times}")).collect();
    println!("{}", told.join(" "));
    Ok(())
}

fn open(socket: &Path, host: IpAddr, number: u64) -> Result<(Reader, Pool)> {
    let session = Session::builder().socket(socket).background(true).connect()?;
    let reader = Reader::open(&session, host, POOL, KEY)?;
    let own = Pool::create(&session, &format!("own-{number}"), 256 << 10)?;
    Ok((reader, own))
}

fn follow_input(is_over: &Arc<AtomicBool>) {
    let is_over = Arc::clone(is_over);
    std::thread::spawn(move || {
        // Its end is what counts.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        is_over.store(true, Ordering::Relaxed);
    });
}

impl Desk {
    /// One try, and a look at something that is held. False: the pool has to be opened again.
    fn turn(&mut self) -> Result<bool> {
        if !self.held.is_empty() {
            let at = self.rng.random_range(0..self.held.len());
            let tensor = &self.held[at];
            judge(tensor, &self.own)?;
            if self.held.len() > HELD_MAX || self.rng.random_range(0..3) == 0 {
                self.held.swap_remove(at);
            }
        }
        let by_reference = !self.known.is_empty() && self.rng.random_range(0..2) == 0;
        let got = if by_reference {
            let wanted = &self.known[self.rng.random_range(0..self.known.len())];
            let got = self.reader.get_ref(wanted);
            if let Ok(tensor) = &got {
                ensure!(tensor.reference() == *wanted, "{wanted:?} gave {:?}", tensor.reference());
            }
            got
        } else {
            self.reader.get(NAMES[self.rng.random_range(0..NAMES.len())])
        };
        let key = got.as_ref().map_or_else(Error::key, |_| "got");
        *self.found.entry(key).or_default() += 1;
        match got {
            Ok(tensor) => {
                if self.known.len() >= KNOWN_MAX {
                    self.known.swap_remove(self.rng.random_range(0..KNOWN_MAX));
                }
                self.known.push(tensor.reference());
                judge(&tensor, &self.own)?;
                self.held.push(tensor);
                Ok(true)
            }
            Err(Error::Stale { current: 0, .. }) if by_reference => Ok(true),
            Err(Error::Stale { .. } | Error::Freed { .. } | Error::Unknown { .. }) => Ok(true),
            Err(Error::Protocol { what, .. }) => anyhow::bail!("the owner breaks the protocol: {what}"),
            Err(_) => Ok(false),
        }
    }
}

/// Looks at all of its bytes.
fn judge(tensor: &Tensor, own: &Pool) -> Result<()> {
    let TensorRef { pool, generation, name } = tensor.reference();
    let right = word(pool, generation).to_le_bytes();
    let bytes = tensor.layout().bytes() as usize;
    // What a look does not reach stays right.
    let mut found = right.repeat(bytes / 8);
    if tensor.is_here() {
        // Whatever it says: the mapping is there, and keeps what it shows.
        let _ = tensor.read(0, &mut found);
    } else if let Ok(draft) = own.fetch(tensor) {
        draft.read(0, &mut found).unwrap_or_else(|_| found = right.repeat(bytes / 8));
    }
    let wrong = found.chunks_exact(8).position(|word| word != right);
    ensure!(wrong.is_none(), "word {wrong:?} of `{name}`, generation {generation}, is another tensor's");
    Ok(())
}

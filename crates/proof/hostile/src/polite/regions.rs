//! Two well-behaved programs that share a region, of one host or of two: one writes blocks and counts, the other checks
//! each.
//!
//! Nobody else has the key, so every byte must be as one of the two left it, whatever others try with the name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use raas::{Region, RegionError, RegionOptions};

use super::{block, content, session};
use crate::host::{Host, WATCHDOG};

/// Name of the region, which the hostile tenant knows too.
pub const NAME: &str = "polite-region";
/// Bytes of a block; the counter lies behind it.
const BLOCK_BYTES: usize = 16 << 10;
const COUNTER_AT: u64 = BLOCK_BYTES as u64;
/// Content of the blocks, apart from that of streams.
const CONTENT: u64 = 0xe7;
/// Pause after a revoke.
const PAUSE: Duration = Duration::from_millis(10);
/// Blocks between two revokes.
const BLOCKS_PER_EPOCH: u64 = 200;

/// Both programs, until they are stopped.
#[derive(Debug)]
pub struct Sharing {
    stop: Arc<AtomicBool>,
    checked: Arc<AtomicU64>,
    owner: JoinHandle<Result<u64>>,
}

impl Sharing {
    /// Begins: the region is of `host`, and its writer a program of `of`, the same host or another.
    pub fn start(host: &Host, of: &Host) -> Result<Self> {
        let (owner, writer) = (session(host, "polite-owner")?, session(of, "polite-writer")?);
        let region = RegionOptions::new().create(&owner, NAME, COUNTER_AT + 8).context("no region")?;
        let (stop, checked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted, ip) = (Arc::clone(&stop), Arc::clone(&checked), host.ip);
        let open = move |key| Region::open(&writer, ip, NAME, key).context("the polite writer cannot open");
        let thread = move || {
            // The sessions live as long as their regions.
            let _owner = owner;
            share(&region, open, &told, &counted)
        };
        Ok(Self { stop, checked, owner: std::thread::spawn(thread) })
    }

    /// Blocks that were checked so far.
    pub fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }

    /// Ends it; says how many blocks there were, and epochs.
    pub fn finish(self) -> Result<String> {
        self.stop.store(true, Ordering::Relaxed);
        let epochs = self.owner.join().map_err(|_| anyhow!("a polite owner panicked"))??;
        Ok(format!("{} blocks in {epochs} epochs", self.checked.load(Ordering::Relaxed)))
    }
}

/// A block at a time, with a revoke now and then; says the last epoch.
fn share(
    own: &Region,
    open: impl Fn(raas::RegionKey) -> Result<Region>,
    stop: &AtomicBool,
    checked: &AtomicU64,
) -> Result<u64> {
    let base = content(CONTENT);
    let mut writer = open(own.key())?;
    let (mut expected, mut found) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return Ok(own.epoch());
        }
        block(&base, number, &mut expected);
        ensure!(writer.fetch_add(COUNTER_AT, 1)? == number, "somebody else counted before block {number}");
        writer.write_notify(0, &expected, number as u32)?;
        let tag = own.recv_notification_timeout(WATCHDOG)?;
        ensure!(tag == number as u32, "notification {tag} came in the place of {number}");
        own.read(0, &mut found)?;
        ensure!(found == expected, "block {number} is wrong");
        ensure!(own.load(COUNTER_AT)? == number + 1, "somebody else counted at block {number}");
        checked.fetch_add(1, Ordering::Relaxed);
        if number % BLOCKS_PER_EPOCH == BLOCKS_PER_EPOCH - 1 {
            own.revoke(None)?;
            let over = writer.write(0, &expected);
            ensure!(matches!(over, Err(RegionError::Revoked { .. })), "a revoked handle writes: {over:?}");
            writer = open(own.key())?;
            std::thread::sleep(PAUSE);
        }
    }
    Ok(own.epoch())
}

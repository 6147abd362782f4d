//! A polite program that runs kernels at another host's region, and checks each answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use raas::kernels::Chain;
use raas::{Region, RegionAccess, RegionOptions};

use crate::host::Host;
use crate::polite::session;

const NAME: &str = "polite-list";
const NODES: u64 = 16;

/// The program, until it is stopped.
#[derive(Debug)]
pub(super) struct Lookups {
    stop: Arc<AtomicBool>,
    checked: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Lookups {
    /// Begins: the list is in a region of `host`, and who looks is a program of `of`.
    pub(super) fn start(host: &Host, of: &Host) -> Result<Self> {
        let (owner, user) = (session(host, "polite-list-owner")?, session(of, "polite-lookups")?);
        let access = RegionAccess::ALL | RegionAccess::EXECUTE;
        let own = RegionOptions::new().access(access).create(&owner, NAME, 4096).context("no region for a list")?;
        let at = |node: u64| 64 + node * 32;
        own.store(0, at(0))?;
        for node in 0..NODES {
            own.store(at(node), if node + 1 < NODES { at(node + 1) } else { 0 })?;
            own.store(at(node) + 8, node)?;
            own.store(at(node) + 16, node * 11)?;
        }
        let list = Region::open_for(&user, host.ip, NAME, own.key(), access).context("no handle to the list")?;
        let (stop, checked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted) = (Arc::clone(&stop), Arc::clone(&checked));
        let thread = std::thread::spawn(move || {
            // The sessions live as long as their regions.
            let _kept = (owner, user, own);
            for number in 0.. {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let key: u64 = number % NODES;
                let found = list.call(&Chain::list(0).equal(8, &key.to_ne_bytes()).value(16, 8))?;
                let right = (key + 1, (key * 11).to_ne_bytes().to_vec());
                ensure!((found.steps, found.value) == right, "a wrong node for key {key}");
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Ok(Self { stop, checked, thread })
    }

    /// Lookups so far, all of them right.
    pub(super) fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }

    pub(super) fn finish(self) -> Result<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a polite program panicked"))??;
        Ok(format!("{} lookups", self.checked.load(Ordering::Relaxed)))
    }
}

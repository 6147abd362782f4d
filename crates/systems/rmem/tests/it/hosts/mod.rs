//! Two hosts in this process, with the memory of one or both of them as a pool.
#![allow(dead_code)] // each test file uses a part

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use raas::{Region, RegionAccess, RegionKey, RegionOptions, Session};
use raas_embedded::Embedded;
use rmem::{Pool, Wait, format};

pub(crate) const KEY: RegionKey = RegionKey::new([9; 16]);
const BYTES: u64 = 1 << 20;
/// So long that no renewal falls into what is counted.
const LEASE: Duration = Duration::from_secs(3600);
/// Longer than anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

static NEXT: AtomicU8 = AtomicU8::new(1);

/// Ends a test that hangs.
pub(crate) fn bounded(test: impl FnOnce() + Send + 'static) {
    let (done, ends) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        done.send(()).ok();
    });
    if ends.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("the test hangs");
    }
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// With kernels.
fn full() -> RegionAccess {
    RegionAccess::ALL | RegionAccess::EXECUTE
}

pub(crate) fn start() -> Embedded {
    let [.., b, c] = std::process::id().to_be_bytes();
    let address = IpAddr::from([127, 128 | b, c, NEXT.fetch_add(1, Ordering::Relaxed)]);
    raas_embedded::builder(address).key(&[7; 32]).start().unwrap()
}

pub(crate) fn address(host: &Embedded) -> IpAddr {
    host.session().addresses()[0]
}

/// The first host has node 0. With two nodes, the second host has node 1.
pub(crate) struct Hosts {
    pub(crate) owner: Embedded,
    pub(crate) user: Embedded,
    nodes: Vec<Region>,
    pub(crate) name: &'static str,
}

impl Hosts {
    pub(crate) fn new(nodes: usize) -> Self {
        Self::with_lease(nodes, LEASE)
    }

    pub(crate) fn with_lease(nodes: usize, lease: Duration) -> Self {
        let (owner, user) = (start(), start());
        let nodes: Vec<Region> = [&owner, &user][..nodes]
            .iter()
            .map(|host| RegionOptions::new().key(KEY).access(full()).create(host.session(), "pool", BYTES).unwrap())
            .collect();
        // As its own host has it; each node is formatted by who made it.
        let pool = Pool::new(vec![nodes[0].clone()]).unwrap();
        format(&pool, 0, lease).wait().unwrap();
        if let Some(second) = nodes.get(1) {
            let first = Region::open(user.session(), address(&owner), "pool", KEY).unwrap();
            format(&Pool::new(vec![first, second.clone()]).unwrap(), 1, lease).wait().unwrap();
        }
        Self { owner, user, nodes, name: "pool" }
    }

    pub(crate) fn own_region(&self) -> Region {
        self.nodes[0].clone()
    }

    pub(crate) fn far_region(&self, session: &Session) -> Region {
        Region::open_for(session, address(&self.owner), "pool", KEY, full()).unwrap()
    }

    /// A region of the user's host that is no part of the pool.
    pub(crate) fn user_region(&self, bytes: u64) -> Region {
        RegionOptions::new().create(self.user.session(), "own", bytes).unwrap()
    }

    /// Node 0 as its own host reaches it.
    pub(crate) fn own_pool(&self) -> Pool {
        Pool::new(vec![self.own_region()]).unwrap()
    }

    /// Node 0 as the other host reaches it.
    pub(crate) fn far_pool(&self) -> Pool {
        Pool::new(vec![self.far_region(self.user.session())]).unwrap()
    }

    /// Both nodes as the second host reaches them.
    pub(crate) fn both_pool(&self) -> Pool {
        Pool::new(vec![self.far_region(self.user.session()), self.nodes[1].clone()]).unwrap()
    }

    /// Kernels that the second host's programs began at other hosts.
    pub(crate) fn kernels(&self) -> u64 {
        let apps = raas::inspect::stat(Some(self.user.session().socket())).unwrap().apps;
        apps.iter().map(|app| app.kernels).sum()
    }

    /// What the second host's programs began.
    pub(crate) fn verbs(&self) -> (u64, u64, u64) {
        let apps = raas::inspect::stat(Some(self.user.session().socket())).unwrap().apps;
        apps.iter().fold((0, 0, 0), |(r, w, a), app| (r + app.reads, w + app.writes, a + app.atomics))
    }
}

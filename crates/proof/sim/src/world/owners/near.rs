//! Connections within a host between the owner of its region and programs that borrow: over one of these a lender and a
//! borrower of the same host agree on a lease.
//!
//! Owns which of them both ends know of. It must never name one of which a program has not heard.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::{Kind, Path, Reply, Request};
use plane::{CONNECTING_END, ClientId};
use rand::seq::IteratorRandom;

use super::World;
use crate::address::address;

/// Where owners listen for programs of their hosts.
const PORT: u16 = 11;
const BACKLOG: u32 = 16;
const RING_BYTES: u32 = 4096;

/// What the two ends of a connection have heard.
#[derive(Debug, Default)]
struct Ends {
    lender: Option<ClientId>,
    borrower: Option<ClientId>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(in crate::world) struct Near {
    /// By host and the listening end's number.
    links: BTreeMap<(usize, u64), Ends>,
    /// Connects that were not answered.
    asked: BTreeMap<ClientId, u64>,
}

impl Near {
    /// A program is gone, and with it its connections.
    pub(in crate::world) fn forget(&mut self, client: ClientId) {
        self.asked.remove(&client);
        self.links.retain(|_, ends| ends.lender != Some(client) && ends.borrower != Some(client));
    }

    /// A host is dead.
    pub(in crate::world) fn forget_host(&mut self, host: usize) {
        self.links.retain(|(of, _), _| *of != host);
    }

    /// Whether a lender and a borrower have one.
    pub(super) fn has(&self, lender: ClientId, borrower: ClientId) -> bool {
        self.links.values().any(|ends| (ends.lender, ends.borrower) == (Some(lender), Some(borrower)))
    }

    fn has_any(&self, client: ClientId) -> bool {
        self.asked.contains_key(&client) || self.links.values().any(|ends| ends.borrower == Some(client))
    }
}

impl World {
    /// The owner of a host's region waits for programs that borrow.
    pub(super) fn listen_for_borrowers(&mut self, host: usize) {
        if !self.plan.users.iter().any(|user| user.borrows && user.host == host) {
            return;
        }
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let (client, request) = (owner.client, owner.request());
        let (port, backlog, ring_bytes, kind) = (PORT, BACKLOG, RING_BYTES, Kind::Stream);
        self.ask_of_regions(host, client, Request::Listen { request, port, backlog, ring_bytes, kind });
    }

    /// A borrower connects to the owner of its host's region.
    pub(in crate::world) fn come_near(&mut self, host: usize, client: ClientId, next: impl FnOnce() -> u64) {
        if self.users.near.has_any(client) {
            return;
        }
        let request = next();
        self.users.near.asked.insert(client, request);
        let (to, ring_bytes, kind) = (SocketAddr::new(address(host), PORT), RING_BYTES, Kind::Stream);
        self.ask_of_regions(host, client, Request::Connect { request, to, ring_bytes, kind });
    }

    /// A program of a host hears its daemon: whether that was about such a connection.
    pub(in crate::world) fn hear_of_near(&mut self, host: usize, client: ClientId, reply: &Reply) -> bool {
        let near = &mut self.users.near;
        match reply {
            Reply::PairSegmentWanted { pair, index, slots, ring_bytes } => {
                let (pair, index, slots, ring_bytes) = (*pair, *index, *slots, *ring_bytes);
                self.ask_of_regions(host, client, Request::PairSegment { pair, index, slots, ring_bytes });
            }
            Reply::PairOpened { .. } | Reply::PairSegment { .. } | Reply::Listening { result: Ok(_), .. } => {}
            Reply::Incoming { port, connection } => {
                near.links.entry((host, connection.id)).or_default().lender = Some(client);
                let (port, connection) = (*port, connection.id);
                self.ask_of_regions(host, client, Request::Accepted { port, connection });
            }
            Reply::Connected { request, result } if near.asked.get(&client) == Some(request) => {
                near.asked.remove(&client);
                if let Ok(connection) = result
                    && let Path::Shm { .. } = connection.path
                {
                    let number = connection.id - CONNECTING_END;
                    near.links.entry((host, number)).or_default().borrower = Some(client);
                }
            }
            _ => return false,
        }
        true
    }

    /// A program to which the owner of a host's region can lend, and by which connection.
    pub(super) fn borrower_of(&mut self, host: usize) -> Option<(u64, ClientId)> {
        let lender = self.users.owners.get(&host)?.client;
        let known = self.users.near.links.iter().filter(|((of, _), ends)| *of == host && ends.lender == Some(lender));
        let known = known.filter_map(|((_, connection), ends)| Some((*connection, ends.borrower?)));
        known.choose(&mut self.users.rng)
    }
}

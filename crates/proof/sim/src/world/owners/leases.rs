//! Leases: owners lend their regions to programs of other hosts and of their own, which read them by a lease and give
//! loans back.
//!
//! Owns what lenders and borrowers know of leases. It must never let a lender hear more than was given back, nor a borrower
//! read by a lease that is over.

use control::{RegionKey, RegionRefusal, Reply, Request};
use plane::ClientId;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::World;
use crate::address::address;
use crate::user::{Origin, Taking, User};

/// Of so many touches of an owner one lends, and one ends a lease.
const TOUCHES_PER_LEND: u32 = 3;
const TOUCHES_PER_UNLEND: u32 = 5;
/// Of so many looks of a borrower one gives a loan back, and one closes its handle.
const LOOKS_PER_LOAN: u32 = 4;
const LOOKS_PER_CLOSE: u32 = 20;
/// Of so many that open a region by a lease one tries another program's.
const LOOKS_PER_THEFT: u32 = 8;
/// Loans of a lease.
const LOANS: u64 = 64;

/// For whom a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    /// Programs of another host.
    Host(usize),
    /// A program of the lender's.
    Program(ClientId),
}

/// A lease, of a lender's host.
#[derive(Debug)]
pub(in crate::world) struct Lent {
    host: usize,
    /// None: the lender was not told yet.
    lease: Option<u64>,
    /// The lender's name for the request; the last one before the lease was ended.
    request: u64,
    to: To,
    key: RegionKey,
    /// Loans that borrowers gave back, and those that the lender heard of.
    given: u64,
    heard: u64,
    /// Nothing more is to be opened by it.
    is_ended: bool,
    /// The daemon has taken that: it answered what the lender asked for afterwards.
    is_shut: bool,
}

impl Lent {
    pub(super) fn is_of(&self, host: usize) -> bool {
        self.host == host
    }

    fn is_for(&self, host: usize, client: ClientId) -> bool {
        self.to == To::Host(host) || self.to == To::Program(client)
    }
}

impl World {
    /// Owners lend where programs borrow.
    pub(super) fn tend_leases(&mut self, host: usize) {
        if !self.plan.users.iter().any(|user| user.borrows) {
            return;
        }
        let (far, key) = (self.users.rng.random_range(0..self.hosts.len()), self.fresh_key());
        let is_near = far == host || self.users.rng.random_bool(0.5);
        let near = if is_near { self.borrower_of(host) } else { None };
        let (connection, to) = match near {
            Some((connection, borrower)) => (connection, To::Program(borrower)),
            None => (0, To::Host(far)),
        };
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let client = owner.client;
        if let Some(held) = owner.held.as_ref().filter(|_| to != To::Host(host) && !owner.is_away)
            && self.users.rng.random_ratio(1, TOUCHES_PER_LEND)
        {
            let open = held.open;
            let request = owner.request();
            let (lease, given, heard, is_ended, is_shut) = Default::default();
            self.users.lent.push(Lent { host, lease, request, to, key, given, heard, is_ended, is_shut });
            let lend = Request::RegionLend { request, open, connection, host: address(far), key };
            self.ask_of_regions(host, client, lend);
        }
        let last = self.users.owners.get(&host).map_or(0, |owner| owner.next_request);
        if self.users.rng.random_ratio(1, TOUCHES_PER_UNLEND)
            && let Some(lent) = self.users.lent.iter_mut().find(|lent| lent.host == host && !lent.is_ended)
            && let Some(lease) = lent.lease
        {
            lent.is_ended = true;
            lent.request = last;
            self.ask_of_regions(host, client, Request::RegionUnlend { lease });
        }
    }

    /// What a daemon says to a lender.
    pub(super) fn hear_of_leases(&mut self, host: usize, reply: Reply) {
        let Some((client, given_up)) = self.users.owners.get(&host).map(|owner| (owner.client, owner.given_up)) else {
            return;
        };
        let of = |lent: &&mut Lent, lease| lent.host == host && lent.lease == Some(lease);
        let mut lent = self.users.lent.iter_mut();
        let wrong = match reply {
            Reply::RegionLent { request, .. } if request <= given_up => return,
            Reply::RegionLent { request, result } => {
                self.users
                    .lent
                    .iter_mut()
                    .filter(|lent| lent.is_of(host) && lent.is_ended && lent.request < request)
                    .for_each(|lent| lent.is_shut = true);
                let mut lent = self.users.lent.iter_mut();
                let asked = lent.find(|lent| (lent.host, lent.lease, lent.request) == (host, None, request));
                match (asked, result) {
                    (Some(asked), Ok(lease)) => {
                        asked.lease = Some(lease);
                        None
                    }
                    (
                        Some(asked),
                        Err(RegionRefusal::Busy | RegionRefusal::Unknown | RegionRefusal::TooMany { .. }),
                    ) => {
                        asked.is_ended = true;
                        None
                    }
                    // The program is gone.
                    (
                        Some(Lent { to: To::Program(borrower), is_ended, .. }),
                        Err(RegionRefusal::NoConnection { .. }),
                    ) if !self.users.near.has(client, *borrower) => {
                        *is_ended = true;
                        None
                    }
                    (asked, result) => Some(format!("host {host}: {result:?} for {asked:?}")),
                }
            }
            Reply::RegionLoansBack { lease, loans, .. } => {
                let Some(lent) = lent.find(|lent| of(lent, lease)) else { return };
                let is_right = loans != 0 && loans & !lent.given == 0 && loans & lent.heard == 0;
                lent.heard |= loans;
                let detail = (!is_right).then(|| format!("host {host} hears of loans {loans:#x} of {lent:?}"));
                self.ask_of_regions(host, client, Request::RegionLoansTaken { lease });
                detail
            }
            Reply::RegionLeaseOver { lease, .. } => {
                lent.filter(|lent| of(lent, lease)).for_each(|lent| lent.is_ended = true);
                let is_new = self.users.ended.leases.insert((host, lease));
                (!is_new).then(|| format!("host {host} hears twice that lease {lease} is over"))
            }
            _ => return,
        };
        wrong.into_iter().for_each(|detail| self.checks.fail(self.now, "leases", detail));
    }

    /// The leases of a daemon that has ended are over, and so are the handles by them.
    pub(super) fn end_leases(&mut self, host: usize) {
        for lent in self.users.lent.iter_mut().filter(|lent| lent.host == host) {
            lent.is_ended = true;
            self.users.ended.leases.extend(lent.lease.map(|lease| (host, lease)));
        }
    }

    /// A host is dead: its next daemon begins with the same numbers.
    pub(in crate::world) fn forget_leases(&mut self, host: usize) {
        self.users.near.forget_host(host);
        self.users.lent.retain(|lent| lent.host != host);
        self.users.ended.leases.retain(|(of, _)| *of != host);
    }

    /// A lease that a program of a host may try, perhaps one that has ended, or now and then one of another program's.
    pub(in crate::world) fn lease_for(&mut self, host: usize, client: ClientId) -> Option<Origin> {
        let steals = self.users.rng.random_ratio(1, LOOKS_PER_THEFT);
        let may_try = |lent: &&Lent| lent.lease.is_some() && lent.is_for(host, client) != steals;
        let known: Vec<&Lent> = self.users.lent.iter().filter(may_try).collect();
        let newest = &known[known.len().saturating_sub(3)..];
        let lent = newest.choose(&mut self.users.rng)?;
        let Lent { host: owner, key, lease, is_shut, .. } = **lent;
        Some(Origin { owner, key, is_leased: false, lease, is_shut, by: Taking::Reads })
    }

    /// A program of a host has a region open by a lease.
    pub(in crate::world) fn on_borrowed(&mut self, (host, client): (usize, ClientId), by: Origin) {
        let of = |lent: &&Lent| by.lease.is_some() && (lent.host, lent.lease) == (by.owner, by.lease);
        let lent = self.users.lent.iter().find(of);
        if lent.is_some_and(|lent| !lent.is_for(host, client) || by.is_shut) {
            self.checks.fail(self.now, "leases", format!("host {host} has the region of {lent:?} open by it"));
        }
    }

    /// Leases that lenders have ended, that no program uses, and that no lender was told to be over.
    pub(in crate::world) fn lasting_leases(&self) -> Option<String> {
        let is_over =
            |lent: &Lent| lent.lease.is_none_or(|lease| self.users.ended.leases.contains(&(lent.host, lease)));
        let lasts = self.users.lent.iter().find(|lent| lent.is_ended && !is_over(lent))?;
        Some(format!("nobody told the lender that it is over: {lasts:?}"))
    }

    /// A borrower gives a loan back, or its handle.
    pub(in crate::world) fn tend_borrowed(&mut self, host: usize, live: &mut User) {
        let Some((open, Origin { owner, key, lease: Some(lease), .. })) = live.borrowed() else { return };
        let lent = self.users.lent.iter_mut().find(|lent| (lent.host, lent.lease) == (owner, Some(lease)));
        let Some(lent) = lent else { return };
        if self.users.rng.random_ratio(1, LOOKS_PER_LOAN) {
            let loans = 1 << self.users.rng.random_range(0..LOANS) & !lent.given;
            lent.given |= loans;
            let back = Request::RegionLoansBack { host: address(owner), lease, key, loans };
            self.ask_of_regions(host, live.client, back);
        }
        if self.users.rng.random_ratio(1, LOOKS_PER_CLOSE) && live.is_idle() {
            live.over.push(open);
            _ = live.end_handle(self.now, false, &mut self.checks.histories);
        }
    }
}

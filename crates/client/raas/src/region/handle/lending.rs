//! What a handle does for messages by reference: it is lent by, and slices that were lent are looked at by one.
//!
//! Owns the lenders that wait for news of their leases. A look at a slice must not fail because its lender ended.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use control::{Reason, RegionAccess, RegionKey, RegionRefusal, Request};
use raas_core::{Answer, RegionOver, RegionPlace};

use super::{Handle, Reach, ask_for_region, unexpected};
use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::lock;
use crate::region::ask::ask;
use crate::region::error::RegionError;
use crate::region::local::Local;
use crate::region::queue::LaneOf;

/// Ends of leases that are kept for lenders that do not have their leases yet.
const EARLY_OVER_MAX: usize = 64;
/// What was lent by a handle.
#[derive(Debug, Default)]
pub(super) struct Leases {
    lenders: BTreeMap<u64, Weak<dyn Lender>>,
    /// Those that were over before their lenders had them.
    over: VecDeque<u64>,
}

/// A lease of a region, for news of it.
pub(crate) trait Lender: std::fmt::Debug + Send + Sync {
    /// Loans, a bit each, were given back by a program of another host.
    fn on_back(&self, loans: u64);

    /// Nobody reaches the region by the lease any more.
    fn on_over(&self);

    /// The daemon has ended, and nobody says anything of the lease any more. [`Lender::wake`] follows.
    fn part(&self);

    /// Whoever waits looks again.
    fn wake(&self);
}

impl Handle {
    /// A handle by a lease of a host.
    pub(crate) fn open_lease(
        attachment: &Arc<Attachment>,
        host: IpAddr,
        lease: u64,
        key: RegionKey,
    ) -> Result<Arc<Self>, RegionError> {
        let name = format!("of lease {lease}");
        let new = ask_for_region(attachment, &name, |session| session.open_lease(host, lease, key))?;
        Self::adopt(attachment, (name, key), Ok((host, LaneOf::Host)), new)
    }

    /// Whether a slice may be lent.
    pub(crate) fn check_lendable(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        self.check_access(RegionAccess::READ, offset, len)?;
        match &self.reach {
            Reach::Here(local) => self.check_live(local, &local.place(), false),
            Reach::There(_) => Err(RegionError::NotHere { name: self.name.clone() }),
        }
    }

    /// Asks for a lease, for the program at the other end of a connection; its number, and which daemon of the session it
    /// is of.
    pub(crate) fn lend(&self, connection: u64, host: IpAddr, key: RegionKey) -> Result<(u64, u64), RegionError> {
        self.wait_until_here()?;
        let daemon = self.daemon();
        match ask(&self.attachment, |session| session.lend_region(self.open_now(), connection, host, key))? {
            Answer::Lent(result) => {
                result.map(|lease| (lease, daemon)).map_err(|why| RegionError::refused(&self.name, why))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// News of a lease, which a daemon of the session gave, are for `lender`.
    pub(crate) fn add_lease(&self, (lease, daemon): (u64, u64), lender: Weak<dyn Lender>) {
        let mut leases = lock(&self.leases);
        if leases.over.contains(&lease) {
            drop(leases);
            return lender.upgrade().into_iter().for_each(|lender| lender.on_over());
        }
        leases.lenders.retain(|_, lender| lender.strong_count() > 0);
        leases.lenders.insert(lease, Weak::clone(&lender));
        drop(leases);
        // The daemon may have ended before the lender was there to hear of it.
        if lock(&self.attachment.tables).session.daemons_before() != daemon {
            lender.upgrade().into_iter().for_each(|lender| lender.part());
        }
    }

    fn lender_of(&self, lease: u64) -> Option<Arc<dyn Lender>> {
        lock(&self.leases).lenders.get(&lease).and_then(Weak::upgrade)
    }

    pub(super) fn on_loans_back(&self, lease: u64, loans: u64) {
        if let Some(lender) = self.lender_of(lease) {
            lender.on_back(loans);
        }
        self.attachment.tell(&Request::RegionLoansTaken { lease });
    }

    pub(super) fn on_lease_over(&self, lease: u64) {
        let mut leases = lock(&self.leases);
        let lender = leases.lenders.remove(&lease).and_then(|lender| lender.upgrade());
        if lender.is_none() {
            if leases.over.len() >= EARLY_OVER_MAX {
                leases.over.pop_front();
            }
            leases.over.push_back(lease);
        }
        drop(leases);
        lender.into_iter().for_each(|lender| lender.on_over());
    }

    pub(super) fn part_leases(&self) {
        self.lenders().iter().for_each(|lender| lender.part());
    }

    pub(super) fn wake_lenders(&self) {
        self.lenders().iter().for_each(|lender| lender.wake());
    }

    fn lenders(&self) -> Vec<Arc<dyn Lender>> {
        lock(&self.leases).lenders.values().filter_map(Weak::upgrade).collect()
    }

    /// Copies out of a slice that was lent. It goes on when the region's owner has ended, or the daemon: the mapping is
    /// there. It fails when the region was revoked, because the bytes may be others then.
    pub(crate) fn read_lent(&self, offset: u64, buf: &mut [u8]) -> Result<(), RegionError> {
        let Reach::Here(local) = &self.reach else {
            return self.read(offset, &mut [IoSliceMut::new(buf)]);
        };
        self.check_lent_bounds(offset, buf.len() as u64)?;
        let place = local.place();
        let read = place.memory.read(offset, buf);
        read.map_err(|e| SessionError::Protocol(format!("region {}: {e}", self.name)))?;
        self.check_unrevoked(local, &place)
    }

    pub(in crate::region) fn check_lent_bounds(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        self.attachment.check_fork()?;
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            return Err(RegionError::OutOfBounds { name: self.name.clone(), offset, len, bytes: self.bytes });
        }
        Ok(())
    }

    /// When the owner ended, or the daemon, nobody has moved the bytes. A word that says nothing of this region any more
    /// comes of either; what the daemon said then decides.
    pub(in crate::region) fn check_unrevoked(&self, local: &Local, place: &RegionPlace) -> Result<(), RegionError> {
        match (local.check(place), self.ended.get()) {
            (
                Ok(()) | Err(RegionOver::OwnerGone | RegionOver::DaemonLost),
                None | Some(RegionRefusal::Reason(Reason::DaemonLost)),
            )
            | (_, Some(RegionRefusal::OwnerGone)) => Ok(()),
            (over, told) => Err(self.over(over.err(), told, place.epoch, false)),
        }
    }
}

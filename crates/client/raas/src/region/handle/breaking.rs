//! A handle whose daemon, or whose way to the region's host, has ended: whether the region may be opened again in its place.
//!
//! Owns what counts as such an end. It must never take a revoke for one, nor an operation that may have been done for one
//! that was not.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Reason, RegionAccess, RegionRefusal};
use raas_core::{NotThatRegion, RegionIdentity, RegionOver, is_loss};

use super::{Handle, Reach};
use crate::region::error::RegionError;

/// How long the daemon may take to say why its engine does not know a handle any more.
const NEWS_WAIT: Duration = Duration::from_secs(1);

impl Handle {
    /// Opens the region again of which this handle was. It is another one, or it was revoked: then the error says so.
    pub(in crate::region) fn open_again(&self, host: IpAddr, access: RegionAccess) -> Result<Arc<Self>, RegionError> {
        let new = Self::open(&self.attachment, host, &self.name, self.key(), (access, false))?;
        let name = || self.name.clone();
        match self.identity().goes_on_as(&new.identity()) {
            Ok(()) => {}
            Err(NotThatRegion::Another) => {
                return Err(RegionError::OwnerGone { name: name(), may_have_landed: false });
            }
            Err(NotThatRegion::Revoked) => {
                let (held, current) = (self.epoch(), new.epoch());
                return Err(RegionError::Revoked { name: name(), held, current, may_have_landed: false });
            }
        }
        Ok(new)
    }

    fn identity(&self) -> RegionIdentity {
        RegionIdentity { line: self.line(), bytes: self.bytes }
    }

    /// Whether its daemon or the way to its host has ended, and it was not revoked, nor given up by its owner, before that.
    pub(in crate::region) fn is_broken(&self) -> bool {
        if self.is_owner() {
            return false;
        }
        let is_lost = match self.ended.get() {
            Some(RegionRefusal::Reason(reason)) => Some(is_loss(*reason)),
            Some(_) => Some(false),
            None => None,
        };
        match &self.reach {
            // The dead daemon's last word stays where it is.
            Reach::Here(local) => match local.check(&local.place()) {
                Err(RegionOver::DaemonLost) => is_lost.unwrap_or(true),
                Ok(()) => is_lost.unwrap_or(false),
                Err(RegionOver::Revoked | RegionOver::OwnerGone) => false,
            },
            Reach::There(_) => is_lost.unwrap_or(false),
        }
    }

    /// Whether an operation failed because the handle is [broken](Self::is_broken), and nothing of it was done.
    pub(in crate::region) fn is_broken_by(&self, error: &RegionError) -> bool {
        match error {
            // Its queue may have ended a moment before it.
            RegionError::DaemonLost { may_have_landed: false, .. } => self.wait_for_end(),
            RegionError::Refused { why: RegionRefusal::Reason(reason), .. } if is_loss(*reason) => self.wait_for_end(),
            _ => return false,
        }
        self.is_broken()
    }

    /// The engine does not know the handle any more, which it calls revoked. What the daemon says of it counts.
    pub(super) fn why_over(&self, error: RegionError) -> RegionError {
        let is_fenced = |reason: &Reason| *reason == Reason::Superseded;
        match &error {
            RegionError::Revoked { .. } => self.wait_for_end(),
            RegionError::OutcomeUnknown { reason, .. } if is_fenced(reason) => self.wait_for_end(),
            _ => {}
        }
        self.as_told(error)
    }

    /// As [`Self::why_over`], without waiting for the daemon's word.
    pub(in crate::region) fn as_told(&self, error: RegionError) -> RegionError {
        let name = || self.name.clone();
        if let (RegionError::OutcomeUnknown { .. }, Some(&RegionRefusal::Superseded { term })) =
            (&error, self.ended.get())
        {
            return RegionError::Superseded { name: name(), term, may_have_landed: true };
        }
        let RegionError::Revoked { may_have_landed, .. } = error else { return error };
        match self.ended.get() {
            Some(&RegionRefusal::Superseded { term }) => {
                RegionError::Superseded { name: name(), term, may_have_landed }
            }
            Some(&RegionRefusal::Reason(reason)) if may_have_landed => {
                RegionError::OutcomeUnknown { name: name(), reason }
            }
            Some(RegionRefusal::Reason(Reason::DaemonLost)) => {
                RegionError::DaemonLost { name: name(), may_have_landed }
            }
            Some(&RegionRefusal::Reason(reason)) => {
                RegionError::Refused { name: name(), why: RegionRefusal::Reason(reason) }
            }
            _ => error,
        }
    }

    /// Waits for the daemon's word, at most for a moment.
    fn wait_for_end(&self) {
        let is_over = || self.ended.get().is_some() || self.attachment.lost().is_some();
        if !matches!(self.reach, Reach::There(_)) || is_over() {
            return;
        }
        let deadline = Instant::now() + NEWS_WAIT;
        let parker = self.notes.enter();
        while !is_over() && Instant::now() < deadline {
            if self.attachment.block(&parker, Some(deadline), &mut || is_over()).is_err() {
                break;
            }
        }
        self.notes.leave(&parker);
    }
}

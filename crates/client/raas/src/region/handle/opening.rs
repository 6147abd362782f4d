//! How a program comes to a handle: it makes a region, opens one, becomes its owner, or its writer.
//!
//! Owns what is asked of the daemon for each.

use std::net::IpAddr;
use std::sync::Arc;

use control::{RegionAccess, RegionKey, RegionSpec};
use raas_core::Session;

use super::Handle;
use super::asking::ask_for_region;
use crate::attachment::Attachment;
use crate::region::error::RegionError;
use crate::region::queue::LaneOf;

impl Handle {
    /// Makes a region, or with `is_there` becomes the owner of one that nobody owns.
    pub(in crate::region) fn own(
        attachment: &Arc<Attachment>,
        spec: RegionSpec,
        is_there: bool,
    ) -> Result<Arc<Self>, RegionError> {
        let (name, key) = (spec.name.clone(), spec.key);
        // An owner must be able to move its region whatever its threads do.
        attachment.ensure_watched()?;
        let kept = spec.clone();
        let make = |session: &mut Session| {
            if is_there { session.adopt_region(spec) } else { session.create_region(spec) }
        };
        let new = ask_for_region(attachment, &name, make)?;
        Self::adopt(attachment, (name, key), Err(kept), new)
    }

    pub(in crate::region) fn open(
        attachment: &Arc<Attachment>,
        host: IpAddr,
        name: &str,
        key: RegionKey,
        (access, is_leased): (RegionAccess, bool),
    ) -> Result<Arc<Self>, RegionError> {
        let make = |session: &mut Session| session.open_region(host, name.to_owned(), key, access, is_leased);
        let new = ask_for_region(attachment, name, make)?;
        let lane = if is_leased { LaneOf::Handle } else { LaneOf::Host };
        Self::adopt(attachment, (name.to_owned(), key), Ok((host, lane)), new)
    }

    /// Becomes the writer of a region; the term of the take-over before.
    pub(in crate::region) fn take_over(
        attachment: &Arc<Attachment>,
        host: IpAddr,
        name: &str,
        key: RegionKey,
        term: u64,
    ) -> Result<(Arc<Self>, u64), RegionError> {
        let make = |session: &mut Session| session.take_region_over(host, name.to_owned(), key, term);
        let new = ask_for_region(attachment, name, make)?;
        let last_term = new.opened.info.last_term;
        let handle = Self::adopt(attachment, (name.to_owned(), key), Ok((host, LaneOf::Writers)), new)?;
        Ok((handle, last_term))
    }
}

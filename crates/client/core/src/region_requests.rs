//! Requests of a session about regions.
//!
//! Owns nothing: each is begun in the session, and is for the caller to send.

use std::net::IpAddr;

use control::{RegionAccess, RegionKey, RegionSpec, Request};

use crate::answer::Asked;
use crate::{RequestId, Session};

impl Session {
    /// Asks for a region.
    pub fn create_region(&mut self, spec: RegionSpec) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionCreate { request: id.number(), spec })
    }

    /// Asks for a handle to a region.
    pub fn open_region(
        &mut self,
        host: IpAddr,
        name: String,
        key: RegionKey,
        access: RegionAccess,
    ) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionOpen { request: id.number(), host, name, key, access })
    }

    /// Asks for the end of all handles to a region but its owner's.
    pub fn revoke_region(&mut self, name: String, key: RegionKey, new_key: Option<RegionKey>) -> (RequestId, Request) {
        let id = self.begin(Asked::Revoke);
        (id, Request::RegionRevoke { request: id.number(), name, key, new_key })
    }

    /// Asks that the owner of a region is told of bytes that were written.
    pub fn notify_region(&mut self, open: u64, tag: u32) -> (RequestId, Request) {
        let id = self.begin(Asked::Notify);
        (id, Request::RegionNotify { request: id.number(), open, tag })
    }
}

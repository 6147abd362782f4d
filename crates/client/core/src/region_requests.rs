//! Requests of a session about regions.
//!
//! Owns nothing: each is begun in the session, and is for the caller to send.

use std::net::IpAddr;

use control::{RegionAccess, RegionKey, RegionLine, RegionSpec, Request};

use crate::answer::Asked;
use crate::{RequestId, Session};

impl Session {
    /// Asks for a region.
    pub fn create_region(&mut self, spec: RegionSpec) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionCreate { request: id.number(), spec })
    }

    /// Asks to own a region that nobody owns.
    pub fn adopt_region(&mut self, spec: RegionSpec) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionAdopt { request: id.number(), spec })
    }

    /// Asks for a region that a daemon before this one had made, and which was in this epoch.
    pub fn return_region(&mut self, spec: RegionSpec, epoch: u64, line: RegionLine) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionReturn { request: id.number(), spec, epoch, line })
    }

    /// Asks for a handle to a region. With `leased_lane` one of another host gets a lane of its own.
    pub fn open_region(
        &mut self,
        host: IpAddr,
        name: String,
        key: RegionKey,
        access: RegionAccess,
        leased_lane: bool,
    ) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionOpen { request: id.number(), host, name, key, access, lease: None, leased_lane })
    }

    /// Asks to become the one writer of a region.
    pub fn take_region_over(&mut self, host: IpAddr, name: String, key: RegionKey, term: u64) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionTakeOver { request: id.number(), host, name, key, term })
    }

    /// Asks for a handle by a lease of a host.
    pub fn open_lease(&mut self, host: IpAddr, lease: u64, key: RegionKey) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        let (name, access, lease) = (String::new(), RegionAccess::READ, Some(lease));
        (id, Request::RegionOpen { request: id.number(), host, name, key, access, lease, leased_lane: false })
    }

    /// Asks for a lease of a region, for the program at the other end of a connection, which is on `host`.
    pub fn lend_region(&mut self, open: u64, connection: u64, host: IpAddr, key: RegionKey) -> (RequestId, Request) {
        let id = self.begin(Asked::Lend);
        (id, Request::RegionLend { request: id.number(), open, connection, host, key })
    }

    /// Asks for the end of all handles to a region but its owner's.
    pub fn revoke_region(&mut self, name: String, key: RegionKey, new_key: Option<RegionKey>) -> (RequestId, Request) {
        let id = self.begin(Asked::Revoke);
        (id, Request::RegionRevoke { request: id.number(), name, key, new_key })
    }

    /// Asks by what submissions have the owner of a region of this host told.
    pub fn region_notifier(&mut self, open: u64) -> (RequestId, Request) {
        let id = self.begin(Asked::Notifier);
        (id, Request::RegionNotifier { request: id.number(), open })
    }

    /// Asks that a kernel can be run at an own region.
    pub fn install_kernel(&mut self, open: u64, kernel: String, module: Vec<u8>) -> (RequestId, Request) {
        let id = self.begin(Asked::Install);
        (id, Request::RegionInstall { request: id.number(), open, kernel, module })
    }

    /// Asks the daemon to run a kernel at a region of this host, with others that it may use.
    pub fn run_kernel(&mut self, open: u64, others: Vec<u64>, bytes: Vec<u8>) -> (RequestId, Request) {
        let id = self.begin(Asked::Run);
        (id, Request::RegionRun { request: id.number(), open, others, bytes })
    }

    /// Asks that a region of this host is local memory of operations on regions of other hosts.
    pub fn attach_region(&mut self, open: u64, epoch: u64) -> (RequestId, Request) {
        let id = self.begin(Asked::Attach);
        (id, Request::RegionAttach { request: id.number(), open, epoch })
    }
}

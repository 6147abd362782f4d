//! What the hostile tenant does with regions: guesses keys, opens and revokes what is another's, lies as an owner, and
//! dies holding all it may.

use control::{RegionAccess, RegionKey, RegionSpec, Request};
use rand::RngExt;

use super::Tenant;
use crate::raw::{RawApp, RawError};

/// Regions and handles after which one program of it ends.
const REQUESTS_MAX: u32 = 2000;
/// Bytes that one of its regions has at most: all may be asked for, few are there.
const BYTES_MAX: u64 = 1 << 42;

impl Tenant {
    /// Requests about regions in any order, most of them false; the program ends without giving anything back.
    pub(super) fn abuse_regions(&mut self) -> Result<u64, RawError> {
        let mut sent = 0;
        while self.has_time() {
            let mut app = self.attach("abuses-regions")?;
            for _ in 0..REQUESTS_MAX {
                if !self.has_time() {
                    break;
                }
                let request = self.any_region_request(&mut app);
                app.send(&request, &[])?;
                sent += 1;
                match app.drain() {
                    Err(e) if e.is_end() => break,
                    other => other?,
                }
            }
        }
        Ok(sent)
    }

    fn any_region_request(&mut self, app: &mut RawApp) -> Request {
        let request = app.number();
        let name = format!("region-{}", self.rng.random_range(0..40));
        let key = if self.rng.random() { RegionKey::new([0; 16]) } else { RegionKey::new(self.rng.random()) };
        let access = RegionAccess::from(self.rng.random::<u8>());
        let (open, epoch) = (self.rng.random_range(0..5000), self.rng.random_range(0..4));
        let bytes = if self.rng.random_bool(0.8) { 4096 } else { self.rng.random_range(0..BYTES_MAX) };
        let any_name =
            if self.rng.random_bool(0.05) { "\0".repeat(self.rng.random_range(0..300)) } else { name.clone() };
        match self.rng.random_range(0..17) {
            0 => {
                let (huge_pages, outlives) = (self.rng.random_bool(0.1), false);
                let (name, other_users, single_writer) = (any_name, self.rng.random(), self.rng.random());
                let spec = RegionSpec { name, bytes, access, key, huge_pages, outlives, other_users, single_writer };
                Request::RegionCreate { request, spec }
            }
            1 => Request::RegionClose { open, delete: self.rng.random() },
            2 => Request::RegionRevoke { request, name, key, new_key: self.rng.random_bool(0.5).then_some(key) },
            3 => Request::RegionMoved { open, epoch },
            4 => Request::RegionNotifier { request, open },
            5 => Request::RegionNotices { open, queue: self.rng.random_range(0..64) },
            14 => {
                let module = (0..self.rng.random_range(0..100)).map(|_| self.rng.random()).collect();
                Request::RegionInstall { request, open, kernel: any_name, module }
            }
            15 => {
                let others = (0..self.rng.random_range(0..4)).map(|_| self.rng.random_range(0..5000)).collect();
                let name = if self.rng.random() { "chain" } else { "any" };
                let args: Vec<u8> = (0..self.rng.random_range(0..60)).map(|_| self.rng.random()).collect();
                let bytes = [&[name.len() as u8], name.as_bytes(), &args].concat();
                Request::RegionRun { request, open, others, bytes }
            }
            12 => Request::RegionAttach { request, open, epoch },
            13 => Request::RegionDetach { number: self.rng.random_range(0..40) },
            6 => {
                let connection = self.rng.random_range(0..100);
                Request::RegionLend { request, open, connection, host: self.home.far.ip(), key }
            }
            7 => Request::RegionUnlend { lease: epoch },
            8 => {
                let host = if self.rng.random() { self.home.near.ip() } else { self.home.far.ip() };
                Request::RegionLoansBack { host, lease: epoch, key, loans: self.rng.random() }
            }
            9 => Request::RegionLoansTaken { lease: epoch },
            10 => {
                let host = if self.rng.random() { self.home.near.ip() } else { self.home.far.ip() };
                Request::RegionOpen {
                    request,
                    host,
                    name,
                    key,
                    access,
                    lease: Some(epoch),
                    leased_lane: self.rng.random(),
                }
            }
            11 => {
                let host = if self.rng.random() { self.home.near.ip() } else { self.home.far.ip() };
                Request::RegionOpen {
                    request,
                    host,
                    name: crate::polite::regions::NAME.into(),
                    key,
                    access,
                    lease: None,
                    leased_lane: self.rng.random(),
                }
            }
            _ => Request::RegionOpen {
                request,
                host: self.home.near.ip(),
                name: any_name,
                key,
                access,
                lease: None,
                leased_lane: false,
            },
        }
    }
}

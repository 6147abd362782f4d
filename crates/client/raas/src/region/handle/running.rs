//! Kernels: at a region of another host they run there, at one of this host in this program.
//!
//! Owns that a run on this host keeps to the bounds of one elsewhere. Built-in kernels alone run here: the program may
//! read and write the bytes anyway.

use std::sync::Arc;

use control::{RegionAccess, RegionRefusal};
use kernels::{ANSWER_BYTES_MAX, FUEL_MAX, Failure, Job, Library, MODULE_BYTES_MAX, Progress, SLICE_FUEL, View};
use raas_core::{Answer, Session};

use super::{Handle, Reach};
use crate::region::ask::ask;
use crate::region::error::RegionError;

impl Handle {
    /// Runs a kernel at this region of this host, with others that it may use.
    pub(in crate::region) fn run_here(&self, request: &[u8], others: &[Arc<Self>]) -> Result<Vec<u8>, RegionError> {
        self.check_access(RegionAccess::EXECUTE, 0, 0)?;
        let regions: Vec<&Self> = std::iter::once(self).chain(others.iter().map(|other| &**other)).collect();
        let mut job = Job::begin(request, &Library::new(), FUEL_MAX, ANSWER_BYTES_MAX).map_err(|e| self.failed(e))?;
        loop {
            // Each slice looks at the stamps, so a revoke ends a kernel that loops.
            let mut views = Vec::new();
            let mut places = Vec::new();
            for region in &regions {
                region.check_access(RegionAccess::NONE, 0, 0)?;
                let Reach::Here(local) = &region.reach else {
                    let [name, other] = [self, region].map(|r| r.name.clone());
                    return Err(RegionError::OtherHost { name, other });
                };
                let place = local.place();
                region.check_live(local, &place, false)?;
                let may = |right| region.access.contains(right);
                let (may_read, may_write) = (may(RegionAccess::READ), may(RegionAccess::WRITE));
                views.push(View::new(place.memory.clone(), may_read, may_write));
                places.push((*region, local, place));
            }
            let (progress, _) = job.run(&views, SLICE_FUEL);
            for (region, local, place) in &places {
                region.check_live(local, place, true)?;
            }
            match progress {
                Progress::More => {}
                Progress::Done(answer) => return Ok(answer),
                Progress::Failed(failure) => return Err(self.failed(failure)),
            }
        }
    }

    /// Installs a user kernel at this region of its owner.
    pub(in crate::region) fn install(&self, kernel: &str, module: &[u8]) -> Result<(), RegionError> {
        let name = || self.name.clone();
        if !self.is_owner {
            return Err(RegionError::NotOwner { name: name() });
        }
        if let Err(why) = (kernels::Request { name: kernel, args: &[] }).to_bytes() {
            return Err(RegionError::Request { name: name(), why });
        }
        if module.len() > MODULE_BYTES_MAX {
            let why = format!("the module has {} bytes, and {MODULE_BYTES_MAX} can be", module.len());
            return Err(RegionError::refused(&self.name, RegionRefusal::BadKernel { why }));
        }
        self.check_access(RegionAccess::NONE, 0, 0)?;
        let install = |session: &mut Session| session.install_kernel(self.open, kernel.to_owned(), module.to_vec());
        match ask(&self.attachment, install)? {
            Answer::Installed(result) => result.map_err(|why| RegionError::refused(&self.name, why)),
            other => Err(super::unexpected(&other)),
        }
    }

    /// A kernel at this region has no answer.
    pub(in crate::region) fn failed(&self, failure: Failure) -> RegionError {
        RegionError::Kernel { name: self.name.clone(), failure }
    }
}

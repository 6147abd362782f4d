//! Kernels: at a region of another host they run there, at one of this host in this program or in the daemon.
//!
//! Owns that a run on this host keeps to the bounds of one elsewhere. Built-in kernels alone run in this program: it may
//! read and write the bytes anyway. What the region's owner installed runs in the daemon, so that code of another
//! program never runs in this one.

use std::sync::Arc;

use control::{KernelEnd, Reason, RegionAccess, RegionRefusal};
use kernels::{ANSWER_BYTES_MAX, FUEL_MAX, Failure, Job, Library, MODULE_BYTES_MAX, Progress, SLICE_FUEL, View};
use raas_core::{Answer, Session};

use super::{Handle, Reach};
use crate::region::ask::ask;
use crate::region::error::RegionError;
use crate::region::remote::kernel_error;

impl Handle {
    /// Runs a kernel at this region of this host, with others that it may use.
    pub(in crate::region) fn run_here(&self, request: &[u8], others: &[Arc<Self>]) -> Result<Vec<u8>, RegionError> {
        self.check_access(RegionAccess::EXECUTE, 0, 0)?;
        let regions: Vec<&Self> = std::iter::once(self).chain(others.iter().map(|other| &**other)).collect();
        let mut job = match Job::begin(request, &Library::new(), FUEL_MAX, ANSWER_BYTES_MAX) {
            Ok(job) => job,
            Err(Failure::Unknown { .. }) => return self.run_in_daemon(request, &regions),
            Err(failure) => return Err(self.failed(failure)),
        };
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

    /// Has the daemon run what is not built in. While it waits it holds no memory of the region, since an owner may have
    /// to move it; so the daemon ends runs before it has a region moved.
    fn run_in_daemon(&self, request: &[u8], regions: &[&Self]) -> Result<Vec<u8>, RegionError> {
        for region in regions {
            region.wait_until_here()?;
            region.check_access(RegionAccess::NONE, 0, 0)?;
            region.check_still_live(false)?;
        }
        let others = regions.iter().skip(1).map(|region| region.open_now()).collect();
        match ask(&self.attachment, |session| session.run_kernel(self.open_now(), others, request.to_vec()))? {
            Answer::Ran(Ok(KernelEnd::Answered(answer))) => Ok(answer),
            Answer::Ran(Ok(KernelEnd::Failed(failure))) => Err(kernel_error(&self.name, &failure)),
            Answer::Ran(Err(why)) => {
                // What the daemon refuses it has not begun. Its death may come in the middle of a run.
                let may_have_run = why == RegionRefusal::Reason(Reason::DaemonLost);
                // Of a handle that is over the daemon knows nothing any more.
                regions.iter().try_for_each(|region| region.check_still_live(may_have_run))?;
                let refused = RegionError::refused(&self.name, why);
                Err(if may_have_run { refused.behind_bytes() } else { refused })
            }
            other => Err(super::unexpected(&other)),
        }
    }

    fn check_still_live(&self, may_have_run: bool) -> Result<(), RegionError> {
        match &self.reach {
            Reach::Here(local) => self.check_live(local, &local.place(), may_have_run),
            Reach::There(_) => Ok(()),
        }
    }

    /// Installs a user kernel at this region of its owner.
    pub(in crate::region) fn install(&self, kernel: &str, module: &[u8]) -> Result<(), RegionError> {
        let name = || self.name.clone();
        if !self.is_owner() {
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
        self.wait_until_here()?;
        let install =
            |session: &mut Session| session.install_kernel(self.open_now(), kernel.to_owned(), module.to_vec());
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

//! User kernels that owners of regions install: read and checked beside the hub, then given to the engine.
//!
//! Owns how many are read at a time. It must never translate a module in the hub's own time.

use control::{RegionRefusal, Reply};
use kernels::{NAME_BYTES_MAX, NotAKernel, UserKernel};
use plane::ClientId;
use tokio::task::JoinSet;

use super::Hub;
use crate::command::RegionCommand;

/// Modules that are read at a time, of all programs.
const READING_MAX: usize = 4;

/// Who installs what where.
#[derive(Debug)]
pub(super) struct Install {
    client: ClientId,
    request: u64,
    open: u64,
    kernel: String,
}

/// A module that was read.
pub(super) type Read = (Install, Result<UserKernel, NotAKernel>);

/// Modules that are being read.
#[derive(Debug, Default)]
pub(super) struct Installs {
    reading: JoinSet<Read>,
}

impl Installs {
    /// The next module that was read; none while none is.
    pub(super) async fn next_read(&mut self) -> Option<Read> {
        // What reads a module has no code that panics; if it is cut off, the daemon stops.
        self.reading.join_next().await?.ok()
    }
}

impl Hub {
    pub(super) fn on_install(
        &mut self,
        client: ClientId,
        request: u64,
        open: u64,
        (kernel, module): (String, Vec<u8>),
    ) {
        let why = format!("a name has 1 to {NAME_BYTES_MAX} bytes, without control and format characters");
        let bad_name = RegionRefusal::BadKernel { why };
        match self.regions().0.owned_by(client, open) {
            Err(why) => return self.installed(client, request, Err(why)),
            Ok(_) if kernel.is_empty() || kernel.len() > NAME_BYTES_MAX || !kernel.chars().all(control::is_plain) => {
                return self.installed(client, request, Err(bad_name));
            }
            Ok(_) if self.installs.reading.len() >= READING_MAX => {
                let what = "kernels that are being read".to_owned();
                let (used, max) = (READING_MAX as u64, READING_MAX as u64);
                return self.installed(client, request, Err(RegionRefusal::TooMany { what, used, max }));
            }
            Ok(_) => {}
        }
        let install = Install { client, request, open, kernel };
        self.installs.reading.spawn_blocking(move || (install, UserKernel::new(&module)));
    }

    pub(super) fn on_kernel_read(&mut self, (install, read): Read) {
        let Install { client, request, open, kernel } = install;
        let module = read.map_err(|why| RegionRefusal::BadKernel { why: why.to_string().replace('\n', " ") });
        // The region may have ended meanwhile: nothing would take the kernel away again.
        match module.and_then(|module| Ok((self.regions().0.owned_by(client, open)?, module))) {
            Ok((region, module)) => {
                self.region_command(RegionCommand::Install { client, request, region, kernel, module })
            }
            Err(why) => self.installed(client, request, Err(why)),
        }
    }

    pub(super) fn installed(&mut self, client: ClientId, request: u64, result: Result<(), RegionRefusal>) {
        self.send(client, Reply::RegionInstalled { request, result }, Vec::new());
    }
}

//! User kernels that owners of regions install: read and checked beside the hub, then given to the engine.
//!
//! Owns how many are read at a time, in turns by user, and that each has its share of memory as long as anybody has
//! the module. It must never translate a module in the hub's own time.

use std::collections::BTreeSet;

use control::{RegionRefusal, Reply};
use dispatch::Command;
use kernels::{NAME_BYTES_MAX, NotAKernel, UserKernel};
use plane::{ClientId, DATAGRAM_ENGINE, NoPlace};
use tokio::task::JoinSet;

use super::Hub;
use crate::shares::Share;
use crate::user_turns::UserTurns;

/// Modules that are read at a time: one of each user at most.
const READING_MAX: usize = 4;

/// Who installs what where.
#[derive(Debug)]
pub(super) struct Install {
    client: ClientId,
    uid: u32,
    request: u64,
    open: u64,
    kernel: String,
}

/// One that waits for its turn. Its share bounds how many do.
#[derive(Debug)]
struct Waiting {
    install: Install,
    module: Vec<u8>,
    share: Share,
}

/// A module that was read.
pub(super) type Read = (Install, Result<UserKernel, NotAKernel>);

/// Modules that are being read, and that wait for it.
#[derive(Debug, Default)]
pub(super) struct Installs {
    waiting: UserTurns<Waiting>,
    reading: JoinSet<Read>,
    /// Users of these.
    users: BTreeSet<u32>,
}

impl Installs {
    /// The next module that was read; none while none is.
    pub(super) async fn next_read(&mut self) -> Option<Read> {
        // What reads a module has no code that panics; if it is cut off, the daemon stops.
        self.reading.join_next().await?.ok()
    }

    fn read_waiting(&mut self) {
        while self.reading.len() < READING_MAX
            && let Some((uid, waiting)) = self.waiting.next(|uid| !self.users.contains(&uid))
        {
            self.users.insert(uid);
            let Waiting { install, module, share } = waiting;
            self.reading
                .spawn_blocking(move || (install, UserKernel::new(&module).map(|kernel| kernel.charged(share))));
        }
    }

    /// A program has left.
    pub(super) fn handle_gone(&mut self, client: ClientId, uid: u32) {
        self.waiting.retain(uid, |waiting| waiting.install.client != client);
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
        match self.daemon.directory().owned_by(client, open) {
            Err(why) => return self.installed(client, request, Err(why)),
            Ok(_) if kernel.is_empty() || kernel.len() > NAME_BYTES_MAX || !kernel.chars().all(control::is_plain) => {
                return self.installed(client, request, Err(bad_name));
            }
            Ok(_) => {}
        }
        let Some(uid) = self.clients.get(&client).map(|client| client.who.uid) else { return };
        let share = match self.memory.kernels.try_take(uid, UserKernel::held_bytes(module.len())) {
            Ok(share) => share,
            Err(NoPlace { of, used, max }) => {
                let whose = if of.is_some() { "this user's kernels" } else { "all kernels" };
                let what = format!("bytes that {whose} cost the daemon");
                return self.installed(client, request, Err(RegionRefusal::TooMany { what, used, max }));
            }
        };
        let install = Install { client, uid, request, open, kernel };
        self.installs.waiting.push(uid, Waiting { install, module, share });
        self.installs.read_waiting();
    }

    pub(super) fn on_kernel_read(&mut self, (install, read): Read) {
        let Install { client, uid, request, open, kernel } = install;
        self.installs.users.remove(&uid);
        self.installs.read_waiting();
        let module = read.map_err(|why| RegionRefusal::BadKernel { why: why.to_string().replace('\n', " ") });
        // The region may have ended meanwhile: nothing would take the kernel away again.
        match module.and_then(|module| Ok((self.daemon.directory().owned_by(client, open)?, module))) {
            Ok((region, module)) => {
                self.command(DATAGRAM_ENGINE, Command::Install { client, request, region, kernel, module });
            }
            Err(why) => self.installed(client, request, Err(why)),
        }
    }

    fn installed(&mut self, client: ClientId, request: u64, result: Result<(), RegionRefusal>) {
        self.send(client, Reply::RegionInstalled { request, result }, Vec::new());
    }
}

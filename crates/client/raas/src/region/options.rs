//! How a region is made.

use std::fs::File;
use std::io::Read;

use control::{REGION_KEY_BYTES, RegionAccess, RegionKey, RegionSpec};

use super::Region;
use super::error::RegionError;
use super::handle::Handle;
use crate::error::SessionError;
use crate::session::Session;

/// Settings of a region that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct RegionOptions {
    access: RegionAccess,
    key: Option<RegionKey>,
    huge_pages: bool,
    outlives: bool,
    other_users: bool,
    single_writer: bool,
}

impl Default for RegionOptions {
    fn default() -> Self {
        let access = RegionAccess::ALL;
        Self { access, key: None, huge_pages: false, outlives: false, other_users: false, single_writer: false }
    }
}

impl RegionOptions {
    /// The defaults: all access, a random key, ordinary pages, ends with its owner, for programs of this user alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// What those may do who open it. The owner may do everything.
    #[must_use]
    pub fn access(mut self, access: RegionAccess) -> Self {
        self.access = access;
        self
    }

    /// The key that opens it, instead of a random one ([`Region::key`] has it).
    #[must_use]
    pub fn key(mut self, key: RegionKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Of huge pages, all taken from the system at once; refused with
    /// [`RegionRefusal::NoHugePages`](crate::RegionRefusal::NoHugePages) if there are not enough.
    #[must_use]
    pub fn huge_pages(mut self, on: bool) -> Self {
        self.huge_pages = on;
        self
    }

    /// The region stays when its owner drops it or dies, until somebody revokes it or the daemon ends. (With an owner it
    /// goes on with the next daemon, as any region.)
    #[must_use]
    pub fn outlives(mut self, on: bool) -> Self {
        self.outlives = on;
        self
    }

    /// Programs of other users may open it too, if they have the key.
    #[must_use]
    pub fn other_users(mut self, on: bool) -> Self {
        self.other_users = on;
        self
    }

    /// Beside this owner one program writes the region at a time: who took it over last ([`Region::take_over`]). All others
    /// open it for reading ([`Region::open_for`]), or to run kernels that read.
    #[must_use]
    pub fn single_writer(mut self, on: bool) -> Self {
        self.single_writer = on;
        self
    }

    /// Makes a region of `bytes` zeroes, which this program owns. `name`: 1 to 64 bytes, and no other region of this
    /// host has it.
    pub fn create(&self, session: &Session, name: &str, bytes: u64) -> Result<Region, RegionError> {
        let key = match self.key {
            Some(key) => key,
            None => random_key()?,
        };
        self.own(session, name, bytes, key, false)
    }

    /// Becomes the owner of a region of this host that [outlived](Self::outlives) the program that made it, and that nobody
    /// owns: it gets notifications, may revoke the region, and brings it to the next daemon. The bytes, and handles of
    /// others, stay. It is for programs of the user whose region it is, who know the key, the size and the settings with
    /// which it was made. [`RegionRefusal::Unknown`](crate::RegionRefusal::Unknown) if there is none, `Owned` if a program
    /// owns it, `OtherSettings` if it was made otherwise.
    pub fn adopt(&self, session: &Session, name: &str, bytes: u64, key: RegionKey) -> Result<Region, RegionError> {
        self.own(session, name, bytes, key, true)
    }

    fn own(
        &self,
        session: &Session,
        name: &str,
        bytes: u64,
        key: RegionKey,
        is_there: bool,
    ) -> Result<Region, RegionError> {
        let Self { access, huge_pages, outlives, other_users, single_writer, .. } = *self;
        let name = name.to_owned();
        let spec = RegionSpec { name, bytes, access, key, huge_pages, outlives, other_users, single_writer };
        Ok(Region::once(Handle::own(&session.attachment, spec, is_there)?))
    }
}

/// A key that nobody can guess.
pub(crate) fn random_key() -> Result<RegionKey, SessionError> {
    let mut bytes = [0; REGION_KEY_BYTES];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|e| SessionError::io("reading /dev/urandom", e))?;
    Ok(RegionKey::new(bytes))
}

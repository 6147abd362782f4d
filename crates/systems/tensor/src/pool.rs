//! A pool of this program.
//!
//! Owns what its program may do with it. It must never give a name to a tensor whose bytes may be lost.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raas::{MessageListener, Region, RegionAccess, RegionKey, RegionOptions, Session};

use crate::books::{Books, Wanted};
use crate::counts::Counts;
use crate::draft::Draft;
use crate::error::{Error, Holder};
use crate::header::{Head, Header};
use crate::layout::Layout;
use crate::limits::HEADER_BYTES;
use crate::serve::{Server, serve};
use crate::shelf::{LOOK, Shelf, lock};
use crate::tensor::Tensor;

/// Names of a pool, unless its maker says otherwise.
const NAMES_MAX: usize = 65_536;

/// How a pool is made.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    region: RegionOptions,
    names_max: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        // Readers read and no more; only the owner writes.
        Self { region: RegionOptions::new().access(RegionAccess::READ), names_max: NAMES_MAX }
    }
}

impl PoolOptions {
    /// With a random key, for programs of this user.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The key by which readers open it. Default: a random one.
    #[must_use]
    pub fn key(mut self, key: RegionKey) -> Self {
        self.region = self.region.key(key);
        self
    }

    /// Programs of other users may read it too, if they have the key.
    #[must_use]
    pub fn other_users(mut self, on: bool) -> Self {
        self.region = self.region.other_users(on);
        self
    }

    /// Names that it has at most. Default: 65,536.
    #[must_use]
    pub fn names_max(mut self, names: usize) -> Self {
        self.names_max = names;
        self
    }

    /// Makes a pool of `bytes`, as a region of this name. A thread of this program answers its readers.
    pub fn create(&self, session: &Session, name: &str, bytes: u64) -> Result<Pool, Error> {
        let bytes = bytes.max(2 * HEADER_BYTES).next_multiple_of(HEADER_BYTES);
        let region = self.region.create(session, name, bytes).map_err(|e| Error::of_region(e, name))?;
        let connection = |why: String| Error::Connection { pool: name.to_owned(), why };
        let at = (IpAddr::from([0, 0, 0, 0]), 0);
        let listener = MessageListener::bind_with(session, at, raas::ListenOptions::new());
        let listener = listener.map_err(|e| connection(e.to_string()))?;
        let port = listener.local_addr().map_err(|e| connection(e.to_string()))?.port();
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(|e| connection(e.to_string()))?;
        let head = Head { pool: region.id(), port, secret };
        region.write(0, &head.to_bytes()).map_err(|e| Error::of_region(e, name))?;
        let inner = Arc::new(Shelf {
            books: Mutex::new(Books::new(name, bytes, self.names_max)),
            region,
            head,
            out: Mutex::default(),
            began: Instant::now(),
            counting: Arc::default(),
        });
        let server = serve(&inner, listener).map_err(|e| connection(e.to_string()))?;
        Ok(Pool { inner, _server: Arc::new(server) })
    }
}

/// Memory of this program for tensors, which readers on any host get by name. Clones are the same pool; with the last of
/// them it stops to answer, and with its last tensor its memory ends.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Shelf>,
    _server: Arc<Server>,
}

impl Pool {
    /// A pool with the settings of [`PoolOptions::new`].
    pub fn create(session: &Session, name: &str, bytes: u64) -> Result<Self, Error> {
        PoolOptions::new().create(session, name, bytes)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// The key by which readers open it.
    #[must_use]
    pub fn key(&self) -> RegionKey {
        self.inner.region.key()
    }

    /// Its number, which no other pool has.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.inner.head.pool
    }

    /// Bytes that no tensor has.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.inner.sweep();
        let mut books = lock(&self.inner.books);
        books.collect(&mut &self.inner.region);
        books.free_bytes()
    }

    /// A tensor to be filled, of any bytes. [`Error::NoRoom`] says who holds memory that was freed.
    pub fn make(&self, layout: Layout) -> Result<Draft, Error> {
        let inner = &self.inner;
        let bytes = layout.bytes();
        let make = || lock(&inner.books).make(bytes, inner.now(), &mut &inner.region);
        let made = make().or_else(|_| {
            inner.sweep();
            make()
        });
        let (generation, at) = made?;
        Draft::new(inner, Header { generation, pool: inner.head.pool, layout }, at)
    }

    /// Gives a tensor that was filled its name; from here on readers get it, and nobody may write to it. What had the name
    /// is freed. Returns its generation. [`Error::Revoked`] if the pool has moved since the tensor was made, so that bytes
    /// may be lost: make it again.
    pub fn put(&self, name: &str, draft: Draft) -> Result<u64, Error> {
        draft.put(&self.inner, name)
    }

    /// Takes the name away: nobody gets the tensor any more, and its memory is used again when no reader holds it. How many
    /// do.
    pub fn free(&self, name: &str) -> Result<u64, Error> {
        self.inner.sweep();
        let mut books = lock(&self.inner.books);
        let (_, readers) = books.free(name)?;
        books.collect(&mut &self.inner.region);
        Ok(readers)
    }

    /// As [`Pool::free`], and waits until nobody holds the tensor, at most `timeout`. Who holds it then; nobody: its memory
    /// is free.
    pub fn free_and_wait(&self, name: &str, timeout: Duration) -> Result<Vec<Holder>, Error> {
        let deadline = Instant::now() + timeout;
        let (generation, _) = lock(&self.inner.books).free(name)?;
        loop {
            self.inner.sweep();
            let mut books = lock(&self.inner.books);
            if books.pins_of(generation) == 0 {
                books.collect(&mut &self.inner.region);
                return Ok(Vec::new());
            }
            if Instant::now() >= deadline {
                let holders = books.holders(self.inner.now());
                return Ok(holders.into_iter().filter(|holder| holder.generation == generation).collect());
            }
            drop(books);
            std::thread::sleep(LOOK);
        }
    }

    /// As [`Tensor::fetch_into`], into a tensor that is made for it.
    pub fn fetch(&self, tensor: &Tensor) -> Result<Draft, Error> {
        let draft = self.make(tensor.layout().clone())?;
        tensor.fetch_into(&draft)?;
        Ok(draft)
    }

    /// The tensor of a name, held by this program itself.
    pub fn get(&self, name: &str) -> Result<Tensor, Error> {
        Tensor::own(&self.inner, &Wanted { name: name.to_owned(), generation: None })
    }

    /// Who holds what, longest first.
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        self.inner.sweep();
        lock(&self.inner.books).holders(self.inner.now())
    }

    /// Names, with their generations and bytes.
    #[must_use]
    pub fn names(&self) -> Vec<(String, u64, u64)> {
        let books = lock(&self.inner.books);
        books.names().map(|(name, generation, bytes)| (name.to_owned(), generation, bytes)).collect()
    }

    /// Takes all tensors away from all readers of other programs, whatever those do: the pool moves to other memory, which
    /// costs a copy of it. What they have mapped keeps its bytes, and says [`Error::Revoked`]. Names and generations stay;
    /// readers open the pool again. Tensors that are being filled must be made again.
    pub fn revoke(&self) -> Result<(), Error> {
        self.inner.region.revoke(None).map_err(|e| Error::of_region(e, self.name()))?;
        self.inner.sweep();
        Ok(())
    }

    /// What it has done: gets of readers count as its own.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.counting.now()
    }

    /// Its region, as the local end of operations.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.inner.region
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.name()).field("number", &self.number()).finish_non_exhaustive()
    }
}

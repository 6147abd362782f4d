//! What the threads of an owner's program share: a pool's region, its books, and the loans that are out.
//!
//! Owns the order of pin, loan and reuse. It must never take a pin away before nobody can look by it.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use raas::{LOANS_MAX, MessageStream, Region, RegionError, RegionRefusal};

use crate::books::{Books, Grant, Marks, Wanted, is_over};
use crate::counts::Counting;
use crate::error::Error;
use crate::header::{Head, Header, READERS_AT};
use crate::limits::HEADER_BYTES;
use crate::wire::Reply;

/// How long a reader waits for a revoke at most.
const BUSY: Duration = Duration::from_secs(5);
/// How often what waits looks, at most.
pub(crate) const LOOK: Duration = Duration::from_millis(1);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loan that was sent to a reader.
pub(crate) struct Out {
    lent: raas::Lent,
    /// The region's epoch after the loan was sent: that of the memory in which the reader looks, or a later one.
    epoch: u64,
}

/// See the head of this file.
pub(crate) struct Shelf {
    pub(crate) region: Region,
    pub(crate) head: Head,
    pub(crate) books: Mutex<Books>,
    pub(crate) out: Mutex<BTreeMap<u64, Out>>,
    pub(crate) began: Instant,
    pub(crate) counting: Arc<Counting>,
}

impl Marks for &Region {
    fn clear(&mut self, at: u64) -> bool {
        let is_cleared = self.store(at, 0).is_ok();
        // Whoever sees bytes of the block's next tensor sees this too.
        fence(Ordering::SeqCst);
        is_cleared
    }
}

impl Shelf {
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn name(&self) -> &str {
        self.region.name()
    }

    /// Takes away the pins by which nobody looks any more.
    pub(crate) fn sweep(&self) {
        let mut over = Vec::new();
        lock(&self.out).retain(|pin, out| {
            let is_kept = !is_over(out.lent.is_back().ok(), out.epoch, self.region.epoch());
            if !is_kept {
                over.push(*pin);
            }
            is_kept
        });
        over.into_iter().for_each(|pin| self.unpin(pin));
    }

    pub(crate) fn unpin(&self, pin: u64) {
        let mut books = lock(&self.books);
        if let Some((at, pins)) = books.unpin(pin) {
            self.mark_readers(at, pins);
        }
    }

    /// Finds a tensor and pins it.
    pub(crate) fn pin(&self, wanted: &Wanted, reader: &str) -> Result<(Grant, Header), Error> {
        let grant = {
            let mut books = lock(&self.books);
            let grant = books.pin(wanted, reader, self.now())?;
            self.mark_readers(grant.at, grant.pins);
            grant
        };
        let header = self.header(grant.at, grant.generation).inspect_err(|_| self.unpin(grant.pin))?;
        Ok((grant, header))
    }

    /// Finds a tensor, pins it, and lends its block: the loan first, and then what it is. An error is of the connection.
    pub(crate) fn lend(&self, stream: &MessageStream, wanted: &Wanted, reader: &str) -> std::io::Result<()> {
        if lock(&self.out).len() >= LOANS_MAX as usize {
            // Otherwise what readers gave back would be kept until somebody asks for room.
            self.sweep();
        }
        let (grant, header) = match self.pin(wanted, reader) {
            Ok(pinned) => pinned,
            Err(error) => return stream.send(&Reply::of_error(&error).to_bytes()),
        };
        match self.lend_block(stream, grant.at, HEADER_BYTES + header.layout.bytes()) {
            Ok(lent) => {
                // Behind the loan: its memory is of this epoch at most.
                let epoch = self.region.epoch();
                lock(&self.out).insert(grant.pin, Out { lent, epoch });
                self.counting.got();
                stream.send(&Reply::Granted(header).to_bytes())
            }
            Err(error) => {
                self.unpin(grant.pin);
                stream.send(&Reply::of_failed_loan(&error).to_bytes())
            }
        }
    }

    /// Lends a part of the pool. While the pool is being revoked nothing can be lent, and the reader waits.
    fn lend_block(&self, stream: &MessageStream, at: u64, bytes: u64) -> std::io::Result<raas::Lent> {
        let begun = Instant::now();
        loop {
            let lent = stream.lend(&self.region, at, bytes);
            let inner = lent.as_ref().err().and_then(|error| error.get_ref()).and_then(|inner| inner.downcast_ref());
            let is_busy = matches!(inner, Some(RegionError::Refused { why: RegionRefusal::Busy, .. }));
            if !is_busy || begun.elapsed() > BUSY {
                return lent;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The header in memory, which must be of that generation.
    pub(crate) fn header(&self, at: u64, generation: u64) -> Result<Header, Error> {
        let mut bytes = [0; HEADER_BYTES as usize];
        self.region.read(at, &mut bytes).map_err(|e| Error::of_region(e, self.name()))?;
        let header = Header::from_bytes(&bytes).filter(|header| header.generation == generation);
        let what = || format!("the header at {at} is not that of generation {generation}: who has written there?");
        header.ok_or_else(|| Error::Protocol { pool: self.name().to_owned(), what: what() })
    }

    /// Writes how many read a tensor into its header, for whoever looks at the pool.
    fn mark_readers(&self, at: u64, readers: u64) {
        // Nothing depends on it.
        let _ = self.region.store(at + READERS_AT, readers);
    }
}

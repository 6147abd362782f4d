//! The lender's end: which leases the other end has, and which slices are out.
//!
//! Owns the numbers of the loans. It must never use one again before the other end has given it back, and must never
//! say that a slice is back while the other end may look at it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use control::{Reason, RegionKey, Request};
use raas_core::{LEASES_MAX, LOAN_RECORD_BYTES, LOANS_MAX, LeaseRecord, LoanRecord};

use crate::attachment::Attachment;
use crate::bell::Bell;
use crate::conn::Conn;
use crate::conn::lent::Room;
use crate::error::SessionError;
use crate::message_error::MessageError;
use crate::park::lock;
use crate::region::{Handle, Lender, Region, random_key};
use crate::region_table::RegionUser;

/// A lease that the other end has, or is about to get.
#[derive(Debug)]
pub(super) struct Lease {
    number: u64,
    key: RegionKey,
    bytes: u64,
    /// The handle by which it was made; the lease ends with it.
    handle: Weak<Handle>,
    open: u64,
    bell: Arc<Bell>,
    /// What a program of another host gave back and was not seen yet.
    back: AtomicU64,
    is_over: AtomicBool,
    /// The other end is on another host.
    is_far: bool,
    /// The daemon that gave it has ended, and the session goes on with another.
    is_parted: AtomicBool,
    /// The daemon was told that nothing more is opened by it.
    is_ended: AtomicBool,
}

impl Lease {
    /// Nobody reaches the region by it.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn is_usable(&self) -> bool {
        let is_ended = self.is_ended.load(Ordering::Relaxed) || self.is_parted();
        !self.is_over() && !is_ended && self.handle.strong_count() > 0
    }

    fn is_parted(&self) -> bool {
        self.is_parted.load(Ordering::Acquire)
    }
}

impl Lender for Lease {
    fn on_back(&self, loans: u64) {
        self.back.fetch_or(loans, Ordering::AcqRel);
        self.bell.notify();
    }

    fn on_over(&self) {
        self.is_over.store(true, Ordering::Release);
        self.bell.notify();
    }

    fn part(&self) {
        self.is_parted.store(true, Ordering::Release);
        // Another host reached the region by way of that daemon alone.
        if self.is_far {
            self.is_over.store(true, Ordering::Release);
        }
    }

    fn wake(&self) {
        self.bell.notify();
    }
}

/// A loan that was sent: its lease, its number, and what counts the uses of that number.
pub(super) type Sent = (Arc<Lease>, (u32, u64));

/// A lease in its place.
#[derive(Debug)]
struct GrantedLease {
    lease: Arc<Lease>,
    /// The other end was told of it.
    is_told: bool,
    /// Its loans that are out.
    out: u64,
}

#[derive(Debug, Default)]
struct Loans {
    places: Vec<Option<GrantedLease>>,
    /// Loans that are out, or whose numbers the other end has not given back.
    out: u64,
    /// The word of the process at the other end, with the bits of all that are not out as they were last seen.
    seen: u64,
    /// What each number was last lent as.
    serials: Vec<u64>,
    last_serial: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Lending {
    conn: Weak<Conn>,
    pub(super) attachment: Arc<Attachment>,
    bell: Arc<Bell>,
    peer: IpAddr,
    loans: Mutex<Loans>,
}

impl Lending {
    pub(super) fn new(conn: &Arc<Conn>) -> Self {
        Self {
            conn: Arc::downgrade(conn),
            attachment: Arc::clone(&conn.attachment),
            bell: Arc::clone(&conn.bell),
            peer: conn.endpoint().peer().ip(),
            loans: Mutex::default(),
        }
    }

    /// Sends a slice of a region as a message: by which lease, and its number.
    pub(super) fn lend(&self, conn: &Conn, region: &Region, offset: u64, len: u64) -> std::io::Result<Sent> {
        let handle = region.handle()?;
        loop {
            handle.check_lendable(offset, len)?;
            // Room for both records: one without the other would be of no use.
            let room = conn.reserve(2 * LOAN_RECORD_BYTES)?;
            if let Some(sent) = self.send(conn, room, handle.open_number(), (offset, len))? {
                return Ok(sent);
            }
            // It may end before it is used; then another one may be had.
            self.make_lease(conn, &handle)?;
        }
    }

    /// Sends a loan, with its lease if the other end was not told of that. None: the region has no lease that can be
    /// used.
    fn send(
        &self,
        conn: &Conn,
        mut room: Room<'_>,
        open: u64,
        (offset, len): (u64, u64),
    ) -> std::io::Result<Option<Sent>> {
        let mut loans = lock(&self.loans);
        if loans.are_many_out() {
            loans.collect(conn.endpoint().loans_back());
        }
        let loan = loans.free_number().ok_or(MessageError::TooManyLent { max: LOANS_MAX })?;
        let Some(place) = loans.place_of(open) else { return Ok(None) };
        let Some(kept) = loans.places.get_mut(place as usize).and_then(Option::as_mut) else { return Ok(None) };
        let mut bytes = 0;
        if !kept.is_told {
            let Lease { number: lease, bytes: region, key, .. } = *kept.lease;
            room.write_ahead(bytes, &LeaseRecord { place, lease, bytes: region, key }.to_bytes());
            bytes += LOAN_RECORD_BYTES as u64;
        }
        room.write_ahead(bytes, &LoanRecord { place, loan, offset, len }.to_bytes());
        bytes += LOAN_RECORD_BYTES as u64;
        if !room.commit(conn.endpoint(), bytes) {
            // The room was there, so it is not this process's connection any more.
            conn.check_fork()?;
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        kept.is_told = true;
        kept.out |= 1 << loan;
        let lease = Arc::clone(&kept.lease);
        let serial = loans.take_number(loan);
        Ok(Some((lease, (loan, serial))))
    }

    /// Asks the daemon for a lease of the handle's region, unless another thread has got one.
    fn make_lease(&self, conn: &Conn, handle: &Arc<Handle>) -> std::io::Result<()> {
        if lock(&self.loans).place_of(handle.open_number()).is_some() {
            return Ok(());
        }
        // News of the lease must come whatever the program's threads do.
        self.attachment.ensure_watched()?;
        let key = random_key()?;
        let (number, daemon) = handle.lend(conn.endpoint().id(), self.peer, key)?;
        let lease = Arc::new(Lease {
            number,
            key,
            bytes: handle.bytes(),
            handle: Arc::downgrade(handle),
            open: handle.open_number(),
            bell: Arc::clone(&self.bell),
            back: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_far: conn.endpoint().is_lane(),
            is_parted: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
        });
        let lender: Weak<dyn Lender> = Arc::downgrade(&lease) as _;
        handle.add_lease((number, daemon), lender);
        let mut loans = lock(&self.loans);
        loans.collect(conn.endpoint().loans_back());
        match loans.put(GrantedLease { lease, is_told: false, out: 0 }) {
            Some(_) => Ok(()),
            None => {
                self.attachment.tell(&Request::RegionUnlend { lease: number });
                Err(MessageError::TooManyRegionsLent { max: LEASES_MAX }.into())
            }
        }
    }

    /// Whether a loan is back. An error: nobody can say any more.
    pub(super) fn is_back(&self, lease: &Lease, (loan, serial): (u32, u64)) -> Result<bool, SessionError> {
        if lease.is_over() {
            return Ok(true);
        }
        self.attachment.check_fork()?;
        if lock(&self.loans).is_back(loan, serial) {
            return Ok(true);
        }
        let conn = self.conn.upgrade();
        {
            let mut loans = lock(&self.loans);
            loans.collect(conn.as_ref().and_then(|conn| conn.endpoint().loans_back()));
            if loans.is_back(loan, serial) {
                return Ok(true);
            }
        }
        let is_ended = conn.is_none_or(|conn| conn.endpoint().write_end().is_some());
        if !is_ended && self.is_word_awaited() {
            return Ok(false);
        }
        match self.attachment.lost() {
            Some(reason) => Err(SessionError::Lost { reason }),
            None if lease.is_parted() => Err(SessionError::Lost { reason: Reason::DaemonLost }),
            None if is_ended => {
                self.end(lease);
                Ok(lease.is_over())
            }
            None => Ok(false),
        }
    }

    /// Whether the other end says in shared memory what it gave back, and no daemon is needed.
    fn is_word_awaited(&self) -> bool {
        self.conn.upgrade().is_some_and(|conn| !conn.endpoint().is_lane())
    }

    /// Follows what the daemon said, without waiting.
    pub(super) fn look(&self) {
        self.attachment.look();
    }

    pub(super) fn conn(&self) -> Option<Arc<Conn>> {
        self.conn.upgrade()
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Nothing more is opened by a lease; the daemon then says when it is over.
    fn end(&self, lease: &Lease) {
        if !lease.is_ended.swap(true, Ordering::AcqRel) && !lease.is_parted() {
            self.attachment.tell(&Request::RegionUnlend { lease: lease.number });
        }
    }

    pub(super) fn close(&self) {
        // In a forked child the lock is the parent's.
        if self.attachment.check_fork().is_err() {
            return;
        }
        let places = std::mem::take(&mut lock(&self.loans).places);
        places.into_iter().flatten().for_each(|place| self.end(&place.lease));
    }
}

impl Loans {
    /// Takes note of what came back: from a process by its word, from another host by way of the daemon.
    fn collect(&mut self, word: Option<u64>) {
        match word {
            Some(word) => {
                let back = (word ^ self.seen) & self.out;
                self.seen ^= back;
                self.out &= !back;
                self.places.iter_mut().flatten().for_each(|place| place.out &= !back);
            }
            None => {
                for place in self.places.iter_mut().flatten() {
                    let back = place.out & place.lease.back.swap(0, Ordering::AcqRel);
                    let back = if place.lease.is_over() { place.out } else { back };
                    place.out &= !back;
                    self.out &= !back;
                }
            }
        }
    }

    /// The other end's word lies in a line that it writes for each loan. It is looked at only now and then, so that the
    /// line stays with its writer.
    fn are_many_out(&self) -> bool {
        self.out.count_ones() >= LOANS_MAX / 2
    }

    fn free_number(&self) -> Option<u32> {
        Some(self.out.trailing_ones()).filter(|loan| *loan < LOANS_MAX)
    }

    fn take_number(&mut self, loan: u32) -> u64 {
        self.out |= 1 << loan;
        self.last_serial += 1;
        self.serials.resize(LOANS_MAX as usize, 0);
        self.serials[loan as usize] = self.last_serial;
        self.last_serial
    }

    fn is_back(&self, loan: u32, serial: u64) -> bool {
        self.out & 1 << loan == 0 || self.serials.get(loan as usize) != Some(&serial)
    }

    fn place_of(&self, open: u64) -> Option<u32> {
        let is_it =
            |place: &Option<GrantedLease>| place.as_ref().is_some_and(|p| p.lease.open == open && p.lease.is_usable());
        self.places.iter().position(is_it).and_then(|place| u32::try_from(place).ok())
    }

    /// Puts a lease in a place that is free: where there is none, or one that is over.
    fn put(&mut self, new: GrantedLease) -> Option<u32> {
        let is_free = |place: &Option<GrantedLease>| place.as_ref().is_none_or(|p| !p.lease.is_usable() && p.out == 0);
        let place = match self.places.iter().position(is_free) {
            Some(place) => {
                self.places[place] = Some(new);
                place
            }
            None if self.places.len() < LEASES_MAX as usize => {
                self.places.push(Some(new));
                self.places.len() - 1
            }
            None => return None,
        };
        u32::try_from(place).ok()
    }
}

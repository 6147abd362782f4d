//! The shared receive queue: its buffers, what is posted, and what is granted to lanes.
//!
//! Owns the invariant that the sum of grants never exceeds the entries posted or in hand: a grant is made or grows only
//! after its entries were posted, and a consumed entry is posted again at once. Buffers are bounded by bytes: of these
//! each lane has the fewest entries for certain, and the rest goes to lanes that use it. Entries that no grant needs any
//! more are taken back where the device can do that, and so is their memory. It must never read more of a buffer than was
//! received, and must never give a buffer out while it is posted.

use verbs::{Access, MrId, PostError, Provider, RecvWr, Region, Sge, SrqId, SrqInit, VerbsError};

use crate::ids::LaneId;
use crate::limits::{LANE_CREDITS_MIN, PAGE_BYTES, RECV_BATCH, RECV_BLOCK_ENTRIES, RECV_SLACK, RECV_SURPLUS_MIN};
use crate::numbers::{count, index};

/// Marks the `wr_id` of receives: the other fields of a failed completion do not distinguish it from a send.
pub(crate) const RECV_WR: u64 = 1 << 63;

#[derive(Debug)]
struct Block {
    region: Region,
    sge: Sge,
    mr: MrId,
    /// A bit for each entry that is neither posted nor in hand.
    spare: u64,
}

const _: () = assert!(RECV_BLOCK_ENTRIES == u64::BITS, "a block has a bit for each entry");

impl Block {
    /// Runs of entries, first and one after the last, that are all spare.
    fn spare_runs(&self) -> impl Iterator<Item = (u32, u32)> {
        let (mut left, mut at) = (self.spare, 0);
        std::iter::from_fn(move || {
            at += left.trailing_zeros();
            left = left.checked_shr(left.trailing_zeros()).filter(|left| *left != 0)?;
            let (first, length) = (at, left.trailing_ones());
            (left, at) = (left.checked_shr(length).unwrap_or(0), at + length);
            Some((first, at))
        })
    }
}

/// An entry that was consumed: of which incarnation of which lane.
#[derive(Debug, Clone, Copy)]
struct Returning {
    entry: u32,
    lane: Option<(LaneId, u32)>,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct RecvPool {
    srq: SrqId,
    queues: u32,
    entry_bytes: u32,
    blocks: Vec<Block>,
    /// Blocks before this one have no spare entries: the first ones are used first, so that the others lie unused as a
    /// whole.
    first_spare: usize,
    /// Entries posted or in hand.
    entries: u64,
    /// Lanes with a grant, and the sum of their grants.
    lanes: u64,
    granted: u64,
    /// Entries that lanes may have beyond the fewest, all together.
    extra_max: u64,
    /// Entries that are posted beyond those granted.
    slack: u64,
    returning: Vec<Returning>,
    failures: u64,
}

impl RecvPool {
    /// Makes the SRQ for `entries` entries at most and as many as `lanes` lanes, which have room for the fewest each.
    pub(crate) fn new<P: Provider>(
        nic: &mut P,
        entry_bytes: u32,
        entries: u32,
        lanes: u32,
    ) -> Result<Self, VerbsError> {
        let srq = nic.create_srq(&SrqInit { max_wr: entries, max_sge: 1, limit: 0 })?;
        let slack = u64::from(RECV_SLACK.min(entries / 4));
        let extra_max = u64::from(entries).saturating_sub(slack + u64::from(lanes) * u64::from(LANE_CREDITS_MIN));
        Ok(Self {
            srq,
            queues: 1,
            entry_bytes,
            blocks: Vec::new(),
            first_spare: 0,
            entries: 0,
            lanes: 0,
            granted: 0,
            extra_max,
            slack,
            returning: Vec::new(),
            failures: 0,
        })
    }

    pub(crate) fn srq(&self) -> SrqId {
        self.srq
    }

    /// Shared receive queues that were made.
    pub(crate) fn queues(&self) -> u32 {
        self.queues
    }

    /// Entries posted and free.
    pub(crate) fn free(&self) -> u64 {
        self.entries - self.returning.len() as u64
    }

    /// Times that the device refused a receive, which it never should.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Memory regions registered, and their bytes.
    pub(crate) fn registered(&self) -> (u32, u64) {
        (count(self.blocks.len()), self.blocks.iter().map(|b| b.region.len()).sum())
    }

    /// Posts what the first grant of a lane needs, and counts it as given. How many entries it has.
    pub(crate) fn grant<P: Provider>(&mut self, nic: &mut P) -> Result<u32, VerbsError> {
        self.provide(nic, LANE_CREDITS_MIN.into())?;
        self.lanes += 1;
        self.granted += u64::from(LANE_CREDITS_MIN);
        Ok(LANE_CREDITS_MIN)
    }

    /// Makes a lane's grant larger, by `wanted` entries at most. By how many.
    pub(crate) fn grow<P: Provider>(&mut self, nic: &mut P, wanted: u64) -> u64 {
        let by = wanted.min(self.extra_max.saturating_sub(self.extra()));
        if by == 0 || self.provide(nic, by).is_err() {
            return 0;
        }
        self.granted += by;
        by
    }

    /// Entries that lanes have beyond the fewest.
    fn extra(&self) -> u64 {
        self.granted.saturating_sub(self.lanes * u64::from(LANE_CREDITS_MIN))
    }

    /// What each of so many lanes may have when they share all there is.
    pub(crate) fn share(&self, of: u64) -> u64 {
        u64::from(LANE_CREDITS_MIN) + self.extra_max / of.max(1)
    }

    /// A lane's grant got smaller: the entries serve others.
    pub(crate) fn release(&mut self, entries: u64) {
        self.granted = self.granted.saturating_sub(entries);
    }

    /// A lane's queue pair is destroyed: its grant, of so many entries, serves the next lane.
    pub(crate) fn release_lane(&mut self, entries: u64) {
        self.release(entries);
        self.lanes = self.lanes.saturating_sub(1);
    }

    /// Posts entries until `more` are posted beyond those that are granted, and the slack.
    fn provide<P: Provider>(&mut self, nic: &mut P, more: u64) -> Result<(), VerbsError> {
        while self.entries < self.granted + more + self.slack {
            let Some(entry) = self.next_spare() else {
                self.add_block(nic)?;
                continue;
            };
            let sges = [self.sge(entry)];
            nic.post_srq_recv(self.srq, &[RecvWr { wr_id: RECV_WR | u64::from(entry), sges: &sges }])
                .map_err(|e| e.cause)?;
            if let Some(block) = self.blocks.get_mut(self.first_spare) {
                block.spare &= !(1 << (entry % RECV_BLOCK_ENTRIES));
            }
            self.entries += 1;
        }
        Ok(())
    }

    fn next_spare(&mut self) -> Option<u32> {
        while self.blocks.get(self.first_spare)?.spare == 0 {
            self.first_spare += 1;
        }
        let spare = self.blocks.get(self.first_spare)?.spare;
        Some(count(self.first_spare) * RECV_BLOCK_ENTRIES + spare.trailing_zeros())
    }

    /// Entries that are posted or in hand beyond those that are granted, and the slack.
    fn surplus(&self) -> u64 {
        self.entries.saturating_sub(self.granted + self.slack)
    }

    /// Takes entries back that no grant needs any more, and gives their memory back to the system. Says whether there
    /// were any.
    pub(crate) fn trim<P: Provider>(&mut self, nic: &mut P) -> bool {
        let surplus = self.surplus();
        if surplus < RECV_SURPLUS_MIN {
            return false;
        }
        let mut back = Vec::new();
        if nic.withdraw_srq_recv(self.srq, usize::try_from(surplus).unwrap_or(usize::MAX), &mut back).is_err() {
            return false;
        }
        let mut touched = Vec::new();
        for wr_id in &back {
            let Some(entry) = self.entry_of(*wr_id) else { continue };
            let at = (entry / RECV_BLOCK_ENTRIES) as usize;
            let Some(block) = self.blocks.get_mut(at) else { continue };
            block.spare |= 1 << (entry % RECV_BLOCK_ENTRIES);
            self.entries -= 1;
            self.first_spare = self.first_spare.min(at);
            if touched.last() != Some(&at) {
                touched.push(at);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for block in touched.into_iter().filter_map(|at| self.blocks.get(at)) {
            self.discard_spare(nic, block);
        }
        !back.is_empty()
    }

    /// Gives back the pages on which there are spare entries alone.
    fn discard_spare<P: Provider>(&self, nic: &mut P, block: &Block) {
        for (first, end) in block.spare_runs() {
            let start = (u64::from(first) * u64::from(self.entry_bytes)).next_multiple_of(PAGE_BYTES);
            let end = u64::from(end) * u64::from(self.entry_bytes) / PAGE_BYTES * PAGE_BYTES;
            if start < end {
                // A device that pins memory keeps the pages, and says so.
                let _ = nic.try_discard(block.mr, start, end - start, None);
            }
        }
    }

    fn add_block<P: Provider>(&mut self, nic: &mut P) -> Result<(), VerbsError> {
        let bytes = u64::from(self.entry_bytes) * u64::from(RECV_BLOCK_ENTRIES);
        let region = Region::anonymous(index(bytes))
            .map_err(|e| VerbsError::Os { call: "mmap", errno: e.raw_os_error().unwrap_or(0) })?;
        let mr = nic.reg_mr(&region, 0, bytes, Access::LOCAL_WRITE)?;
        let sge = Sge { addr: 0, len: self.entry_bytes, lkey: mr.lkey };
        self.blocks.push(Block { region, sge, mr: mr.id, spare: u64::MAX });
        Ok(())
    }

    fn sge(&self, entry: u32) -> Sge {
        let block = &self.blocks[(entry / RECV_BLOCK_ENTRIES) as usize];
        Sge { addr: u64::from(entry % RECV_BLOCK_ENTRIES) * u64::from(self.entry_bytes), ..block.sge }
    }

    /// The entry that a receive completion is of. `None`: no such entry was ever posted.
    pub(crate) fn entry_of(&self, wr_id: u64) -> Option<u32> {
        let entry = u32::try_from(wr_id & !RECV_WR).ok()?;
        ((entry / RECV_BLOCK_ENTRIES) < count(self.blocks.len())).then_some(entry)
    }

    /// Copies out what a SEND left in an entry; false if it is said to be longer than the entry.
    pub(crate) fn read(&self, entry: u32, bytes: u32, out: &mut Vec<u8>) -> bool {
        if bytes > self.entry_bytes {
            return false;
        }
        out.clear();
        out.resize(bytes as usize, 0);
        let block = &self.blocks[(entry / RECV_BLOCK_ENTRIES) as usize];
        block.region.read(self.sge(entry).addr, out).is_ok()
    }

    /// The entry is consumed and handled; it is posted again by [`Self::repost`].
    pub(crate) fn give_back(&mut self, entry: u32, lane: Option<(LaneId, u32)>) {
        self.returning.push(Returning { entry, lane });
    }

    /// Whether entries wait to be posted again.
    pub(crate) fn has_returning(&self) -> bool {
        !self.returning.is_empty()
    }

    /// Posts the first `count` consumed entries, at most `N`, from arrays of that size.
    fn post<P: Provider, const N: usize>(&self, nic: &mut P, count: usize) -> Result<(), PostError> {
        let Some(batch) = self.returning.get(..count.min(N)) else { return Ok(()) };
        let Some(last) = batch.len().checked_sub(1) else { return Ok(()) };
        let sges: [[Sge; 1]; N] = std::array::from_fn(|i| [self.sge(batch[i.min(last)].entry)]);
        let wrs: [RecvWr<'_>; N] =
            std::array::from_fn(|i| RecvWr { wr_id: RECV_WR | u64::from(batch[i.min(last)].entry), sges: &sges[i] });
        nic.post_srq_recv(self.srq, &wrs[..batch.len()])
    }

    /// Posts consumed entries again; calls `reposted` for each with the lane that consumed it, which says by how much its
    /// grant gets smaller.
    pub(crate) fn repost<P: Provider>(&mut self, nic: &mut P, mut reposted: impl FnMut(LaneId, u32) -> u64) {
        while !self.returning.is_empty() {
            let count = self.returning.len().min(RECV_BATCH);
            let result = match count {
                1 => self.post::<P, 1>(nic, count),
                2..=4 => self.post::<P, 4>(nic, count),
                _ => self.post::<P, RECV_BATCH>(nic, count),
            };
            let done = result.as_ref().map_or_else(|e| e.index.min(count), |()| count);
            for r in self.returning.drain(..done) {
                if let Some((lane, incarnation)) = r.lane {
                    self.granted = self.granted.saturating_sub(reposted(lane, incarnation));
                }
            }
            if result.is_err() {
                self.failures += 1;
                return;
            }
        }
    }
}

/// Frame slots of one lane: registered memory that control frames are sent from.
#[derive(Debug)]
pub(crate) struct FrameMemory {
    region: Region,
    slot_bytes: u32,
    lkey: verbs::Lkey,
    pub(crate) mr: MrId,
    /// It has frames that were sent.
    is_touched: bool,
}

impl FrameMemory {
    pub(crate) fn new<P: Provider>(nic: &mut P, slots: u16, slot_bytes: u32) -> Result<Self, VerbsError> {
        let bytes = u64::from(slots) * u64::from(slot_bytes);
        let region = Region::anonymous(index(bytes))
            .map_err(|e| VerbsError::Os { call: "mmap", errno: e.raw_os_error().unwrap_or(0) })?;
        let mr = nic.reg_mr(&region, 0, bytes, Access::empty())?;
        Ok(Self { region, slot_bytes, lkey: mr.lkey, mr: mr.id, is_touched: false })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.region.len()
    }

    /// Nothing of it is to be sent any more: whether its pages may be given back, and were not yet.
    pub(crate) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.is_touched)
    }

    /// Puts a frame into a slot. `None`: it does not fit, which the frame writer's limit excludes.
    pub(crate) fn put(&mut self, slot: u16, frame: &[u8]) -> Option<Sge> {
        self.is_touched = true;
        let addr = u64::from(slot) * u64::from(self.slot_bytes);
        if frame.len() > self.slot_bytes as usize || self.region.write(addr, frame).is_err() {
            return None;
        }
        Some(Sge { addr, len: count(frame.len()), lkey: self.lkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use verbs::PathMtu;

    const SLOT_BYTES: u32 = 64;

    fn nic() -> roce::Nic {
        let config = roce::NicConfig {
            local: SocketAddr::from(([10, 0, 0, 1], 4791)),
            standby: Vec::new(),
            mtu: PathMtu::Mtu1024,
            limits: roce::NicLimits::default(),
            rx_budget_bytes: u32::MAX,
            capabilities: verbs::Capabilities::ROCE,
            name: "nic".into(),
            max_gso_segments: 1,
            id_mode: roce::Ipv4IdMode::Zero,
        };
        roce::Nic::new(config, [1; 32])
    }

    #[test]
    fn a_frame_fills_its_slot_and_never_the_next_one() {
        let mut frames = FrameMemory::new(&mut nic(), 2, SLOT_BYTES).unwrap();
        assert!(frames.bytes() == 128 && !frames.take_touched());
        for (slot, len, addr) in [(0, 64, 0), (1, 64, 64), (0, 1, 0), (1, 0, 64)] {
            let sge = frames.put(slot, &vec![7; len]).map(|sge| (sge.addr, sge.len as usize));
            assert_eq!(sge, Some((addr, len)), "{len} bytes in slot {slot}");
        }
        let mut before = [0; 128];
        frames.region.read(0, &mut before).unwrap();
        for (slot, len) in [(0, 65), (0, 128), (1, 65), (2, 1)] {
            assert_eq!(frames.put(slot, &vec![9; len]), None, "{len} bytes in slot {slot}");
        }
        let mut after = [0; 128];
        frames.region.read(0, &mut after).unwrap();
        assert_eq!(before, after, "what does not fit is not written");
        assert!(frames.take_touched() && !frames.take_touched());
    }

    #[test]
    fn entries_that_no_grant_needs_are_taken_back_and_their_pages_with_them() {
        let mut nic = nic();
        let mut pool = RecvPool::new(&mut nic, 1024, 4096, 16).unwrap();
        pool.grant(&mut nic).unwrap();
        assert!(!pool.trim(&mut nic), "there is no surplus");
        let by = pool.grow(&mut nic, 1000);
        assert_eq!((by, pool.free()), (1000, 8 + 1000 + 256));
        for block in &pool.blocks {
            (0..64).for_each(|n| block.region.write(n * 1024, &[7; 1024]).unwrap());
        }
        pool.release(by);
        assert!(pool.trim(&mut nic));
        assert_eq!((pool.free(), pool.surplus()), (8 + 256, 0));
        assert!(!pool.trim(&mut nic));
        let is_spare = |at: u64| pool.blocks[(at / 64) as usize].spare >> (at % 64) & 1 == 1;
        let spare: Vec<u64> = (0..64 * pool.blocks.len() as u64).filter(|at| is_spare(*at)).collect();
        assert_eq!(spare.len() as u64, 64 * pool.blocks.len() as u64 - 264);
        let mut given_back = 0;
        for page in 0..16 * pool.blocks.len() as u64 {
            let entries = 4 * page..4 * page + 4;
            let mut byte = [0];
            pool.blocks[(page / 16) as usize].region.read(page % 16 * 4096, &mut byte).unwrap();
            let is_back = entries.clone().all(is_spare);
            assert_eq!(byte[0], if is_back { 0 } else { 7 }, "page {page}");
            given_back += u64::from(is_back);
        }
        assert!(given_back >= 240, "{given_back} pages of 250");
        // They serve the next grant, those in front first.
        let by = pool.grow(&mut nic, 100);
        assert_eq!((by, pool.free()), (100, 8 + 100 + 256));
        assert!(pool.blocks.last().unwrap().spare == u64::MAX);
    }

    #[test]
    fn runs_of_spare_entries_are_found_wherever_they_lie() {
        let mut pool = RecvPool::new(&mut nic(), 64, 64, 1).unwrap();
        pool.add_block(&mut nic()).unwrap();
        let mut runs = |spare: u64| {
            pool.blocks[0].spare = spare;
            pool.blocks[0].spare_runs().collect::<Vec<_>>()
        };
        assert_eq!(runs(0), []);
        assert_eq!(runs(u64::MAX), [(0, 64)]);
        assert_eq!(runs(1 << 63), [(63, 64)]);
        assert_eq!(runs(0b1011), [(0, 2), (3, 4)]);
        assert_eq!(runs(0xf0 | 1 << 62), [(4, 8), (62, 63)]);
    }
}

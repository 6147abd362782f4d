//! The caches of a hardware NIC as a model: what READs cost when the contexts of queue pairs, or the translations of
//! pages, do not all fit into the NIC.
//!
//! A NIC keeps the contexts of queue pairs and the translations of pages in the host's memory, and copies of some in its
//! own. For each packet it needs the context of the queue pair and the translation of the page. What is not there is
//! fetched over PCIe; some such fetches overlap. Nothing else of a NIC is in the model.
//!
//! Owns the caches and the sums. It must never take a number from this machine: the shapes name published ones.

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// READs that are looked at after the caches are warm, for each connection at least.
const READS: u64 = 4;
/// READs altogether, at least.
const READS_MIN: u64 = 4096;

/// What a NIC has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RnicShape {
    /// Bits a second of the link.
    pub rate_bits_per_s: u64,
    /// Payload bytes of a packet.
    pub mtu_bytes: u32,
    /// Contexts of queue pairs that it keeps.
    pub contexts: usize,
    /// Translations of pages that it keeps.
    pub translations: usize,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// One read of the host's memory over PCIe.
    pub fetch: Duration,
    /// Such reads that overlap.
    pub fetches_at_once: u32,
}

impl RnicShape {
    /// The NIC of the RaaS paper, a ConnectX-3 with 40 Gbit/s (its table II).
    ///
    /// - 400 contexts: where native verbs begin to fall in the paper's Figure 6.
    /// - 1,024 translations: pages of 4 KiB in the 4 MiB from which on LITE saw a ConnectX-3 fall (Tsai and Zhang,
    ///   "LITE Kernel RDMA Support for Datacenter Applications", SOSP 2017, section 2.4).
    /// - 547 ns: median of a read of 64 bytes on a Xeon E5 (Neugebauer et al., "Understanding PCIe performance for end
    ///   host networking", SIGCOMM 2018, Figure 6).
    /// - How many fetches overlap is not published, so it is an argument: 1 is the worst, and 16 is what
    ///   [`RnicShape::CONNECTX_6_FETCHES`] says.
    pub const fn connectx_3(fetches_at_once: u32) -> Self {
        Self {
            rate_bits_per_s: 40_000_000_000,
            mtu_bytes: 1024,
            contexts: 400,
            translations: 1024,
            page_bytes: 4096,
            fetch: Duration::from_nanos(547),
            fetches_at_once,
        }
    }

    /// Fetches that overlap, out of the rates of small READs that a public benchmark of RC queue pairs gives in its
    /// source for a ConnectX-6: 42 million a second over 512 queue pairs, 21 million over 4,096. So a READ takes 23.8 ns
    /// more. If three quarters of them miss, a miss costs 32 ns, which is a seventeenth of 547 ns.
    pub const CONNECTX_6_FETCHES: u32 = 16;
}

/// Random READs.
#[derive(Debug, Clone, Copy)]
pub struct ReadLoad {
    /// Queue pairs that have a READ outstanding each, in no order.
    pub queue_pairs: u32,
    /// Bytes of a READ, which begin at a page.
    pub bytes: u32,
    /// Bytes of the memory that they are from.
    pub memory_bytes: u64,
}

/// What a load found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Gbit/s of payload.
    pub gbit_per_s: f64,
    /// Contexts that were fetched, for each packet.
    pub contexts: f64,
    /// Translations that were fetched, for each packet.
    pub translations: f64,
}

/// A cache that gives up any of its entries when it needs room.
#[derive(Debug)]
struct Cache {
    entries: Vec<u64>,
    places: HashMap<u64, usize>,
    most: usize,
}

impl Cache {
    fn new(most: usize) -> Self {
        Self { entries: Vec::new(), places: HashMap::new(), most: most.max(1) }
    }

    /// Whether it was there; it is afterwards.
    fn touch(&mut self, key: u64, rng: &mut StdRng) -> bool {
        if self.places.contains_key(&key) {
            return true;
        }
        let place = if self.entries.len() < self.most {
            self.entries.push(key);
            self.entries.len() - 1
        } else {
            let place = rng.random_range(0..self.entries.len());
            let old = std::mem::replace(&mut self.entries[place], key);
            self.places.remove(&old);
            place
        };
        self.places.insert(key, place);
        false
    }
}

/// A READ that is under way: its first page, and the packets that are still to come.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    page: u64,
    left: u32,
}

/// What a NIC receives of READs whose packets come in any order of queue pairs, as switches and responders mix them.
pub fn reads(shape: &RnicShape, load: &ReadLoad, seed: u64) -> Found {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut contexts, mut translations) = (Cache::new(shape.contexts), Cache::new(shape.translations));
    let queue_pairs = u64::from(load.queue_pairs.max(1));
    let packets = load.bytes.div_ceil(shape.mtu_bytes).max(1);
    let pages = (load.memory_bytes / u64::from(shape.page_bytes)).max(1);
    let mut under_way = vec![Read::default(); queue_pairs as usize];
    let whole = READS_MIN.max(READS * queue_pairs) * u64::from(packets);
    let (mut fetched, mut counted) = ((0_u64, 0_u64), 0_u64);
    for number in 0..2 * whole {
        let queue_pair = rng.random_range(0..queue_pairs);
        let read = &mut under_way[queue_pair as usize];
        if read.left == 0 {
            *read = Read { page: rng.random_range(0..pages), left: packets };
        }
        let offset = u64::from(packets - read.left) * u64::from(shape.mtu_bytes);
        read.left -= 1;
        let page = (read.page + offset / u64::from(shape.page_bytes)) % pages;
        let (has_context, has_page) = (contexts.touch(queue_pair, &mut rng), translations.touch(page, &mut rng));
        // The first half warms the caches up.
        if number >= whole {
            counted += 1;
            fetched.0 += u64::from(!has_context);
            fetched.1 += u64::from(!has_page);
        }
    }
    let each = |count: u64| count as f64 / counted.max(1) as f64;
    let (contexts, translations) = (each(fetched.0), each(fetched.1));
    let bits = f64::from(load.bytes) / f64::from(packets) * 8.0;
    let wait = shape.fetch.as_secs_f64() / f64::from(shape.fetches_at_once.max(1));
    let seconds = bits / shape.rate_bits_per_s as f64 + (contexts + translations) * wait;
    Found { gbit_per_s: bits / seconds / 1e9, contexts, translations }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(queue_pairs: u32, fetches: u32) -> Found {
        reads(&RnicShape::connectx_3(fetches), &ReadLoad { queue_pairs, bytes: 64 << 10, memory_bytes: 64 << 20 }, 7)
    }

    #[test]
    fn contexts_that_fit_are_never_fetched_and_those_beyond_are_missed_by_their_share() {
        for queue_pairs in [1, 100, 400] {
            assert_eq!(found(queue_pairs, 1).contexts, 0.0, "{queue_pairs}");
        }
        for (queue_pairs, missed) in [(500, 0.2), (1000, 0.6), (4000, 0.9)] {
            let contexts = found(queue_pairs, 1).contexts;
            assert!((contexts - missed).abs() < 0.02, "{queue_pairs}: {contexts}");
        }
    }

    #[test]
    fn the_knee_is_where_contexts_end_and_overlapping_fetches_make_it_shallow() {
        let at = |queue_pairs, fetches| found(queue_pairs, fetches).gbit_per_s;
        // Before the knee more pages are under way at a time, and some of their translations are fetched twice.
        let before = at(400, 1) / at(10, 1);
        assert!((0.75..1.0).contains(&before), "{before}");
        let steep = at(1000, 1) / at(400, 1);
        assert!(steep < 0.7, "{steep}");
        let shallow = at(1000, 16) / at(400, 16);
        assert!((0.8..0.98).contains(&shallow), "{shallow}");
        assert!(at(4000, 1) < at(1000, 1));
    }

    #[test]
    fn memory_whose_translations_fit_costs_no_fetch() {
        let load = |memory_bytes| ReadLoad { queue_pairs: 10, bytes: 64 << 10, memory_bytes };
        let shape = RnicShape::connectx_3(1);
        assert_eq!(reads(&shape, &load(4 << 20), 3).translations, 0.0);
        assert!(reads(&shape, &load(64 << 20), 3).translations > 0.2);
        let huge = RnicShape { page_bytes: 2 << 20, ..shape };
        assert_eq!(reads(&huge, &load(1 << 30), 3).translations, 0.0, "512 pages");
    }
}

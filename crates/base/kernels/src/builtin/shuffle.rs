//! Shuffle: items are dealt to partitions by some bits of their key.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::fuel::Fuel;
use crate::limits::REGIONS_MAX;
use crate::program::{Program, Step};
use crate::request::{Call, write_answer};
use crate::view::{self, View};

/// Most bits of the radix: so many targets fit a request.
const RADIX_BITS_MAX: u8 = 5;
/// Bytes of an item at most.
const ITEM_BYTES_MAX: usize = 256;

/// Where the items of one partition go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The region: 0 is the one that has the items, 1 the first of the others that the run names.
    pub region: u32,
    /// Where the first item goes.
    pub offset: u64,
    /// How many items there is room for.
    pub capacity: u64,
}

/// Deals items to partitions, in their order. An item belongs to the partition that some bits of its key say; the key
/// is a number of 8 bytes in the owner's byte order. The answer has the items of each partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shuffle {
    /// Where the first item is.
    pub offset: u64,
    /// How many there are.
    pub items: u64,
    /// Bytes of each: 8 to 256.
    pub item_bytes: u32,
    /// Where in an item its key is.
    pub key_at: u32,
    /// The lowest bit of the key that counts.
    pub shift: u8,
    /// How many bits count: 1 to 5.
    pub bits: u8,
    /// The partitions: 2 to the power of `bits`.
    pub targets: Vec<Target>,
}

impl Call for Shuffle {
    const NAME: &'static str = "shuffle";
    type Answer = Vec<u64>;
}

/// How far it is.
pub(crate) struct Partition {
    args: Shuffle,
    done: u64,
    counts: Vec<u64>,
}

impl Partition {
    pub(crate) fn program(args: Shuffle) -> Result<Box<dyn Program>, Failure> {
        let Shuffle { item_bytes, key_at, shift, bits, ref targets, .. } = args;
        let fits_item = |end: Option<u32>| end.is_some_and(|end| end <= item_bytes);
        if !(8..=ITEM_BYTES_MAX).contains(&(item_bytes as usize)) || !fits_item(key_at.checked_add(8)) {
            return Err(Failure::bad(format!("a key at {key_at} of items of {item_bytes} bytes: they have 8 to 256")));
        }
        if !(1..=RADIX_BITS_MAX).contains(&bits) || shift > 64 - bits {
            return Err(Failure::bad(format!("{bits} bits from bit {shift} on: 1 to {RADIX_BITS_MAX} of 64")));
        }
        if targets.len() != 1 << bits {
            return Err(Failure::bad(format!("{} targets for {} partitions", targets.len(), 1 << bits)));
        }
        if let Some(target) = targets.iter().find(|t| t.region as usize > REGIONS_MAX) {
            return Err(Failure::bad(format!("region {} of {REGIONS_MAX} at most", target.region)));
        }
        Ok(Box::new(Self { counts: vec![0; targets.len()], done: 0, args }))
    }

    fn deal(&mut self, views: &[View], fuel: &mut Fuel) -> Result<(), Failure> {
        let size = u64::from(self.args.item_bytes);
        let place = |from: u64, index: u64| from.saturating_add(index.saturating_mul(size));
        let mut item = [0; ITEM_BYTES_MAX];
        let item = &mut item[..self.args.item_bytes as usize];
        view::of(views, 0)?.read(place(self.args.offset, self.done), item, fuel)?;
        let mut key = [0; 8];
        let key_at = self.args.key_at as usize;
        key.copy_from_slice(&item[key_at..key_at + 8]);
        let partition = (u64::from_ne_bytes(key) >> self.args.shift) & ((1 << self.args.bits) - 1);
        let index = partition as usize;
        let (Some(target), Some(count)) = (self.args.targets.get(index), self.counts.get_mut(index)) else {
            return Err(Failure::bad(format!("no partition {partition}")));
        };
        if *count >= target.capacity {
            return Err(Failure::PartitionFull { partition: partition as u32, capacity: target.capacity });
        }
        view::of(views, target.region)?.write(place(target.offset, *count), item, fuel)?;
        *count += 1;
        Ok(())
    }
}

impl Program for Partition {
    fn run(&mut self, views: &[View], fuel: &mut Fuel) -> Result<Step, Failure> {
        while self.done < self.args.items {
            if fuel.is_spent() {
                return Ok(Step::More);
            }
            self.deal(views, fuel)?;
            self.done += 1;
        }
        Ok(Step::Done(write_answer(&self.counts)))
    }
}

//! HyperLogLog: how many distinct items there are, about, in a few KiB (Flajolet and others, 2007).

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::fuel::Fuel;
use crate::program::{Program, Step};
use crate::request::{Call, write_answer};
use crate::view::{self, View};

/// Fewest bits of a hash that choose a register.
pub const PRECISION_MIN: u8 = 4;
/// Most such bits: 16 KiB of registers, and an error of 0.8 %.
pub const PRECISION_MAX: u8 = 14;
/// Bytes of an item at most.
const ITEM_BYTES_MAX: usize = 256;
/// Registers that are merged or counted in one step.
const STEP_REGISTERS: usize = 256;

/// Counts the distinct items among those of an array, about: with `precision` p the standard error is
/// 1.04 / 2^(p/2). The answer is the estimate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distinct {
    /// Where the first item is.
    pub offset: u64,
    /// How many there are.
    pub items: u64,
    /// Bytes from one item to the next.
    pub stride: u32,
    /// Bytes of an item that count: 1 to 256.
    pub item_bytes: u32,
    /// Bits of the hash that choose a register: 4 to 14.
    pub precision: u8,
    /// Where 2^precision bytes of registers lie that the count goes on from, and is kept in. None: it begins at
    /// nothing, and is not kept.
    pub sketch_at: Option<u64>,
}

impl Call for Distinct {
    const NAME: &'static str = "distinct";
    type Answer = u64;
}

/// Which part is done.
enum Phase {
    /// Registers of the region are merged into those of the run, from this one on.
    Load(usize),
    Count(u64),
    /// They are stored, from this one on.
    Store(usize),
}

/// How far a count is.
pub(crate) struct Count {
    args: Distinct,
    registers: Vec<u8>,
    phase: Phase,
}

impl Count {
    pub(crate) fn program(args: Distinct) -> Result<Box<dyn Program>, Failure> {
        let Distinct { precision, item_bytes, .. } = args;
        if !(PRECISION_MIN..=PRECISION_MAX).contains(&precision) {
            let words = format!("precision {precision}: {PRECISION_MIN} to {PRECISION_MAX} can be");
            return Err(Failure::bad(words));
        }
        if !(1..=ITEM_BYTES_MAX).contains(&(item_bytes as usize)) {
            return Err(Failure::bad(format!("items of {item_bytes} bytes: 1 to {ITEM_BYTES_MAX} can be")));
        }
        let phase = if args.sketch_at.is_some() { Phase::Load(0) } else { Phase::Count(0) };
        Ok(Box::new(Self { registers: vec![0; 1 << precision], phase, args }))
    }

    fn add(&mut self, item: &[u8]) {
        let hash = hash(item);
        let register = (hash >> (64 - self.args.precision)) as usize;
        // A bit behind the last keeps the rank within what is left of the hash.
        let rest = hash << self.args.precision | 1 << (self.args.precision - 1);
        let rank = rest.leading_zeros() as u8 + 1;
        if let Some(register) = self.registers.get_mut(register) {
            *register = rank.max(*register);
        }
    }

    /// The registers of one step, and where they lie in the region.
    fn piece(&mut self, from: usize) -> (u64, &mut [u8]) {
        let at = self.args.sketch_at.unwrap_or(u64::MAX).saturating_add(from as u64);
        let end = self.registers.len().min(from + STEP_REGISTERS);
        (at, self.registers.get_mut(from..end).unwrap_or_default())
    }

    /// One step. `Some`: it is done.
    fn step(&mut self, view: &View, fuel: &mut Fuel) -> Result<Option<u64>, Failure> {
        match self.phase {
            Phase::Load(from) if from >= self.registers.len() => self.phase = Phase::Count(0),
            Phase::Load(from) => {
                let (at, registers) = self.piece(from);
                view.read(at, registers, fuel)?;
                // No hash has a higher rank: more is not a register.
                registers.iter_mut().for_each(|r| *r = (*r).min(u64::BITS as u8));
                self.phase = Phase::Load(from + STEP_REGISTERS);
            }
            Phase::Count(item) if item >= self.args.items => {
                if self.args.sketch_at.is_none() {
                    fuel.touch(self.registers.len() as u64);
                    return Ok(Some(estimate(&self.registers)));
                }
                self.phase = Phase::Store(0);
            }
            Phase::Count(item) => {
                let mut bytes = [0; ITEM_BYTES_MAX];
                let bytes = &mut bytes[..self.args.item_bytes as usize];
                let at = self.args.offset.saturating_add(item.saturating_mul(self.args.stride.into()));
                view.read(at, bytes, fuel)?;
                self.add(bytes);
                self.phase = Phase::Count(item + 1);
            }
            Phase::Store(from) if from >= self.registers.len() => {
                fuel.touch(self.registers.len() as u64);
                return Ok(Some(estimate(&self.registers)));
            }
            Phase::Store(from) => {
                let (at, registers) = self.piece(from);
                view.write(at, registers, fuel)?;
                self.phase = Phase::Store(from + STEP_REGISTERS);
            }
        }
        Ok(None)
    }
}

impl Program for Count {
    fn run(&mut self, views: &[View], fuel: &mut Fuel) -> Result<Step, Failure> {
        let view = view::of(views, 0)?;
        while !fuel.is_spent() {
            if let Some(estimate) = self.step(view, fuel)? {
                return Ok(Step::Done(write_answer(&estimate)));
            }
        }
        Ok(Step::More)
    }
}

/// About how many distinct items made these registers, of which there are a power of two.
pub fn estimate(registers: &[u8]) -> u64 {
    let m = registers.len() as f64;
    let sum: f64 = registers.iter().map(|rank| (-f64::from(*rank)).exp2()).sum();
    let alpha = match registers.len() {
        0 => return 0,
        1..=16 => 0.673,
        32 => 0.697,
        64 => 0.709,
        _ => 0.7213 / (1.0 + 1.079 / m),
    };
    let raw = alpha * m * m / sum;
    let zeros = registers.iter().filter(|rank| **rank == 0).count();
    // With many empty registers, counting those is more exact.
    let small = raw <= 2.5 * m && zeros > 0;
    (if small { m * (m / zeros as f64).ln() } else { raw }).round() as u64
}

/// 64 bits of which all depend on all of the item: FNV-1a, and the last step of SplitMix64.
fn hash(item: &[u8]) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut z = item.iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

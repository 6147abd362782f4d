//! Traversal of a list or of a hash table's chain: from node to node until one has the key.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::fuel::Fuel;
use crate::limits::ANSWER_BYTES_MAX;
use crate::program::{Program, Step};
use crate::request::{Call, write_answer};
use crate::view::View;

/// Bytes of a key at most.
const KEY_BYTES_MAX: usize = 64;
/// Bytes of the answer beside the value, at most.
const FOUND_BYTES: usize = 32;

/// How 8 bytes of the region say where a node is: as a number in the owner's byte order, of which some bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The lowest bit that counts.
    pub shift: u8,
    /// How many bits count.
    pub bits: u8,
    /// The node begins at these bits times 2 to this power.
    pub scale: u8,
}

impl Pointer {
    /// All 64 bits are the offset in bytes.
    pub const OFFSET: Self = Self { shift: 0, bits: 64, scale: 0 };

    /// Where the node of a word is. `None`: the bits that count are zero, which ends a list.
    pub(crate) fn offset(self, word: u64) -> Option<u64> {
        let mask = u64::MAX.checked_shr(64 - u32::from(self.bits)).unwrap_or(0);
        let unit = word.checked_shr(self.shift.into()).unwrap_or(0) & mask;
        // Bits that fall off the top would name another node.
        let offset = unit.checked_shl(self.scale.into()).filter(|at| at >> self.scale == unit);
        (unit != 0).then_some(offset.unwrap_or(u64::MAX))
    }

    pub(crate) fn check(self) -> Result<(), Failure> {
        let fits = self.bits >= 1 && self.shift < 64 && self.scale < 64 && self.shift.saturating_add(self.bits) <= 64;
        if fits { Ok(()) } else { Err(Failure::bad(format!("{self:?} is no part of 64 bits"))) }
    }
}

/// When a node is the one that is looked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Its key has these bytes, 1 to 64.
    Equal(Vec<u8>),
    /// Its key is at least this number, of 8 bytes in the owner's byte order: in a sorted list the first such node.
    AtLeast(u64),
    /// It is this many nodes behind the first.
    Nth(u64),
}

/// Looks for a node in a list, or in one chain of a hash table.
///
/// The list begins at the 8 bytes at `head`, and goes on at the 8 bytes at `next_at` of each node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// Where the first pointer is.
    pub head: u64,
    /// How pointers are read.
    pub pointer: Pointer,
    /// Where in a node the pointer to the next one is.
    pub next_at: u32,
    /// Where in a node its key is.
    pub key_at: u32,
    /// Which node is looked for.
    pub order: Order,
    /// Where in the node that is found the value begins.
    pub value_at: u32,
    /// Bytes of the value, which the answer has: at most 864.
    pub value_bytes: u32,
}

impl Chain {
    /// A list whose first pointer is at this offset; in a node the next pointer comes first.
    pub fn list(head: u64) -> Self {
        let (pointer, order) = (Pointer::OFFSET, Order::Nth(0));
        Self { head, pointer, next_at: 0, key_at: 8, order, value_at: 0, value_bytes: 0 }
    }

    /// The chain of one bucket of a hash table: `table` has `buckets` pointers, one behind the other. Which bucket a key
    /// belongs to is the caller's hash.
    pub fn bucket(table: u64, buckets: u64, hash: u64) -> Self {
        let index = hash.checked_rem(buckets).unwrap_or(0);
        Self::list(table.saturating_add(index.saturating_mul(8)))
    }

    /// Looks for the node with this key, which lies at `at` in a node.
    #[must_use]
    pub fn equal(self, at: u32, key: &[u8]) -> Self {
        Self { key_at: at, order: Order::Equal(key.to_vec()), ..self }
    }

    /// Looks for the first node whose key, 8 bytes at `at` in a node, is at least `key`.
    #[must_use]
    pub fn at_least(self, at: u32, key: u64) -> Self {
        Self { key_at: at, order: Order::AtLeast(key), ..self }
    }

    /// Has the answer bring these bytes of the node.
    #[must_use]
    pub fn value(self, at: u32, bytes: u32) -> Self {
        Self { value_at: at, value_bytes: bytes, ..self }
    }
}

/// What a traversal found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Found {
    /// Where the node begins; none if no node is the one that was looked for.
    pub node: Option<u64>,
    /// Nodes that were looked at.
    pub steps: u64,
    /// The value.
    pub value: Vec<u8>,
}

impl Call for Chain {
    const NAME: &'static str = "chain";
    type Answer = Found;
}

/// Refuses a value that no answer has room for.
pub(crate) fn check_value(bytes: u32) -> Result<(), Failure> {
    let max = ANSWER_BYTES_MAX - FOUND_BYTES;
    if bytes as usize <= max { Ok(()) } else { Err(Failure::bad(format!("a value of {bytes} bytes, {max} at most"))) }
}

/// Offsets of a node's parts. One that no number names lies outside of any region.
pub(crate) fn part(node: u64, at: u32) -> u64 {
    node.saturating_add(at.into())
}

/// The answer for a node.
pub(crate) fn found(
    view: &View,
    node: u64,
    (at, bytes): (u32, u32),
    steps: u64,
    fuel: &mut Fuel,
) -> Result<Step, Failure> {
    let mut value = vec![0; bytes as usize];
    if bytes > 0 {
        view.read(part(node, at), &mut value, fuel)?;
    }
    Ok(Step::Done(write_answer(&Found { node: Some(node), steps, value })))
}

/// How far a traversal is.
pub(crate) struct Walk {
    chain: Chain,
    /// Where the pointer to the next node is.
    at: u64,
    steps: u64,
}

impl Walk {
    pub(crate) fn program(chain: Chain) -> Result<Box<dyn Program>, Failure> {
        chain.pointer.check()?;
        check_value(chain.value_bytes)?;
        if let Order::Equal(key) = &chain.order
            && (key.is_empty() || key.len() > KEY_BYTES_MAX)
        {
            return Err(Failure::bad(format!("a key of {} bytes: 1 to {KEY_BYTES_MAX} can be", key.len())));
        }
        Ok(Box::new(Self { at: chain.head, chain, steps: 0 }))
    }

    /// Whether this node is the one.
    fn is_it(&self, view: &View, node: u64, fuel: &mut Fuel) -> Result<bool, Failure> {
        let key_at = part(node, self.chain.key_at);
        Ok(match &self.chain.order {
            Order::Nth(nth) => self.steps > *nth,
            Order::AtLeast(key) => view.word(key_at, fuel)? >= *key,
            Order::Equal(key) => {
                let mut bytes = [0; KEY_BYTES_MAX];
                let bytes = &mut bytes[..key.len()];
                view.read(key_at, bytes, fuel)?;
                bytes == key.as_slice()
            }
        })
    }
}

impl Program for Walk {
    fn run(&mut self, views: &[View], fuel: &mut Fuel) -> Result<Step, Failure> {
        let view = crate::view::of(views, 0)?;
        while !fuel.is_spent() {
            let word = view.word(self.at, fuel)?;
            let Some(node) = self.chain.pointer.offset(word) else {
                let none = Found { node: None, steps: self.steps, value: Vec::new() };
                return Ok(Step::Done(write_answer(&none)));
            };
            self.steps += 1;
            if self.is_it(view, node, fuel)? {
                return found(view, node, (self.chain.value_at, self.chain.value_bytes), self.steps, fuel);
            }
            self.at = part(node, self.chain.next_at);
        }
        Ok(Step::More)
    }
}

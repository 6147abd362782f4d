//! A look into a sorted list whose links have a mark and a life, as the lock-free lists of crate `rmem` have.
//!
//! Owns the way through such a list while others change it. It only reads: dead nodes it passes, and those who write take
//! them out. What it read is right only if no block that it came by was used again meanwhile. For that the caller
//! answers, as it does for its own READs: it had a lease before, and has it still when the answer is there.

use serde::{Deserialize, Serialize};

use super::chain::{Pointer, check_value};
use crate::failure::Failure;
use crate::fuel::Fuel;
use crate::program::{Program, Step};
use crate::request::{Call, write_answer};
use crate::view::View;

/// Link, key, value.
const NODE_BYTES: usize = 24;

/// Some bits of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits {
    /// The lowest.
    pub shift: u8,
    /// How many, from 1.
    pub bits: u8,
}

impl Bits {
    fn of(self, word: u64) -> u64 {
        let mask = u64::MAX.checked_shr(64_u32.saturating_sub(self.bits.into())).unwrap_or(0);
        word.checked_shr(self.shift.into()).unwrap_or(0) & mask
    }

    fn check(self) -> Result<(), Failure> {
        let fits = self.bits >= 1 && self.shift < 64 && self.shift.saturating_add(self.bits) <= 64;
        if fits { Ok(()) } else { Err(Failure::bad(format!("{self:?} is no part of 64 bits"))) }
    }
}

/// What the bits of a link and of a value's pointer mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// Where the block is. Zero ends the list.
    pub pointer: Pointer,
    /// Which region has the block.
    pub region: Bits,
    /// Which life of its block the pointer means.
    pub life: Bits,
    /// In the link that stands in a node: which life the node is in.
    pub own_life: Bits,
    /// In the link that stands in a node: not zero if the node is dead.
    pub mark: Bits,
    /// In a value's pointer: how many words of 8 bytes the value has.
    pub words: Bits,
}

impl Links {
    fn check(self) -> Result<(), Failure> {
        self.pointer.check()?;
        [self.region, self.life, self.own_life, self.mark, self.words].into_iter().try_for_each(Bits::check)
    }
}

/// Where a search begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Begin {
    /// With the link at this offset of the region.
    At(u64),
    /// With this link, which was found in another region.
    With(u64),
}

/// Looks for a key in a sorted list. A node has three words: its link, its key, and the pointer to its value. A node
/// whose link has the mark, or whose value's pointer is 0, is dead, and its key is not in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sorted {
    /// Where the list begins.
    pub begin: Begin,
    /// The key.
    pub key: u64,
    /// This region, as the bits [`Links::region`] name it.
    pub region: u64,
    /// Bytes of a value that the answer may have: at most 864. Of a longer one it has the pointer alone.
    pub value_bytes_max: u32,
    /// How links are read.
    pub links: Links,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sought {
    /// The key is not in the list.
    Absent,
    /// The key is there.
    There {
        /// The pointer to its value.
        pointer: u64,
        /// The value. Without bytes, it is too long, or lies in another region.
        value: Vec<u8>,
    },
    /// The list goes on in another region, with this link.
    Elsewhere {
        /// The link.
        link: u64,
    },
    /// A node was used again meanwhile: the caller's lease is over.
    Changed,
}

impl Call for Sorted {
    const NAME: &'static str = "sorted";
    type Answer = Sought;
}

enum At {
    /// The next link stands here.
    Cell(u64),
    /// This is the next link.
    Link(u64),
    /// The key is there, with this value.
    Value(u64),
}

/// How far a search is.
pub(crate) struct Search {
    sorted: Sorted,
    at: At,
}

impl Search {
    pub(crate) fn program(sorted: Sorted) -> Result<Box<dyn Program>, Failure> {
        sorted.links.check()?;
        check_value(sorted.value_bytes_max)?;
        let at = match sorted.begin {
            Begin::At(offset) => At::Cell(offset),
            Begin::With(link) => At::Link(link),
        };
        Ok(Box::new(Self { sorted, at }))
    }

    /// Follows a link to its node. An answer, if the search is over.
    fn follow(&mut self, view: &View, link: u64, fuel: &mut Fuel) -> Result<Option<Sought>, Failure> {
        let Sorted { key: wanted, region, links, .. } = self.sorted;
        let Some(offset) = links.pointer.offset(link) else { return Ok(Some(Sought::Absent)) };
        if links.region.of(link) != region {
            return Ok(Some(Sought::Elsewhere { link }));
        }
        let mut node = [0; NODE_BYTES];
        view.read(offset, &mut node, fuel)?;
        let [next, key, value] = words(&node);
        if links.own_life.of(next) != links.life.of(link) {
            return Ok(Some(Sought::Changed));
        }
        // A dead node's link still leads on: who is in the list behind it cannot be taken out before it is.
        self.at = if links.mark.of(next) != 0 || value == 0 || key < wanted {
            At::Link(next)
        } else if key == wanted {
            At::Value(value)
        } else {
            return Ok(Some(Sought::Absent));
        };
        Ok(None)
    }

    fn value(&self, view: &View, pointer: u64, fuel: &mut Fuel) -> Result<Sought, Failure> {
        let Sorted { region, value_bytes_max, links, .. } = self.sorted;
        let bytes = links.words.of(pointer).saturating_mul(8);
        let here = links.pointer.offset(pointer).filter(|_| links.region.of(pointer) == region);
        let mut value = Vec::new();
        if let Some(offset) = here.filter(|_| bytes <= value_bytes_max.into()) {
            value.resize(bytes as usize, 0);
            view.read(offset, &mut value, fuel)?;
        }
        Ok(Sought::There { pointer, value })
    }
}

fn words(node: &[u8; NODE_BYTES]) -> [u64; 3] {
    let word = |at: usize| u64::from_ne_bytes(node[at..at + 8].try_into().unwrap_or_default());
    [word(0), word(8), word(16)]
}

impl Program for Search {
    fn run(&mut self, views: &[View], fuel: &mut Fuel) -> Result<Step, Failure> {
        let view = crate::view::of(views, 0)?;
        while !fuel.is_spent() {
            let answer = match self.at {
                At::Cell(offset) => {
                    self.at = At::Link(view.word(offset, fuel)?);
                    None
                }
                At::Link(link) => self.follow(view, link, fuel)?,
                At::Value(pointer) => Some(self.value(view, pointer, fuel)?),
            };
            if let Some(answer) = answer {
                return Ok(Step::Done(write_answer(&answer)));
            }
        }
        Ok(Step::More)
    }
}

//! Blocks of remote memory: fresh ones, and used ones again.
//!
//! Owns the free lists, those of this client and those on the nodes that all share. All of it is one-sided: the owner of
//! a node's memory takes no part. It must never hand out a block twice, whoever dies at whatever step. A client that
//! dies takes along the blocks that it has in hand: at most [`IN_HAND_MAX`] of a class and node, and what it retired.
//!
//! Each block counts its lives in its pointers: who allocates it makes the next one. A free block keeps its first word,
//! so a compare-and-swap that comes late finds the mark of the life that is over. Its second word names the next free one.

use std::collections::{HashMap, HashSet};

use crate::error::Error;
use crate::format::{bump, free};
use crate::layout::Layout;
use crate::memory::{Atomic, Chain, Memory};
use crate::ptr::{Address, Ptr, next_epoch};

/// Free blocks of a class and node that a client keeps for itself.
pub const IN_HAND_MAX: usize = 64;
/// Blocks to this size are taken by one fetch-and-add, which wastes less than this if it comes too late.
const SMALL_BYTES: u64 = 4096;
const ATTEMPTS_MAX: u32 = 64;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    in_hand: HashMap<(u8, usize), Vec<Ptr<()>>>,
    /// Nodes whose fresh memory is used up for small blocks.
    used_up: HashSet<u8>,
}

impl Heap {
    /// A block for that layout: one of this client's, else fresh memory (one atomic), else one from the list that all
    /// share (two READs and one atomic).
    pub(crate) async fn allocate<M: Memory>(&mut self, memory: &M, node: u8, layout: Layout) -> Result<Ptr<()>, Error> {
        let mine = self.in_hand.get_mut(&(node, layout.class())).and_then(Vec::pop);
        let used = match mine {
            Some(used) => Some(used),
            None => match self.fresh(memory, node, layout).await? {
                Some(at) => return Ok(Ptr::new(at, next_epoch(0))),
                None => pop(memory, node, layout.class()).await?,
            },
        };
        let used = used.ok_or(Error::NoMemory { node, size: layout.size() })?;
        Ok(Ptr::new(used.address(), next_epoch(used.epoch())))
    }

    /// Memory that was never a block.
    async fn fresh<M: Memory>(&mut self, memory: &M, node: u8, layout: Layout) -> Result<Option<Address>, Error> {
        let (bytes, take) = (memory.bytes(node)?, layout.block_bytes() + layout.slack());
        let begin = |offset| Some(Address { node, offset: layout.align_up(offset) });
        if take <= SMALL_BYTES {
            if self.used_up.contains(&node) {
                return Ok(None);
            }
            let found = memory.atomic(bump(node), Atomic::Add(take)).await?;
            if found.checked_add(take).is_some_and(|end| end <= bytes) {
                return Ok(begin(found));
            }
            self.used_up.insert(node);
            return Ok(None);
        }
        // A large block that does not fit must not use up what is left for small ones.
        let mut found = [0];
        memory.read(bump(node), &mut found).await?;
        for _ in 0..ATTEMPTS_MAX {
            let [expected] = found;
            let Some(new) = expected.checked_add(take).filter(|end| *end <= bytes) else { return Ok(None) };
            let now = memory.atomic(bump(node), Atomic::CompareSwap { expected, new }).await?;
            if now == expected {
                return Ok(begin(expected));
            }
            found = [now];
        }
        Err(Error::Contended { what: "taking fresh memory", attempts: ATTEMPTS_MAX })
    }

    /// A block that nobody uses any more, `ptr` being of its last life.
    pub(crate) async fn give_back<M: Memory>(&mut self, memory: &M, ptr: Ptr<()>, layout: Layout) -> Result<(), Error> {
        let (node, class) = (ptr.address().node, layout.class());
        let mine = self.in_hand.entry((node, class)).or_default();
        mine.push(ptr.with_tag(0));
        if mine.len() <= IN_HAND_MAX {
            return Ok(());
        }
        let rest: Vec<Ptr<()>> = mine.drain(..IN_HAND_MAX / 2).collect();
        push(memory, node, class, &rest).await
    }

    /// Gives all blocks of this client to the others.
    pub(crate) async fn give_all_back<M: Memory>(&mut self, memory: &M) -> Result<(), Error> {
        for ((node, class), blocks) in std::mem::take(&mut self.in_hand) {
            push(memory, node, class, &blocks).await?;
        }
        Ok(())
    }
}

/// Where a free block names the next.
fn next_of(block: Ptr<()>) -> Address {
    block.address().plus(1)
}

/// Takes the first block of the list that all share. The head's tag counts its changes, so that a head that comes back
/// is another one.
async fn pop<M: Memory>(memory: &M, node: u8, class: usize) -> Result<Option<Ptr<()>>, Error> {
    let place = free(node, class);
    let mut word = [0];
    memory.read(place, &mut word).await?;
    for _ in 0..ATTEMPTS_MAX {
        let head = Ptr::<()>::from_bits(word[0]);
        if head.is_null() {
            return Ok(None);
        }
        let mut next = [0];
        memory.read(next_of(head), &mut next).await?;
        let new = Ptr::<()>::from_bits(next[0]).with_tag(head.tag() + 1).bits();
        let found = memory.atomic(place, Atomic::CompareSwap { expected: word[0], new }).await?;
        if found == word[0] {
            return Ok(Some(head));
        }
        word = [found];
    }
    Err(Error::Contended { what: "taking a free block", attempts: ATTEMPTS_MAX })
}

/// Puts blocks of one node onto the list that all share. They are lost if this fails, not doubled.
async fn push<M: Memory>(memory: &M, node: u8, class: usize, blocks: &[Ptr<()>]) -> Result<(), Error> {
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return Ok(()) };
    let place = free(node, class);
    let mut links = Chain::new();
    for pair in blocks.windows(2) {
        links.write(next_of(pair[0]), [pair[1].bits()]);
    }
    memory.chain(links).await?;
    let mut word = [0];
    memory.read(place, &mut word).await?;
    for _ in 0..ATTEMPTS_MAX {
        let head = Ptr::<()>::from_bits(word[0]);
        let mut chain = Chain::new();
        chain.write(next_of(*last), [head.with_tag(0).bits()]);
        let new = first.with_tag(head.tag() + 1).bits();
        let swap = chain.atomic(place, Atomic::CompareSwap { expected: word[0], new });
        let found = memory.chain(chain).await?[swap].first().copied().unwrap_or(0);
        if found == word[0] {
            return Ok(());
        }
        word = [found];
    }
    Err(Error::Contended { what: "giving free blocks back", attempts: ATTEMPTS_MAX })
}

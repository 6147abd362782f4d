//! Sorted lock-free lists: what sets and maps are made of (Harris 2001, with Michael's reclamation of 2002).
//!
//! Owns the search, which also takes out what is dead. A node's first word is its *link*: a pointer to the next node,
//! whose tag has the mark (the node is dead) and the life of the node that the link stands in. So a compare-and-swap
//! that arrives late, even after its node was used again, finds another word and does nothing. The node behind is known
//! by its own life, which the pointer names.

use crate::client::{Client, Tried};
use crate::error::Error;
use crate::layout::Layout;
use crate::memory::{Atomic, Chain, Memory};
use crate::ptr::{Address, Ptr};

/// Link, key, value.
pub(crate) const NODE_WORDS: usize = 3;
/// Nodes of one list that a search passes, at most.
const NODES_MAX: usize = 1 << 20;
pub(crate) const MARK: u64 = 1;
pub(crate) const LIFE_AT: u32 = 2;

pub(crate) type Node = [u64; NODE_WORDS];

/// Every node takes one block of 64 bytes.
pub(crate) const fn node_layout() -> Result<Layout, Error> {
    Layout::words(NODE_WORDS as u64)
}

/// The link of a new node of that life to `next`.
pub(crate) const fn first_link(life: u64, next: Ptr<Node>) -> u64 {
    next.with_tag(life << LIFE_AT).bits()
}

/// The same link to another node.
pub(crate) const fn relink(link: u64, to: Ptr<Node>) -> u64 {
    to.with_tag(target(link).tag()).bits()
}

/// Where a link points.
pub(crate) const fn target(link: u64) -> Ptr<Node> {
    Ptr::from_bits(link)
}

/// Whether the link stands in a node of the life that `node` names.
pub(crate) const fn is_of(link: u64, node: Ptr<Node>) -> bool {
    target(link).tag() >> LIFE_AT == node.epoch()
}

pub(crate) const fn is_dead(link: u64) -> bool {
    target(link).tag() & MARK != 0
}

pub(crate) const fn dead(link: u64) -> u64 {
    link | MARK
}

/// Where a key is, or would be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    /// The link before it.
    pub(crate) cell: Address,
    /// What stands there.
    pub(crate) link: u64,
    /// The first node whose key is not less.
    pub(crate) node: Option<Node>,
}

impl Spot {
    pub(crate) fn at(&self) -> Ptr<Node> {
        target(self.link)
    }

    /// The node, if it has that key.
    pub(crate) fn with(&self, key: u64) -> Option<Node> {
        self.node.filter(|node| node[1] == key)
    }
}

/// Looks for a key in the list that begins with the link at `head`. One READ, and one for each node that it looks at.
/// With `needs_value` a node whose value is 0 is dead too.
pub(crate) async fn find<M: Memory>(
    client: &mut Client<M>,
    head: Address,
    key: u64,
    needs_value: bool,
) -> Result<Tried<Spot>, Error> {
    let mut cell = head;
    let mut link = client.word(head).await?;
    for _ in 0..NODES_MAX {
        client.touch().await?;
        let at = target(link);
        if at.is_null() {
            client.sure().await?;
            return Ok(Tried::Done(Spot { cell, link, node: None }));
        }
        let node: Node = client.words(at.address()).await?;
        if !is_of(node[0], at) {
            // Only a client that was taken for dead meets a block of another life.
            client.sure().await?;
            return Ok(Tried::Again);
        }
        if is_dead(node[0]) || needs_value && node[2] == 0 {
            match take_out(client, (cell, link), (at, node)).await? {
                Tried::Done(next) => link = next,
                Tried::Again => return Ok(Tried::Again),
            }
        } else if node[1] >= key {
            client.sure().await?;
            return Ok(Tried::Done(Spot { cell, link, node: Some(node) }));
        } else {
            (cell, link) = (at.address(), node[0]);
        }
    }
    Err(Error::Contended { what: "searching a list", attempts: NODES_MAX as u32 })
}

/// Takes a dead node out; the link that stands in its place then. One atomic, and one more to mark the node if it is not.
pub(crate) async fn take_out<M: Memory>(
    client: &mut Client<M>,
    (cell, link): (Address, u64),
    (at, node): (Ptr<Node>, Node),
) -> Result<Tried<u64>, Error> {
    let next = node[0];
    if !is_dead(next) && client.swap_if(at.address(), next, dead(next)).await? != next {
        return Ok(Tried::Again);
    }
    let new = relink(link, target(next));
    if client.swap_if(cell, link, new).await? != link {
        return Ok(Tried::Again);
    }
    client.retire(at, node_layout()?);
    Ok(Tried::Done(new))
}

/// Writes a new node and puts it at a spot. One WRITE and one atomic, on one node in one round trip. Whether it is there.
pub(crate) async fn put_in<M: Memory>(
    client: &Client<M>,
    spot: &Spot,
    at: Ptr<Node>,
    rest: [u64; 2],
) -> Result<bool, Error> {
    let [key, value] = rest;
    let node = [first_link(at.epoch(), spot.at().with_tag(0)), key, value];
    let (place, new) = (at.address(), relink(spot.link, at));
    if place.node != spot.cell.node || client.is_local(place) {
        client.fill(place, &node).await?;
        return Ok(client.swap_if(spot.cell, spot.link, new).await? == spot.link);
    }
    // The bytes are in place before the atomic behind them is done.
    let mut chain = Chain::new();
    chain.write(place, node);
    let swap = chain.atomic(spot.cell, Atomic::CompareSwap { expected: spot.link, new });
    let found = client.memory().chain(chain).await?;
    Ok(found.get(swap).and_then(|words| words.first()) == Some(&spot.link))
}

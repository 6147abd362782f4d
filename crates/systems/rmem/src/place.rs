//! Where blocks are placed.
//!
//! Owns the policies, which are types, so that a structure's type says where its parts lie.

use crate::error::Error;

/// What a policy may look at.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// Nodes of the pool.
    pub nodes: usize,
    /// The first node on the client's host.
    pub home: Option<u8>,
    /// The key of what is placed, or 0.
    pub key: u64,
    /// How many blocks this client has placed before.
    pub turn: u64,
}

/// A policy of placement.
pub trait Placement: Copy + Send + Sync {
    /// The node of the next block.
    fn node(&self, choice: &Choice) -> Result<u8, Error>;
}

/// On the client's own host: allocation and initialization cost no verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Local;

/// On one node after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundRobin;

/// By the key, so that everybody knows where a key's block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByKey;

/// On this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct On(pub u8);

impl Placement for Local {
    fn node(&self, choice: &Choice) -> Result<u8, Error> {
        choice.home.ok_or(Error::NoLocalNode)
    }
}

impl Placement for RoundRobin {
    fn node(&self, choice: &Choice) -> Result<u8, Error> {
        Ok((choice.turn % choice.nodes.max(1) as u64) as u8)
    }
}

impl Placement for ByKey {
    fn node(&self, choice: &Choice) -> Result<u8, Error> {
        Ok((mix(choice.key) % choice.nodes.max(1) as u64) as u8)
    }
}

impl Placement for On {
    fn node(&self, choice: &Choice) -> Result<u8, Error> {
        if usize::from(self.0) < choice.nodes {
            Ok(self.0)
        } else {
            Err(Error::NoNode { node: self.0, nodes: choice.nodes })
        }
    }
}

/// Spreads keys that follow each other (the finalizer of SplitMix64).
pub(crate) const fn mix(key: u64) -> u64 {
    let key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ key >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_says_where() {
        let choice = |key, turn| Choice { nodes: 3, home: Some(1), key, turn };
        assert_eq!(Local.node(&choice(7, 7)).unwrap(), 1);
        assert!(matches!(Local.node(&Choice { home: None, ..choice(0, 0) }), Err(Error::NoLocalNode)));
        let turns: Vec<u8> = (0..6).map(|turn| RoundRobin.node(&choice(0, turn)).unwrap()).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
        let mut counts = [0; 3];
        for key in 0..3000 {
            let node = ByKey.node(&choice(key, 0)).unwrap();
            assert_eq!(node, ByKey.node(&choice(key, 1)).unwrap(), "the turn is nothing to it");
            counts[usize::from(node)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 800), "{counts:?}");
        assert!(matches!(On(3).node(&choice(0, 0)), Err(Error::NoNode { node: 3, nodes: 3 })));
    }
}

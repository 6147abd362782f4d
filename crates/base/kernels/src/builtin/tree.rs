//! Traversal of a binary search tree.

use serde::{Deserialize, Serialize};

use super::chain::{Found, Pointer, check_value, found, part};
use crate::failure::Failure;
use crate::fuel::Fuel;
use crate::program::{Program, Step};
use crate::request::{Call, write_answer};
use crate::view::View;

/// Looks for a key in a binary search tree. Keys are numbers of 8 bytes in the owner's byte order; lesser ones are on
/// the left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Where the pointer to the root is.
    pub root: u64,
    /// How pointers are read.
    pub pointer: Pointer,
    /// Where in a node its key is.
    pub key_at: u32,
    /// Where in a node the pointer to lesser keys is.
    pub left_at: u32,
    /// Where in a node the pointer to greater keys is.
    pub right_at: u32,
    /// The key.
    pub key: u64,
    /// Where in the node the value begins.
    pub value_at: u32,
    /// Bytes of the value, which the answer has: at most 864.
    pub value_bytes: u32,
}

impl Tree {
    /// A tree whose pointer to the root is at this offset, with nodes of key, left and right.
    pub const fn new(root: u64, key: u64) -> Self {
        let pointer = Pointer::OFFSET;
        Self { root, pointer, key_at: 0, left_at: 8, right_at: 16, key, value_at: 24, value_bytes: 0 }
    }

    /// Has the answer bring these bytes of the node.
    #[must_use]
    pub fn value(self, at: u32, bytes: u32) -> Self {
        Self { value_at: at, value_bytes: bytes, ..self }
    }
}

impl Call for Tree {
    const NAME: &'static str = "tree";
    type Answer = Found;
}

/// How far down a search is.
pub(crate) struct Descent {
    tree: Tree,
    at: u64,
    steps: u64,
}

impl Descent {
    pub(crate) fn program(tree: Tree) -> Result<Box<dyn Program>, Failure> {
        tree.pointer.check()?;
        check_value(tree.value_bytes)?;
        Ok(Box::new(Self { at: tree.root, tree, steps: 0 }))
    }
}

impl Program for Descent {
    fn run(&mut self, views: &[View], fuel: &mut Fuel) -> Result<Step, Failure> {
        let view = crate::view::of(views, 0)?;
        while !fuel.is_spent() {
            let word = view.word(self.at, fuel)?;
            let Some(node) = self.tree.pointer.offset(word) else {
                let none = Found { node: None, steps: self.steps, value: Vec::new() };
                return Ok(Step::Done(write_answer(&none)));
            };
            self.steps += 1;
            let key = view.word(part(node, self.tree.key_at), fuel)?;
            if key == self.tree.key {
                return found(view, node, (self.tree.value_at, self.tree.value_bytes), self.steps, fuel);
            }
            let side = if self.tree.key < key { self.tree.left_at } else { self.tree.right_at };
            self.at = part(node, side);
        }
        Ok(Step::More)
    }
}

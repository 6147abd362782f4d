//! What is known of a program at the control socket.
//!
//! Owns nothing but the record: how far the program is, and what it has said of a session that it brings along.

use std::collections::{BTreeMap, BTreeSet};

use control::Reason;

use crate::{Brought, ConnectionOver, ProgramRights};

/// Chunks of one session.
const CHUNKS_MAX: usize = 4096;

/// A program that has a session, or is about to.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// What names the process, if that is known.
    pub(super) process: Option<String>,
    pub(super) stage: Stage,
}

/// How far a program is.
#[derive(Debug)]
pub(super) enum Stage {
    /// It brings a session along, and has not said all of it.
    Returning(Box<Brings>),
    /// The engines are asked.
    Attaching(Attaching),
    /// All engines have taken it in.
    Attached,
}

/// What is known of a program that not all engines have answered for.
#[derive(Debug)]
pub(super) struct Attaching {
    /// Answers of engines that are still to come.
    pub(super) unanswered: u32,
    /// It brought a session along: an engine that takes it in says once more when it has taken all of it back.
    pub(super) returns: bool,
    /// An engine did not take it in.
    pub(super) refused: Option<Reason>,
    /// As the engines were told.
    pub(super) rights: ProgramRights,
}

/// What was counted for an engine of what a program brings along.
#[derive(Debug, Default)]
pub(super) struct Adopted {
    pub(super) connections: Vec<ConnectionOver>,
    pub(super) sockets: usize,
}

/// What a program has said so far.
#[derive(Debug, Default)]
pub(super) struct Brings {
    /// For each engine; empty: it has not said that it has a session.
    pub(super) engines: Vec<Brought>,
    pub(super) chunks: BTreeSet<u32>,
    /// The engine whose connections lie in a chunk.
    pub(super) owners: BTreeMap<u32, u32>,
    /// Slots of which tickets came.
    pub(super) ticketed: BTreeSet<u32>,
}

impl Brings {
    pub(super) fn has_session(&self) -> bool {
        !self.engines.is_empty()
    }

    pub(super) fn add_chunk(&mut self, number: u32) -> Result<(), String> {
        if !self.has_session() {
            return Err("a chunk without a session".into());
        }
        if self.chunks.len() >= CHUNKS_MAX || !self.chunks.insert(number) {
            return Err(format!("chunk {number} is one too many, or came before"));
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Vec<Brought> {
        for chunk in self.chunks {
            let owner = self.owners.get(&chunk).copied().unwrap_or(0);
            self.engines.get_mut(owner as usize).into_iter().for_each(|engine| engine.chunks.push(chunk));
        }
        self.engines
    }
}

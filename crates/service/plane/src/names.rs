//! What the engines call the programs.
//!
//! Owns the two directions of these names. A program has one at each engine, until nothing of it is left at any.

use std::collections::BTreeMap;

use crate::ClientId;

/// See the head of this file. `A` is an engine's name of a program.
#[derive(Debug)]
pub struct Names<A> {
    programs: BTreeMap<(u32, A), ClientId>,
    apps: BTreeMap<(ClientId, u32), A>,
}

impl<A> Default for Names<A> {
    fn default() -> Self {
        Self { programs: BTreeMap::new(), apps: BTreeMap::new() }
    }
}

impl<A: Copy + Ord> Names<A> {
    /// An engine took a program in.
    pub fn add(&mut self, client: ClientId, engine: u32, app: A) {
        self.programs.insert((engine, app), client);
        self.apps.insert((client, engine), app);
    }

    /// The program that an engine names.
    pub fn program(&self, engine: u32, app: A) -> Option<ClientId> {
        self.programs.get(&(engine, app)).copied()
    }

    /// What an engine calls a program.
    pub fn app(&self, client: ClientId, engine: u32) -> Option<A> {
        self.apps.get(&(client, engine)).copied()
    }

    /// Nothing of a program is left at any engine.
    pub fn forget(&mut self, client: ClientId) {
        let of_program = self.apps.range((client, 0)..=(client, u32::MAX)).map(|(key, app)| (*key, *app));
        for (key, app) in of_program.collect::<Vec<_>>() {
            self.apps.remove(&key);
            self.programs.remove(&(key.1, app));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_have_names_of_their_own() {
        let mut names = Names::default();
        for (client, engine, app) in [(1, 0, 5), (1, 1, 6), (2, 0, 6), (2, 1, 5)] {
            names.add(ClientId(client), engine, app);
        }
        assert_eq!((names.program(0, 5), names.program(1, 5)), (Some(ClientId(1)), Some(ClientId(2))));
        assert_eq!((names.app(ClientId(2), 0), names.app(ClientId(2), 2)), (Some(6), None));
        names.forget(ClientId(1));
        assert_eq!((names.program(0, 5), names.program(1, 6)), (None, None));
        names.forget(ClientId(2));
        assert!(names.programs.is_empty() && names.apps.is_empty());
    }
}

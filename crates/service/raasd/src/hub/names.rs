//! What the engines call the programs.
//!
//! Owns the two directions of these names. A program has one at each engine, until nothing of it is left at any.

use std::collections::BTreeMap;

use engine::AppId;
use plane::ClientId;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Names {
    programs: BTreeMap<(u32, AppId), ClientId>,
    apps: BTreeMap<(ClientId, u32), AppId>,
}

impl Names {
    /// An engine took a program in.
    pub(crate) fn add(&mut self, client: ClientId, engine: u32, app: AppId) {
        self.programs.insert((engine, app), client);
        self.apps.insert((client, engine), app);
    }

    /// The program that an engine names.
    pub(crate) fn program(&self, engine: u32, app: AppId) -> Option<ClientId> {
        self.programs.get(&(engine, app)).copied()
    }

    /// What an engine calls a program.
    pub(crate) fn app(&self, client: ClientId, engine: u32) -> Option<AppId> {
        self.apps.get(&(client, engine)).copied()
    }

    /// Nothing of a program is left at any engine.
    pub(crate) fn forget(&mut self, client: ClientId) {
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
            names.add(ClientId(client), engine, AppId(app));
        }
        assert_eq!((names.program(0, AppId(5)), names.program(1, AppId(5))), (Some(ClientId(1)), Some(ClientId(2))));
        assert_eq!((names.app(ClientId(2), 0), names.app(ClientId(2), 2)), (Some(AppId(6)), None));
        names.forget(ClientId(1));
        assert_eq!((names.program(0, AppId(5)), names.program(1, AppId(6))), (None, None));
        names.forget(ClientId(2));
        assert!(names.programs.is_empty() && names.apps.is_empty());
    }
}

//! Which kernels there are.

#[cfg(feature = "wasm")]
use std::collections::BTreeMap;

use crate::builtin::{self, chain, consistent, hyperloglog, shuffle, sorted, tree};
use crate::failure::Failure;
use crate::program::Program;
use crate::request::{Call, Request};
#[cfg(feature = "wasm")]
use crate::user::UserKernel;

/// The kernels that a name can mean.
#[derive(Debug, Clone, Default)]
pub struct Library {
    #[cfg(feature = "wasm")]
    user: BTreeMap<String, UserKernel>,
}

impl Library {
    /// The built-in ones alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a user kernel, or replaces the one of that name: what runs goes on as it began. False: there are as many as
    /// may be, or a built-in one has the name.
    #[cfg(feature = "wasm")]
    pub fn install(&mut self, name: &str, kernel: UserKernel) -> bool {
        let is_full = self.user.len() >= crate::limits::USER_KERNELS_MAX && !self.user.contains_key(name);
        if is_full || Self::builtin_names().contains(&name) {
            return false;
        }
        self.user.insert(name.to_owned(), kernel);
        true
    }

    /// A program for a request.
    pub(crate) fn program(&self, request: &Request<'_>) -> Result<Box<dyn Program>, Failure> {
        if let Some(program) = builtin::program(request) {
            return program;
        }
        #[cfg(feature = "wasm")]
        if let Some(kernel) = self.user.get(request.name) {
            return Ok(kernel.program(request.args));
        }
        Err(Failure::unknown(request.name))
    }

    /// Names of the built-in kernels.
    pub const fn builtin_names() -> [&'static str; 6] {
        [
            chain::Chain::NAME,
            tree::Tree::NAME,
            consistent::Consistent::NAME,
            shuffle::Shuffle::NAME,
            sorted::Sorted::NAME,
            hyperloglog::Distinct::NAME,
        ]
    }
}

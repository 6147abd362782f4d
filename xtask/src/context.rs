//! What a test stage is given.

use harness::repo::Repo;

/// What a stage is given.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) repo: Repo,
    pub(crate) full: bool,
}

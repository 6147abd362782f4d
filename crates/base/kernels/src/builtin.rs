//! The kernels that every daemon has.

pub(crate) mod chain;
pub(crate) mod consistent;
pub(crate) mod hyperloglog;
pub(crate) mod shuffle;
pub(crate) mod sorted;
pub(crate) mod tree;

use crate::failure::Failure;
use crate::program::Program;
use crate::request::{Call, Request, read_args};

/// A built-in kernel for a request. `None`: none has this name.
pub(crate) fn program(request: &Request<'_>) -> Option<Result<Box<dyn Program>, Failure>> {
    let args = request.args;
    Some(match request.name {
        chain::Chain::NAME => read_args(args).and_then(chain::Walk::program),
        tree::Tree::NAME => read_args(args).and_then(tree::Descent::program),
        consistent::Consistent::NAME => read_args(args).and_then(consistent::Reread::program),
        shuffle::Shuffle::NAME => read_args(args).and_then(shuffle::Partition::program),
        sorted::Sorted::NAME => read_args(args).and_then(sorted::Search::program),
        hyperloglog::Distinct::NAME => read_args(args).and_then(hyperloglog::Count::program),
        _ => return None,
    })
}

//! What every kernel is to the one who runs it: a state machine that takes slices of fuel.

use crate::failure::Failure;
use crate::fuel::Fuel;
use crate::view::View;

/// What a program says at the end of a slice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It has its answer.
    Done(Vec<u8>),
    /// It goes on in the next slice.
    More,
}

/// A program that runs in slices. Between two slices it keeps only its own state: the memory is another borrow each
/// time, and may be gone.
pub(crate) trait Program: Send {
    /// Goes on until the fuel is spent or there is an answer.
    fn run(&mut self, views: &[View], fuel: &mut Fuel) -> Result<Step, Failure>;
}

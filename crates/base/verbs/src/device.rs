//! A device before it is opened, and the contexts that it gives.

use std::error::Error;

use crate::Provider;

/// A device of this machine. Each [`Self::open`] makes a context: all of the device's objects for one owner, in a
/// [`Provider`] of its own.
///
/// Contexts share nothing that a caller sees. Objects and memory registrations of one are unknown to the others, and
/// each thread that drives the device needs a context of its own. The first context has the number 0.
pub trait Device {
    /// An open context.
    type Context: Provider;
    /// Why a context cannot be opened.
    type Error: Error;

    /// Opens the next context.
    fn open(&mut self) -> Result<Self::Context, Self::Error>;
}

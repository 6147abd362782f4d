//! What a program may still do in this slice.

use crate::limits::{BYTES_PER_FUEL, TOUCH_FUEL};

/// Fuel of a slice. A step that needs more than is left is done all the same, and the next slices pay for it: every step
/// is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fuel {
    slice: u64,
    spent: u64,
}

impl Fuel {
    /// A slice of so many units.
    pub const fn new(slice: u64) -> Self {
        Self { slice, spent: 0 }
    }

    /// Whether nothing is left.
    pub const fn is_spent(&self) -> bool {
        self.spent >= self.slice
    }

    /// What is left.
    pub const fn left(&self) -> u64 {
        self.slice.saturating_sub(self.spent)
    }

    /// What was spent, which may be a step more than the slice.
    pub const fn spent(&self) -> u64 {
        self.spent
    }

    /// Takes so many units.
    pub const fn spend(&mut self, units: u64) {
        self.spent = self.spent.saturating_add(units);
    }

    /// Pays for an access to so many bytes.
    pub const fn touch(&mut self, bytes: u64) {
        self.spend(TOUCH_FUEL + bytes / BYTES_PER_FUEL);
    }
}

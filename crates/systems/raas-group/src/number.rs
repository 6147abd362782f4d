//! The numbers by which memories are members.
//!
//! Owns where one stands that a file gave. A memory without one must never be taken for a member's: it waits for its file.

use agree::OWNER_AT;
use raas::{Region, RegionError};

use crate::class::Class;

/// Where the number of a memory stands that is made of a file.
const NUMBER_AT: u64 = OWNER_AT + 512;

/// The number by which a memory is a member; 0: it waits for its file.
pub(crate) fn of(region: &Region, class: Class) -> Result<u64, RegionError> {
    if !class.is_synced() {
        return Ok(region.id());
    }
    let mut word = [0; 8];
    region.read(NUMBER_AT, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// The memory has what its file proves.
pub(crate) fn give(own: &Region, number: u64) -> Result<(), RegionError> {
    own.write(NUMBER_AT, &number.to_le_bytes())
}

//! A map by descriptors.

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasherDefault, Hasher};

/// See the head of this file: each wait searches it for each busy connection.
pub(super) type ByFd<T> = HashMap<c_int, T, BuildHasherDefault<FdHasher>>;

/// Descriptors are small numbers of the kernel's choice: any order of their bits will do.
#[derive(Debug, Default)]
pub(super) struct FdHasher(u64);

impl Hasher for FdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_i32(i32::from(*byte)));
    }

    fn write_i32(&mut self, number: i32) {
        // The map looks at the highest bits and at the lowest.
        self.0 = (self.0.rotate_left(32) ^ u64::from(number.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

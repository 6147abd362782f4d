//! How large things may be.
//!
//! Owns these numbers, on which formats and messages agree.

/// Bytes of a header; blocks begin at multiples of it, and so do payloads.
pub const HEADER_BYTES: u64 = 256;
/// Dimensions of a tensor at most.
pub const DIMS_MAX: usize = 12;
/// Bytes of a tensor at most: with its header it is one loan, of 1 GiB.
pub const TENSOR_BYTES_MAX: u64 = raas::LOAN_BYTES_MAX - HEADER_BYTES;
/// Bytes of a name at most.
pub const NAME_BYTES_MAX: usize = 255;

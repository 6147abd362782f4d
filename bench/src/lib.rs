//! What the measuring programs share: the bare ring, the limit beside which paths over shared memory are measured.
#![forbid(unsafe_code)]

pub mod bare;

//! The conformance suite through the C interface: crate `rdmacore`, which is made for any libibverbs, loads this one.

mod conformance_suite;
mod exports;

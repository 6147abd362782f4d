//! The shared library `libibverbs.so.1`: all of it is in the library crate, and build.rs says how it is linked.
#![no_main]

extern crate ibverbs as _;

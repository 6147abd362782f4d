//! Tests that count what their whole process has: its heap, its memory, its ring pages, its open descriptors.
//! cargo-nextest has a process for each test. `cargo test` has one for all, and there they run one after the other.
#![allow(clippy::disallowed_types)] // tests may use atomics

mod descriptors;
#[path = "../it/hosts.rs"]
#[allow(dead_code)] // The other tests use the rest of it.
mod hosts;
mod idle_lane;
mod inspectors;
mod rest;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cap::Cap;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Until it is dropped, no other test of this process runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

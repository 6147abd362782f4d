//! The measuring programs, started as `cargo xtask bench` starts them.

mod programs;
mod relay;
mod running;

//! The client's machines without any daemon.

mod direct;
mod lane;

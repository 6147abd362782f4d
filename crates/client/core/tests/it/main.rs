//! The client's machines without any daemon.

mod direct;
mod lane;
mod way_back;

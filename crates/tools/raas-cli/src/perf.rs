//! `raas perf`: latency, throughput and message rate between two hosts, over RaaS or (`--tcp`) over kernel TCP by the
//! same program.

mod client;
mod report;
mod server;
mod wire;

pub(crate) use client::{Load, run as run_client};
pub(crate) use report::print;
pub(crate) use server::serve;
pub(crate) use wire::{Kind, SIZE_BYTES_MAX};

//! The measuring programs of the benches: the same load on the software NIC and on its rivals. Each is a subcommand, and
//! a module below of its name; `cargo xtask bench` starts them.
//!
//! They share the bare ring, which is the limit beside which paths over shared memory are measured; the star of bare
//! relays, beside which a daemon with many peers is; the control connection of two sides; processor time; round trips;
//! counting calls; a gRPC service; and choices that look random and come again. None of these uses a program.
//!
//! Owns the loads. It must never judge a figure. May use `netmodel`, `raas`, `raas-embedded`, `raas-group`,
//! `raas-rpc`, `raas-tonic`, `rdmacore`, `rmem`, `shm`, `softnic`, `tap`, `tensor`, `verbs`. Order of calls: none: each is
//! a program, which `cargo xtask bench` starts.
#![forbid(unsafe_code)]

mod bare;
mod choice;
mod control;
mod cpu;
mod grpc_echo;
mod load;
mod pattern;
mod star;
mod trips;

mod agreebench;
mod barehub;
mod barerelay;
mod faultbench;
mod grpcbench;
mod kernelbench;
mod linkrelay;
mod nativebench;
mod nicbench;
mod peersbench;
mod qpbench;
mod refbench;
mod regionbench;
mod remusbench;
mod rpcbench;
mod sockbench;
mod tensorbench;

use std::ffi::CString;

use anyhow::{Context, Result};
use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "bench")]
enum Program {
    /// Members of replicated groups.
    Agreebench(agreebench::Cli),
    /// Bare relays in a star, over TCP.
    Barehub(barehub::Cli),
    /// A bare relay, over UDP.
    Barerelay(barerelay::Cli),
    /// How long applications wait when something fails.
    Faultbench(faultbench::Cli),
    /// gRPC over kernel TCP or over RaaS.
    Grpcbench(grpcbench::Cli),
    /// Kernels beside READs.
    Kernelbench(kernelbench::Cli),
    /// Tensors of another program of the host.
    Tensorbench(tensorbench::Cli),
    /// A link that loses, delays, reorders, queues and marks frames.
    Linkrelay(linkrelay::Cli),
    /// Verbs as applications use them without a service.
    Nativebench(nativebench::Cli),
    /// The same verbs load on several devices over one link.
    Nicbench(nicbench::Cli),
    /// One daemon with many others.
    Peersbench(peersbench::Cli),
    /// One queue pair for each connection, on the software NIC.
    Qpbench(qpbench::Cli),
    /// A ping-pong of messages by reference.
    Refbench(refbench::Cli),
    /// Regions of RaaS as applications use them.
    Regionbench(regionbench::Cli),
    /// Structures and locks of `rmem` beside simpler ones.
    Remusbench(remusbench::Cli),
    /// Transports of `raas-rpc` beside gRPC.
    Rpcbench(rpcbench::Cli),
    /// The same loads over RaaS streams, kernel TCP, Unix sockets and bare rings.
    Sockbench(sockbench::Cli),
}

fn main() -> Result<()> {
    let program = Program::parse();
    // Who looks at threads (`bench handovers`, perf, ps) tells the programs apart by this name.
    let name = std::env::args().nth(1).context("a parsed command line has a subcommand")?;
    rustix::thread::set_name(&CString::new(name)?).context("naming the main thread")?;
    match program {
        Program::Agreebench(cli) => agreebench::main(cli),
        Program::Barehub(cli) => barehub::main(cli),
        Program::Barerelay(cli) => barerelay::main(cli),
        Program::Faultbench(cli) => faultbench::main(cli),
        Program::Grpcbench(cli) => grpcbench::main(cli),
        Program::Kernelbench(cli) => kernelbench::main(cli),
        Program::Tensorbench(cli) => tensorbench::main(cli),
        Program::Linkrelay(cli) => linkrelay::main(cli),
        Program::Nativebench(cli) => nativebench::main(cli),
        Program::Nicbench(cli) => nicbench::main(cli),
        Program::Peersbench(cli) => peersbench::main(cli),
        Program::Qpbench(cli) => qpbench::main(cli),
        Program::Refbench(cli) => refbench::main(cli),
        Program::Regionbench(cli) => regionbench::main(cli),
        Program::Remusbench(cli) => remusbench::main(cli),
        Program::Rpcbench(cli) => rpcbench::main(cli),
        Program::Sockbench(cli) => sockbench::main(cli),
    }
}

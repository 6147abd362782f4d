//! A ping-pong of messages by reference between two processes of one host: each lends a slice of its region, and gives
//! the other's back. Both ends touch the first and the last 8 bytes. The client prints one JSON object.

mod end;

use std::time::Duration;

use crate::trips;
use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves one client, then ends; prints `ready ADDRESS` first.
    Server(Load),
    /// Runs the ping-pong against a server and prints what it measured.
    Client(ClientArgs),
}

#[derive(Debug, Args)]
struct Load {
    /// Bytes of a slice, at least 16.
    #[arg(long)]
    size: u32,
}

#[derive(Debug, Args)]
struct ClientArgs {
    #[command(flatten)]
    load: Load,
    /// The server's address.
    #[arg(long)]
    to: String,
    /// Time of the test.
    #[arg(long)]
    seconds: f64,
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.role {
        Role::Server(load) => end::serve(load.size),
        Role::Client(args) => {
            let mut end = end::connect(&args.to, args.load.size)?;
            let mut report = trips::measure(Duration::from_secs_f64(args.seconds), || end.trip())?;
            report["path"] = end.path().into();
            report["size_bytes"] = args.load.size.into();
            println!("{report}");
            Ok(())
        }
    }
}

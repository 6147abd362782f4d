//! Members of replicated groups, and what a commit, a fail-over and a fence take. Each is a process that does what it
//! is told on its standard input, a line each: `role`; `load CLIENTS SECONDS RATE`; `first TOKEN`, which is the first
//! commit of this member when it leads; `fence HOST COUNT`; `write`, `accept` or `prepare SECONDS HOST...`. `bench
//! agree` starts them, each in a network namespace.

mod ballots;
mod etcd;
mod load;
mod member;

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A member of a group of `raas-group`.
    Member {
        /// Which one, from 1.
        #[arg(long)]
        me: u8,
        /// The hosts of all of them.
        #[arg(long = "host")]
        hosts: Vec<IpAddr>,
        /// Its name.
        #[arg(long)]
        group: String,
    },
    /// A client of an etcd member over one connection, or of several.
    Etcd {
        /// The member.
        #[arg(long)]
        at: SocketAddr,
    },
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.what {
        What::Member { me, hosts, group } => member::run(&group, me, &hosts),
        What::Etcd { at } => {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(etcd::run(at))
        }
    }
}

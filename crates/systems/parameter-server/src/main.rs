//! The parameter server as a program. Over RaaS it needs a daemon on each host (`raas daemon`).
//!
//! ```text
//! parameter-server serve --over raas --at 10.0.0.2:7300 --servers 4
//! parameter-server exchange --over raas --to 10.0.0.2:7300 --servers 4 --workers 4 --pairs 10,1000
//! parameter-server train --over raas --to 10.0.0.2:7300 --servers 4 --digits digits.csv --batches 8,64,512
//! ```
//!
//! With `--over tcp` the same over kernel TCP, and under `raas run` too. Servers say `ready` when all of them serve.

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use parameter_server::{Digits, Exchange, Over, Server, Training, exchange, train};
use serde_json::json;

#[derive(Debug, Parser)]
#[command(name = "parameter-server", about = "A small parameter server over kernel TCP and over RaaS")]
enum Cli {
    /// Serves until it is ended.
    Serve {
        /// The first server's address; the others have the ports behind it.
        #[arg(long)]
        at: SocketAddr,
        /// Keys that each server holds.
        #[arg(long, default_value_t = 16_384)]
        keys: u64,
        #[command(flatten)]
        common: Common,
    },
    /// Work for the servers.
    #[command(flatten)]
    Work(Work),
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Pushes pairs and pulls them again, checks the sums, and prints a line of JSON for each number of pairs.
    Exchange {
        /// Pairs of a push and of a pull.
        #[arg(long, value_delimiter = ',', default_value = "1000")]
        pairs: Vec<u64>,
        /// Rounds of a push and a pull.
        #[arg(long, default_value_t = 1000)]
        rounds: u32,
        #[command(flatten)]
        to: To,
    },
    /// Trains on images of digits and tests the model, and prints a line of JSON for each size of batches.
    Train {
        /// Images: lines of 64 numbers from 0 to 16, and the digit.
        #[arg(long)]
        digits: PathBuf,
        /// Images between a pull and its push.
        #[arg(long, value_delimiter = ',', default_value = "32")]
        batches: Vec<usize>,
        /// How often each image is used.
        #[arg(long, default_value_t = 20)]
        epochs: u32,
        /// How far a step goes along the gradient.
        #[arg(long, default_value_t = 0.5)]
        rate: f32,
        #[command(flatten)]
        to: To,
    },
}

#[derive(Debug, Args)]
struct To {
    /// The first server's address; the others have the ports behind it.
    #[arg(long)]
    to: SocketAddr,
    /// Workers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// What carries the connections.
    #[arg(long, value_enum)]
    over: Carrier,
    /// Servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    servers: u16,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Carrier {
    /// Kernel TCP.
    Tcp,
    /// RaaS, by the daemon of this host.
    Raas,
}

impl Common {
    fn over(&self) -> Result<Over, raas::SessionError> {
        Ok(match self.over {
            Carrier::Tcp => Over::Tcp,
            Carrier::Raas => Over::Raas(raas::Session::global()?),
        })
    }

    /// Addresses of all servers.
    fn addresses(&self, first: SocketAddr) -> Result<Vec<SocketAddr>, String> {
        let port = |n: u16| first.port().checked_add(n).ok_or(format!("{first}: no port is left for server {n}"));
        (0..self.servers).map(|n| Ok(SocketAddr::new(first.ip(), port(n)?))).collect()
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("parameter-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), Box<dyn Error>> {
    match cli {
        Cli::Serve { at, keys, common } => {
            let over = common.over()?;
            for at in common.addresses(at)? {
                println!("serving {}", Server::start(&over, at, keys)?.address());
            }
            println!("ready");
            std::io::stdout().flush()?;
            loop {
                std::thread::park();
            }
        }
        Cli::Work(Work::Exchange { pairs, rounds, to }) => {
            let (over, servers) = (to.common.over()?, to.common.addresses(to.to)?);
            for pairs in pairs {
                let took = exchange(&over, &servers, Exchange { workers: to.workers.into(), pairs, rounds })?;
                let us = took.as_secs_f64() * 1e6 / f64::from(rounds);
                println!("{}", json!({ "pairs": pairs, "rounds": rounds, "us_per_round": us }));
            }
            Ok(())
        }
        Cli::Work(Work::Train { digits, batches, epochs, rate, to }) => {
            let (over, servers) = (to.common.over()?, to.common.addresses(to.to)?);
            let digits = Digits::read(&digits)?;
            for batch in batches {
                let wanted = Training { workers: to.workers.into(), batch, epochs, rate };
                let trained = train(&over, &servers, &digits, wanted)?;
                let seconds = trained.took.as_secs_f64();
                println!("{}", json!({ "batch": batch, "seconds": seconds, "accuracy": trained.accuracy }));
            }
            Ok(())
        }
    }
}

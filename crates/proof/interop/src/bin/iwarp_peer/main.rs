//! Our TCP wire as one end of a connection whose other end is the kernel's siw: crate `iwarp` on a plain TCP socket, without
//! the software NIC.
//!
//! `serve` and `drive` are the two roles of the exercise that tests/vm/siw-app describes and plays on siw. `rping-server`,
//! `rping-client` and `perftest-server` speak the protocols of those programs. Each case is one line,
//! `PASS name` or `FAIL name: reason`. It runs in the test VM: `cargo xtask vm --suite siw-interop`.
#![forbid(unsafe_code)]

mod exercise;
mod host;
mod perftest;
mod rping;
mod wire;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "One end of a connection with the kernel's software iWARP")]
enum Role {
    /// Answers the exercise: one port and one connection a case.
    Serve {
        /// Address to listen at.
        address: IpAddr,
        /// Port of the first case.
        port: u16,
        /// `NAME:KIND` of each case.
        #[arg(required = true)]
        cases: Vec<String>,
    },
    /// Drives the exercise.
    Drive {
        /// Address of the server.
        address: IpAddr,
        /// Port of the first case.
        port: u16,
        /// `NAME:KIND` of each case.
        #[arg(required = true)]
        cases: Vec<String>,
    },
    /// The server of rping, for one client.
    RpingServer(rping::Options),
    /// The client of rping.
    RpingClient(rping::Options),
    /// The server of a bandwidth program of perftest, for one client.
    PerftestServer(perftest::Options),
}

fn main() -> Result<ExitCode> {
    let good = match Role::parse() {
        Role::Serve { address, port, cases } => serve(address, port, &cases)?,
        Role::Drive { address, port, cases } => drive(address, port, &cases)?,
        Role::RpingServer(options) => told("rping-server", &rping::serve(&options)),
        Role::RpingClient(options) => told("rping-client", &rping::drive(&options)),
        Role::PerftestServer(options) => told("perftest-server", &perftest::serve(&options)),
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn told(name: &str, outcome: &Result<String>) -> bool {
    match outcome {
        Ok(said) => println!("PASS {name} ({said})"),
        Err(error) => println!("FAIL {name}: {error:#}"),
    }
    outcome.is_ok()
}

/// The cases with their ports.
fn numbered(port: u16, cases: &[String]) -> Result<Vec<(&str, &str, u16)>> {
    let split = |(port, case)| {
        let (name, kind) = str::split_once(case, ':').with_context(|| format!("{case} is not NAME:KIND"))?;
        Ok((name, kind, port))
    };
    (port..).zip(cases.iter().map(String::as_str)).map(split).collect()
}

fn drive(address: IpAddr, port: u16, cases: &[String]) -> Result<bool> {
    let mut good = true;
    for (name, kind, port) in numbered(port, cases)? {
        good &= told(name, &exercise::drive(SocketAddr::new(address, port), kind));
    }
    Ok(good)
}

/// All cases at a time, since the driver comes to each in its turn.
fn serve(address: IpAddr, port: u16, cases: &[String]) -> Result<bool> {
    let mut listening = vec![];
    for (name, kind, port) in numbered(port, cases)? {
        let listener = TcpListener::bind((address, port)).with_context(|| format!("port {port}"))?;
        println!("listening {port}");
        listening.push((name, kind, listener));
    }
    std::thread::scope(|scope| {
        let start = |(name, kind, listener)| scope.spawn(move || told(name, &exercise::serve(&listener, kind)));
        let running: Vec<_> = listening.into_iter().map(start).collect();
        let mut good = true;
        for case in running {
            let Ok(passed) = case.join() else { bail!("a case panicked") };
            good &= passed;
        }
        Ok(good)
    })
}

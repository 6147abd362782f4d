//! The same loads over RaaS streams, kernel TCP, Unix sockets and bare rings: ping-pong, streams of writes, and many
//! connections. One process is the server, one the client; what each prints is one JSON object. Which rival runs when
//! is for `cargo xtask bench`.

mod link;
mod load;
mod many;
mod opens;
mod streams;
mod wire;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves one client, then ends; prints `ready ADDRESS` first.
    Server(ServerArgs),
    /// Runs one test against a server and prints what it measured.
    Client(ClientArgs),
}

/// How bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// A RaaS stream; the daemon's socket is `$RAAS_SOCKET`.
    Raas,
    /// Kernel TCP: cubic, no delay.
    Tcp,
    /// Kernel TCP: bbr, no delay.
    TcpBbr,
    /// A Unix stream socket.
    Unix,
    /// A bare ring in shared memory, or one toward a bare relay.
    Bare,
}

#[derive(Debug, Args)]
struct ServerArgs {
    #[arg(long, value_enum)]
    transport: Transport,
    /// Address and port (0: any free one), or a path. For `bare`: `new`, or the path that a relay printed.
    #[arg(long)]
    at: String,
    /// Of `bare`: bytes of a new ring, a power of two.
    #[arg(long, default_value_t = 64 << 10)]
    ring_bytes: u64,
    /// Ask the kernel again and again instead of waiting in it.
    #[arg(long)]
    busy: bool,
}

#[derive(Debug, Args)]
struct ClientArgs {
    #[arg(long, value_enum)]
    transport: Transport,
    /// The server's address or path.
    #[arg(long)]
    to: String,
    #[arg(long)]
    busy: bool,
    #[arg(long, value_enum)]
    test: Test,
    /// Bytes of a message.
    #[arg(long)]
    size: u32,
    /// Time of the test, of `many` the time of each half of a round.
    #[arg(long)]
    seconds: f64,
    /// Of `bw`: so many messages, whatever time they take.
    #[arg(long)]
    messages: Option<u64>,
    /// Of `streams`: seconds before those that are measured.
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// Of `many`, `hold`, `flood` and `streams`: connections. Of `opens`: so many at a time.
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Of `many`: connections of the other half of each round.
    #[arg(long, default_value_t = 1)]
    base: u32,
    /// Of `many`: rounds.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Of `bw`: a line `measuring` when the first byte is about to be written, and `measured` when the last has arrived.
    #[arg(long)]
    announce: bool,
    /// Other processes whose processor time belongs to the test, such as daemons.
    #[arg(long, value_delimiter = ',')]
    cpu_of: Vec<u32>,
}

/// What to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// Ping-pong.
    Lat,
    /// A stream of writes in one direction; small ones make a rate of messages.
    Bw,
    /// Messages on many connections in turn, beside a few.
    Many,
    /// Opens connections, carries 64 KiB each way on each, and holds them until stdin ends.
    Hold,
    /// Messages on many connections in turn, until stdin ends; answers each line on stdin with `messages N`.
    Flood,
    /// Opens connections, uses each once and closes it, again and again; says `warm`, and goes on at a line on stdin.
    Opens,
    /// Streams in one direction on connections that are all written at the same time, measured where they are read.
    Streams,
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.role {
        Role::Server(args) => {
            let listener = link::Listener::bind(args.transport, &args.at, args.busy, args.ring_bytes)?;
            println!("ready {}", listener.address()?);
            load::serve(&listener)
        }
        Role::Client(args) => {
            let (transport, address, busy) = (args.transport, args.to.clone(), args.busy);
            let to = move || link::Link::connect(transport, &address, busy);
            let millis = |seconds: f64| (seconds * 1e3) as u32;
            let spec = wire::Spec {
                test: args.test,
                size_bytes: args.size,
                connections: args.connections,
                warm_up_ms: millis(args.warm_up),
                measured_ms: millis(args.seconds),
            };
            let duration = Duration::from_secs_f64(args.seconds);
            let one = matches!(args.test, Test::Lat | Test::Bw);
            anyhow::ensure!(one || args.transport != Transport::Bare, "a bare ring carries one connection");
            let report = match args.test {
                Test::Lat | Test::Bw => {
                    let until = args.messages.map_or(load::Until::Time(duration), load::Until::Messages);
                    load::run(&to()?, spec, until, load::Around { cpu_of: &args.cpu_of, announce: args.announce })?
                }
                Test::Many => many::compare(&to, spec, duration, args.base, args.rounds)?,
                Test::Hold => return many::hold(&to, spec),
                Test::Flood => return many::flood(&to, spec),
                Test::Opens => opens::run(args.transport, &args.to, spec, duration)?,
                Test::Streams => streams::run(&(std::sync::Arc::new(to) as streams::Connect), spec)?,
            };
            println!("{report}");
            Ok(())
        }
    }
}

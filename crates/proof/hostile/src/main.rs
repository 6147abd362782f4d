//! `hostile`: the judges of stage `hostile`, and the programs that attack daemons for them.
//!
//! Owns the command line. The last line of a judge is `hostile: seed N`, with which it does the same again.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand, ValueEnum as _};
use hostile::descriptors::stranger::Door;
use hostile::host::Program;
use hostile::namespace::Entered;
use hostile::restarts::Flow;
use hostile::tenant::{Neighbourhood, Tenant};
use hostile::verdict::Verdict;
use verbs::{Wire, WirePolicy};

#[derive(Debug, Parser)]
#[command(name = "hostile", about = "Misbehaves, and judges what daemons do about it")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

/// A member's place in a group.
#[derive(Debug, Args)]
struct Seat {
    /// Control socket of its daemon.
    #[arg(long)]
    socket: PathBuf,
    /// Which member.
    #[arg(long)]
    me: u8,
    /// The hosts of all members, in their order.
    #[arg(long)]
    host: Vec<IpAddr>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// A hostile tenant beside polite ones.
    Siege(Judge),
    /// Applications and daemons killed at every step of connect, transfer and close.
    Kills(Judge),
    /// Tenants whose kernels loop, trap and ask out of bounds, beside polite programs.
    Kernels(Judge),
    /// Strangers on the network.
    Network(Judge),
    /// Requests with their largest numbers, beside a polite pair.
    Numbers(Judge),
    /// Requests of several users that are drawn, with numbers at their bounds and now and then damaged, beside a polite
    /// pair.
    Requests {
        #[command(flatten)]
        judge: Judge,
        /// Requests of all users together.
        #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
    },
    /// One of these users.
    Asker {
        /// Which user it becomes.
        #[arg(long)]
        uid: u32,
        /// Decides what it says.
        #[arg(long)]
        seed: u64,
        /// Requests.
        #[arg(long)]
        count: u64,
        /// Control socket of the daemon that is attacked.
        #[arg(long)]
        socket: PathBuf,
        /// Its host.
        #[arg(long)]
        host: IpAddr,
        /// A polite listener at another host.
        #[arg(long)]
        far: SocketAddr,
    },
    /// Strangers, somebody between two daemons, and applications that lie, at the TCP connections of streams of bulk.
    Direct(Judge),
    /// An ordinary user of a peer's host who forges packets of the peer, in network namespaces.
    Forger(Judge),
    /// The forger itself: does what its standard input says.
    Forge {
        /// In whose name.
        #[arg(long)]
        from: std::net::Ipv4Addr,
        /// To which device.
        #[arg(long)]
        to: SocketAddr,
        /// Decides the content.
        #[arg(long)]
        seed: u64,
    },
    /// Descriptors of every kind through every door of the control socket.
    Descriptors(Judge),
    /// Programs that take of everything as much as a daemon gives them, and keep it.
    Memory(Judge),
    /// Such a program: takes, says what it has, and waits for its standard input.
    Hoarder {
        /// Which user it becomes.
        #[arg(long)]
        uid: u32,
        /// Control socket of the daemon that is attacked.
        #[arg(long)]
        socket: PathBuf,
        /// Its host.
        #[arg(long)]
        host: IpAddr,
        /// A polite listener at another host.
        #[arg(long)]
        far: SocketAddr,
        /// Decides what it takes, and in which order.
        #[arg(long)]
        seed: u64,
    },
    /// Programs of one user that attach and go without end.
    Storm(Judge),
    /// These programs, until they are killed.
    Stormer {
        /// Which user they are of.
        #[arg(long)]
        uid: u32,
        /// Control socket of the daemon that is attacked.
        #[arg(long)]
        socket: PathBuf,
        /// A file for how many came in.
        #[arg(long)]
        count: PathBuf,
        /// Decides what they are and how many come at a time.
        #[arg(long)]
        seed: u64,
    },
    /// A group of hosts in network namespaces, whose programs, daemons and links fail.
    Groups {
        #[command(flatten)]
        judge: Judge,
        /// Faults of each kind.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        /// Hosts.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
        hosts: u8,
        /// What goes wrong [default: every kind]
        #[arg(long)]
        kind: Vec<hostile::groups::Kind>,
        /// Acknowledgements are of files too, whatever goes wrong; else where power goes alone
        #[arg(long)]
        synced: bool,
    },
    /// A member of it.
    Member {
        #[command(flatten)]
        seat: Seat,
        /// For how long a leader answers reads by itself.
        #[arg(long)]
        lease_ms: u64,
        /// Where its file is, if it has one.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Somebody in a member's place, who lies.
    Liar {
        #[command(flatten)]
        seat: Seat,
        /// Which lie.
        #[arg(long)]
        lie: hostile::groups::liar::Lie,
        /// Decides the rest.
        #[arg(long)]
        seed: u64,
    },
    /// Regions with one writer, taken over from writers that run or stand still.
    Writers {
        #[command(flatten)]
        judge: Judge,
        /// Take-overs.
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(4..))]
        count: u32,
    },
    /// Such a writer.
    Writer {
        /// Control socket of its daemon.
        #[arg(long)]
        socket: PathBuf,
        /// The host of the region.
        #[arg(long)]
        host: IpAddr,
        /// By which it takes the region over.
        #[arg(long)]
        term: u64,
    },
    /// Tensors of a pool that come and go, read while readers, owners and daemons end.
    Tensors {
        #[command(flatten)]
        judge: Judge,
        /// Tries of all kinds together.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(8..))]
        count: u64,
    },
    /// The owner of such a pool.
    TensorOwner {
        /// Control socket of its daemon.
        #[arg(long)]
        socket: PathBuf,
        /// Decides what it makes.
        #[arg(long)]
        seed: u64,
    },
    /// A reader of it.
    TensorReader {
        /// Control socket of its daemon.
        #[arg(long)]
        socket: PathBuf,
        /// The host of the pool.
        #[arg(long)]
        host: IpAddr,
        /// Decides what it asks for.
        #[arg(long)]
        seed: u64,
    },
    /// A stranger with a descriptor, which is its standard input.
    Stranger {
        /// Which user it becomes.
        #[arg(long)]
        uid: u32,
        /// Where it sends the descriptor.
        #[arg(long)]
        door: Door,
        /// Control socket of the daemon that is attacked.
        #[arg(long)]
        socket: PathBuf,
    },
    /// Transfers of one file each, none of which may be reported otherwise than it went.
    Transfers {
        #[command(flatten)]
        judge: Judge,
        /// Transfers between two hosts, and as many within one.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
    },
    /// Daemons killed and started again under streams, messages, datagrams and regions: no byte may be lost or doubled.
    Restarts {
        #[command(flatten)]
        judge: Judge,
        /// Deaths.
        #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
    },
    /// Sends through daemons that die, until its standard input ends.
    FlowFrom {
        /// stream, messages, regions or datagrams
        #[arg(long)]
        flow: Flow,
        /// Control socket of its daemon.
        #[arg(long)]
        socket: PathBuf,
        /// Where somebody receives.
        #[arg(long)]
        to: SocketAddr,
        /// Decides what is sent.
        #[arg(long)]
        seed: u64,
    },
    /// Receives what that sends.
    FlowTo {
        /// stream, messages, regions or datagrams
        #[arg(long)]
        flow: Flow,
        /// Control socket of its daemon.
        #[arg(long)]
        socket: PathBuf,
        /// Its host.
        #[arg(long)]
        ip: IpAddr,
    },
    /// An application that stops at a step and waits for its end.
    Victim {
        /// The step.
        #[arg(long)]
        step: String,
        /// Control socket of its daemon.
        #[arg(long)]
        socket: PathBuf,
        /// A listener at another host.
        #[arg(long)]
        far: SocketAddr,
        /// A listener at this host.
        #[arg(long)]
        near: SocketAddr,
    },
    /// A tenant whose kernels misbehave.
    KernelTenant {
        #[arg(long)]
        seed: u64,
        /// How long.
        #[arg(long)]
        millis: u64,
        /// Control socket of its daemon.
        #[arg(long)]
        socket: PathBuf,
        /// The host whose daemon is attacked.
        #[arg(long)]
        host: IpAddr,
        /// It makes the region, and installs the kernels.
        #[arg(long)]
        owner: bool,
    },
    /// The hostile tenant itself.
    Tenant {
        #[arg(long)]
        seed: u64,
        /// Number of the siege's round, from 0 on.
        #[arg(long)]
        round: usize,
        /// How long.
        #[arg(long)]
        millis: u64,
        /// Control socket of the daemon that is attacked.
        #[arg(long)]
        socket: PathBuf,
        /// Control socket of the daemon of another host.
        #[arg(long)]
        far_socket: PathBuf,
        /// A polite listener there.
        #[arg(long)]
        far: SocketAddr,
        /// A polite listener here.
        #[arg(long)]
        near: SocketAddr,
    },
}

#[derive(Debug, clap::Args)]
struct Judge {
    /// The program `raas`.
    #[arg(long)]
    raas: PathBuf,
    /// What may carry the lanes of the daemons: roce, iwarp, or auto for what the daemons choose
    #[arg(long, default_value_t)]
    wire: WirePolicy,
    /// Engines of each daemon
    #[arg(long, default_value_t = 1)]
    engines: u32,
    /// Decides the choices of what misbehaves [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().task {
        Task::Siege(judge) => judged(&judge, hostile::siege::run),
        Task::Kills(judge) => judged(&judge, hostile::kills::run),
        Task::Kernels(judge) => judged(&judge, hostile::kernels::run),
        Task::Numbers(judge) => judged(&judge, hostile::numbers::run),
        Task::Requests { judge, count } => {
            judged(&judge, |raas, seed, verdict| hostile::requests::run(raas, seed, count, verdict))
        }
        Task::Asker { uid, seed, count, socket, host, far } => {
            println!("{}", hostile::requests::asker::run(&socket, uid, host, far, seed, count)?);
            Ok(ExitCode::SUCCESS)
        }
        Task::Network(judge) => judged(&judge, hostile::network::run),
        Task::Descriptors(judge) => judged(&judge, hostile::descriptors::run),
        Task::Memory(judge) => judged(&judge, hostile::memory::run),
        Task::Hoarder { uid, socket, host, far, seed } => {
            hostile::memory::hoarder::run(&socket, uid, (host, far), seed)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Storm(judge) => judged(&judge, hostile::storm::run),
        Task::Stormer { uid, socket, count, seed } => {
            hostile::storm::storm(&socket, uid, &count, seed)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Groups { judge, count, hosts, kind, synced } => {
            let all = hostile::groups::Kind::value_variants();
            let kinds = if kind.is_empty() { all.to_vec() } else { kind };
            let no_namespaces = match hostile::namespace::enter()? {
                Entered::Inside => None,
                Entered::Ended(status) => return Ok(exit_code(status)),
                Entered::Impossible(why) => Some(why),
            };
            let plan = hostile::groups::Plan { hosts: hosts.into(), kinds, count, is_synced: synced, no_namespaces };
            judged(&judge, |raas, seed, verdict| hostile::groups::run(raas, seed, &plan, verdict))
        }
        Task::Member { seat: Seat { socket, me, host }, lease_ms, dir } => {
            hostile::groups::member::run(&socket, me, &host, Duration::from_millis(lease_ms), dir)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Liar { seat: Seat { socket, me, host }, lie, seed } => {
            hostile::groups::liar::run(&socket, me, &host, lie, seed)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Writers { judge, count } => {
            judged(&judge, |raas, seed, verdict| hostile::writers::run(raas, seed, count, verdict))
        }
        Task::Writer { socket, host, term } => {
            hostile::writers::write(&socket, host, term)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Tensors { judge, count } => {
            judged(&judge, |raas, seed, verdict| hostile::tensors::run(raas, seed, count, verdict))
        }
        Task::TensorOwner { socket, seed } => {
            hostile::tensors::owner::run(&socket, seed)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::TensorReader { socket, host, seed } => {
            hostile::tensors::reader::run(&socket, host, seed)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Stranger { uid, door, socket } => {
            println!("{}", hostile::descriptors::stranger::run(&socket, uid, door)?);
            Ok(ExitCode::SUCCESS)
        }
        Task::Direct(judge) if !judge.wire.allows(Wire::Iwarp) => {
            println!(
                "SKIP direct: streams have TCP connections of their own beside lanes on TCP, not on {}",
                judge.wire
            );
            println!("hostile: seed {}", judge.seed.unwrap_or_default());
            Ok(ExitCode::SUCCESS)
        }
        Task::Direct(judge) => judged(&judge, hostile::direct::run),
        Task::Forger(judge) if !judge.wire.allows(Wire::Roce) => {
            // Forged segments of TCP are the kernel's to refuse, by numbers that it does not tell. What an ordinary
            // user can send there is a connection of his own, which is what judge `network` brings.
            println!("SKIP forger: it forges packets of RoCEv2, and --wire {} has none", judge.wire);
            println!("hostile: seed {}", judge.seed.unwrap_or_default());
            Ok(ExitCode::SUCCESS)
        }
        Task::Forger(judge) => match hostile::namespace::enter()? {
            Entered::Inside => judged(&judge, hostile::forger::run),
            Entered::Ended(status) => Ok(exit_code(status)),
            Entered::Impossible(why) => {
                println!("SKIP forger: {why}");
                println!("hostile: seed {}", judge.seed.unwrap_or_default());
                Ok(ExitCode::SUCCESS)
            }
        },
        Task::Forge { from, to, seed } => {
            hostile::forger::hand::run(from, to, seed)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Transfers { judge, count } => {
            judged(&judge, |raas, seed, verdict| hostile::transfers::run(raas, seed, count, verdict))
        }
        Task::Restarts { judge, count } => {
            judged(&judge, |raas, seed, verdict| hostile::restarts::run(raas, seed, count, verdict))
        }
        Task::FlowFrom { flow, socket, to, seed } => {
            hostile::restarts::send(flow, &socket, to, seed).with_context(|| format!("{flow:?} to {to}"))?;
            Ok(ExitCode::SUCCESS)
        }
        Task::FlowTo { flow, socket, ip } => {
            hostile::restarts::receive(flow, &socket, ip).with_context(|| format!("{flow:?} at {ip}"))?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Victim { step, socket, far, near } => {
            hostile::victim::run(&step, hostile::breach::Target { socket: &socket, far, near })?;
            Ok(ExitCode::SUCCESS)
        }
        Task::KernelTenant { seed, millis, socket, host, owner } => {
            println!("{}", hostile::kernels::tenant::run(&socket, host, owner, seed, Duration::from_millis(millis))?);
            Ok(ExitCode::SUCCESS)
        }
        Task::Tenant { seed, round, millis, socket, far_socket, far, near } => {
            let home = Neighbourhood { socket, far_socket, far, near };
            match Tenant::new(seed, round, home).misbehave(Duration::from_millis(millis)) {
                Ok(done) => {
                    let done: Vec<String> = done.iter().map(|(name, times)| format!("{name} {times}")).collect();
                    println!("{}", done.join(", "));
                    Ok(ExitCode::SUCCESS)
                }
                Err((misdeed, error)) => {
                    println!("{misdeed}: {error}");
                    Ok(ExitCode::FAILURE)
                }
            }
        }
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn judged(judge: &Judge, run: impl FnOnce(Program<'_>, u64, &mut Verdict) -> Result<()>) -> Result<ExitCode> {
    // Any number will do, as long as it is another one each time and people can type it.
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64 % 1_000_000_000);
    let seed = judge.seed.unwrap_or_else(fresh);
    let mut verdict = Verdict::default();
    let ended = run(Program { path: &judge.raas, wire: judge.wire, engines: judge.engines }, seed, &mut verdict);
    if let Err(error) = &ended {
        verdict.case("the judge came to its end", Err(anyhow::anyhow!("{error:#}")));
    }
    println!("hostile: seed {seed}");
    Ok(if verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

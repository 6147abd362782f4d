//! `raas region`: which region, and what is to be done with it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::SocketArgs;

/// What to do with a region.
#[derive(Debug, Subcommand)]
pub(crate) enum RegionCommand {
    /// Make a region that stays until it is revoked, and print its key
    Create(RegionCreateArgs),
    /// Open a region, read some of it or change 8 bytes, and print what was found
    Open(RegionOpenArgs),
    /// List the regions of this host
    Ls(RegionLsArgs),
    /// End all handles to a region of this host but its owner's; a region without an owner ends
    Revoke(RegionRevokeArgs),
}

/// The key of a region.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Key, as 32 hexadecimal digits; others can see it in the list of processes, so a file is better
    #[arg(long, value_name = "HEX", conflicts_with = "key_file")]
    pub(crate) key: Option<String>,
    /// File that has the key, as 32 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

/// `raas region create`.
#[derive(Debug, Args)]
pub(crate) struct RegionCreateArgs {
    /// Name: 1 to 64 bytes
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Size in bytes; K, M, G and T are units of 1024
    #[arg(value_name = "BYTES", value_parser = super::values::region_bytes)]
    pub(crate) bytes: u64,
    /// What those may do who open it: some of read, write, atomic, with commas between
    #[arg(long, value_name = "ACCESS", default_value = "read,write,atomic")]
    pub(crate) access: String,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Of huge pages
    #[arg(long)]
    pub(crate) huge_pages: bool,
    /// Programs of other users may open it too, if they have the key
    #[arg(long)]
    pub(crate) other_users: bool,
    /// Beside the owner one program writes it at a time: the last that took it over
    #[arg(long)]
    pub(crate) single_writer: bool,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas region open`.
#[derive(Debug, Args)]
pub(crate) struct RegionOpenArgs {
    /// Name of the region
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Host of the region [default: this one]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Where to read, in bytes
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub(crate) offset: u64,
    /// How many bytes to read
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) read: u32,
    /// Add to the 8 bytes at --offset, in one step with reading them
    #[arg(long, value_name = "N", conflicts_with = "read")]
    pub(crate) add: Option<u64>,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas region ls`.
#[derive(Debug, Args)]
pub(crate) struct RegionLsArgs {
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas region revoke`.
#[derive(Debug, Args)]
pub(crate) struct RegionRevokeArgs {
    /// Name of the region
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// File with the key from then on, as 32 hexadecimal digits [default: the key stays]
    #[arg(long, value_name = "FILE")]
    pub(crate) new_key_file: Option<PathBuf>,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

//! `raas group`: which groups, and what is to be said of them.

use clap::{Args, Subcommand};

use super::{KeyArgs, SocketArgs};

/// What to do with groups.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// Show term, leader, commit and members of the groups that this host has a memory of
    Status(GroupStatusArgs),
}

/// `raas group status`.
#[derive(Debug, Args)]
pub(crate) struct GroupStatusArgs {
    /// Only this group
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Host of a member, where this one has none [default: this one]
    #[arg(long, value_name = "HOST", requires = "name")]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

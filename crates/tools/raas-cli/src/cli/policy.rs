//! `raas policy`: which file.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do with a policy.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Say whether a policy's file can be used, and what it gives to whom; no daemon is asked
    Check(PolicyCheckArgs),
}

/// `raas policy check`.
#[derive(Debug, Args)]
pub(crate) struct PolicyCheckArgs {
    /// The file, as the configuration's `policy` names it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Say whose program this process is, too
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

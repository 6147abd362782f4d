//! `raas verbs`: which program, and how.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::{Args, ValueEnum};

/// `raas verbs`.
#[derive(Debug, Args)]
pub(crate) struct VerbsArgs {
    /// Addresses of the device, which are its GIDs in this order [default: all of this network namespace]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) address: Vec<IpAddr>,
    /// Say on stderr why a verbs call was refused: errno alone says little
    #[arg(long)]
    pub(crate) why: bool,
    /// Report as JSON on stdout when the program has ended; what the program prints goes to stderr then
    #[arg(long)]
    pub(crate) json: bool,
    /// The process that lends places at the UDP port; only the library starts it
    #[arg(long, hide = true, exclusive = true)]
    pub(crate) agent: Option<Agent>,
    /// Program, looked for in $PATH, and its arguments: everything from the program on is its own
    #[arg(
        value_names = ["PROGRAM", "ARGS"],
        required_unless_present = "agent",
        num_args = 1..,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) words: Vec<OsString>,
}

/// What to do as the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Agent {
    /// Have another process serve, and end when it does.
    Start,
    /// Serve.
    Serve,
}

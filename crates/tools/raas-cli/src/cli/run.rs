//! `raas run`: which program, and how.

use std::ffi::OsString;

use clap::Args;

use super::SocketArgs;

/// `raas run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
    /// Refuse to start a program whose connections would all stay on kernel TCP (exit code 4), and to start one without
    /// a daemon (exit code 3)
    #[arg(long)]
    pub(crate) strict: bool,
    /// Say at the end how many connections the program had, by path and reason
    #[arg(long)]
    pub(crate) summary: bool,
    /// Program, looked for in $PATH, and its arguments: everything from the program on is its own
    #[arg(value_names = ["PROGRAM", "ARGS"], required = true, num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<OsString>,
}

//! `raas man` and `raas completions`: made from the command line's own types, so that they cannot say anything else.

use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use terminal::Failure;
use terminal::out;

/// Commands below commands at most.
const DEPTH_MAX: u32 = 3;

/// Prints raas(1), or writes a page for each command to `dir`.
pub(crate) fn man(dir: Option<&Path>) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let Some(dir) = dir else {
        return out::print(page(command)?).map(drop);
    };
    std::fs::create_dir_all(dir).map_err(|e| Failure::Usage(format!("{}: {e}", dir.display())))?;
    let mut names = Vec::new();
    write_pages(dir, command, DEPTH_MAX, &mut names)?;
    out::print(names.into_iter().map(|name| name + "\n").collect::<String>()).map(drop)
}

/// Prints the completions of one shell.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "raas", &mut text);
    out::print(text).map(drop)
}

fn page(command: Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    // A page is of a release; the commit stands in `raas --version`.
    let command = command.long_version(None::<&str>).version(env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok(text)
}

/// The command's page and those below it; `raas perf bw` has raas-perf-bw.1.
fn write_pages(dir: &Path, command: Command, depth: u32, names: &mut Vec<String>) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let below: Vec<Command> =
        command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help").cloned().collect();
    let file = format!("{name}.1");
    let path = dir.join(&file);
    std::fs::write(&path, page(command)?).map_err(|e| Failure::failed(path.display(), e))?;
    names.push(file);
    if depth > 0 {
        for command in below {
            write_pages(dir, command, depth - 1, names)?;
        }
    }
    Ok(())
}

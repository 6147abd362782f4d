//! Builds by Cargo, for stages and measurements. Owns their watchdog, their lines and their seconds. A build that takes
//! too long is said to be a build: it judged nothing.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::child::{self, Ended, Stream};
use crate::ledger::{self, Kind};
use crate::repo;

/// A cold build of everything, on a machine that is busy too.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
/// Last lines of a failed build that are in its error.
const SHOWN_LINES: usize = 40;

/// Runs one command of Cargo's that builds; what it says besides its progress is shown as it comes.
pub fn run(command: &mut Command) -> Result<Ended> {
    let ended = child::run(command, LIMIT, |stream, line| {
        if stream == Stream::Err && !repo::is_progress(line) {
            println!("{line}");
        }
    })?;
    ledger::spent(Kind::Compiling, ended.took);
    Ok(ended)
}

/// The same as [`run`], and nothing is shown: its lines are the caller's.
pub fn run_quiet(command: &mut Command) -> Result<Ended> {
    let ended = child::run_quiet(command, LIMIT)?;
    ledger::spent(Kind::Compiling, ended.took);
    Ok(ended)
}

/// The same as [`run`], which must succeed.
pub fn must(command: &mut Command) -> Result<()> {
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let ended = run(command)?;
    ensure!(ended.success(), "{}", failure(&words.join(" "), &ended));
    Ok(())
}

/// What is wrong with a build that did not succeed.
pub fn failure(words: &str, ended: &Ended) -> String {
    if ended.status.is_none() {
        return format!(
            "the build `cargo {words}` still compiled after {:.0} minutes and was ended: no test failed, the machine is too \
             slow or too busy for the watchdog of builds",
            ended.took.as_secs_f64() / 60.0
        );
    }
    let said = ended.text(Stream::Err);
    let lines: Vec<&str> = said.lines().filter(|line| !repo::is_progress(line)).collect();
    format!(
        "the build `cargo {words}`: {}\n{}",
        ended.describe(),
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_is_ended_is_said_to_be_a_build() {
        let ended = Ended { status: None, took: Duration::from_secs(600), lines: vec![] };
        let said = failure("build --workspace", &ended);
        assert!(said.contains("the build `cargo build --workspace` still compiled after 10 minutes"), "{said}");
        assert!(said.contains("no test failed"), "{said}");
    }

    #[test]
    fn a_build_that_fails_says_what_the_compiler_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo '   Compiling x v1' >&2; echo 'error: no such thing' >&2; exit 101"]);
        let said = must(&mut command).unwrap_err().to_string();
        let lines: Vec<&str> = said.lines().skip(1).collect();
        assert_eq!(lines, ["error: no such thing"]);
    }
}

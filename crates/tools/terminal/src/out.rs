//! What the command says on stdout and stderr. Stdout that cannot be written is an error. A reader that left (`| head`)
//! is no error, because it has what it wanted. Stderr that cannot be written never ends a command.

use std::fmt::Display;
use std::io::{self, Write};

use crate::Failure;

/// Whether anybody still reads stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The text was taken.
    Reads,
    /// The reader closed its end: more text would be for nobody.
    Left,
}

/// Writes `text` to stdout as it is.
pub fn print(text: impl AsRef<[u8]>) -> Result<Reader, Failure> {
    let mut stdout = io::stdout().lock();
    written(stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()))
}

/// Writes `text` and a newline to stdout.
pub fn line(text: impl Display) -> Result<Reader, Failure> {
    print(format!("{text}\n"))
}

/// What the outcome of a write to stdout means.
pub fn written(outcome: io::Result<()>) -> Result<Reader, Failure> {
    match outcome {
        Ok(()) => Ok(Reader::Reads),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Left),
        Err(e) => Err(Failure::failed("stdout", e)),
    }
}

/// Writes a line to stderr.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

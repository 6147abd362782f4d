//! A look at a daemon. Owns what belongs to one look, and that its parts are asked for one after the other.

use std::path::Path;
use std::time::{Duration, Instant};

use control::{ConnectionRow, Stat};
use raas::SessionError;

/// The state of a daemon, as it told it.
#[derive(Debug, Clone)]
pub struct Sample {
    /// When it was told.
    pub at: Instant,
    /// How long the daemon took.
    pub took: Duration,
    /// Device, lanes, resources, counters, applications.
    pub stat: Stat,
    /// Connections; empty if they were not asked for.
    pub connections: Vec<ConnectionRow>,
}

impl Sample {
    /// Asks the daemon at `socket` (None: as [`raas::Session::global`] finds it) for everything.
    pub fn ask(socket: Option<&Path>) -> Result<Self, SessionError> {
        let begin = Instant::now();
        let connections = raas::inspect::connections(socket)?;
        let sample = Self::ask_stat(socket)?;
        Ok(Self { took: begin.elapsed(), connections, ..sample })
    }

    /// As [`Self::ask`], without connections, of which there may be many.
    pub fn ask_stat(socket: Option<&Path>) -> Result<Self, SessionError> {
        let begin = Instant::now();
        let stat = raas::inspect::stat(socket)?;
        Ok(Self { at: Instant::now(), took: begin.elapsed(), stat, connections: Vec::new() })
    }
}

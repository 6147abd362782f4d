//! What can go wrong, for those who serve, who work, and who read digits.

use std::io;
use std::net::SocketAddr;

use raas::{BindError, ConnectError, RegionError};

use crate::wire::{PAIRS_MAX, WireError};

/// A server could not begin.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened at over TCP.
    #[error("cannot listen at {at}: {error}")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The same over RaaS.
    #[error("cannot listen at {at}: {error}")]
    Bind {
        /// The address.
        at: SocketAddr,
        /// Why.
        error: BindError,
    },
    /// The region that workers pull from cannot be made.
    #[error("cannot publish the values: {0}")]
    Region(#[from] RegionError),
    /// Nothing to hold, or too much.
    #[error("{keys} keys: a server holds 1 to {max}")]
    Keys {
        /// How many were asked for.
        keys: u64,
        /// How many there may be.
        max: u64,
    },
}

/// A worker's call failed. After any of these but `Refused`, `Order` and `KeyOutside` the worker must connect again.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// No connection.
    #[error("cannot connect to {to}: {error}")]
    Connect {
        /// The server.
        to: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The same over RaaS.
    #[error("cannot connect to {to}: {error}")]
    Reach {
        /// The server.
        to: SocketAddr,
        /// Why.
        error: ConnectError,
    },
    /// The connection broke.
    #[error("the connection to the server broke: {0}")]
    Broken(#[from] io::Error),
    /// The server ended the connection.
    #[error("the server ended the connection; is it still running?")]
    Ended,
    /// The server sent what is no reply to this request.
    #[error("the server's reply: {0}")]
    Reply(#[from] WireError),
    /// A region of the server's could not be read.
    #[error("pulling from the server's region: {0}")]
    Region(#[from] RegionError),
    /// The server refused the request, and changed nothing.
    #[error("the server refused: {0}")]
    Refused(String),
    /// No servers, or servers that do not belong together.
    #[error("server {number} holds {keys} keys, and the first one {first}: start them with the same number")]
    Uneven {
        /// Which one.
        number: usize,
        /// What it holds.
        keys: u64,
        /// What the first one holds.
        first: u64,
    },
    /// There must be one server.
    #[error("no server was named")]
    NoServer,
    /// Keys must ascend.
    #[error("key {key} comes after {before}: keys must ascend")]
    Order {
        /// The key.
        key: u64,
        /// The one before.
        before: u64,
    },
    /// No server has the key.
    #[error("key {key}: the servers hold {keys} keys together, from 0 on")]
    KeyOutside {
        /// The key.
        key: u64,
        /// How many there are.
        keys: u64,
    },
    /// Keys and values must be as many, and not too many.
    #[error("{keys} keys and {values} values: as many of both, and at most {PAIRS_MAX} for each server")]
    Pairs {
        /// Keys.
        keys: usize,
        /// Values.
        values: usize,
    },
    /// The sums of what was pushed are not what was pulled.
    #[error("key {key} is {found}, and {wanted} was pushed there")]
    Sum {
        /// The key.
        key: u64,
        /// What was pulled.
        found: f32,
        /// What the workers pushed.
        wanted: f32,
    },
    /// More than a value of 32 bits counts exactly.
    #[error("{rounds} rounds of {workers} workers: sums would not be exact; use fewer rounds")]
    Inexact {
        /// Rounds.
        rounds: u32,
        /// Workers.
        workers: usize,
    },
    /// No images, or a batch that is larger than a worker's share.
    #[error("batches of {batch} images, and a worker's share has {share}: use smaller batches, or fewer workers")]
    Batch {
        /// Images of a batch.
        batch: usize,
        /// Images of a worker.
        share: usize,
    },
}

/// The file of digits cannot be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DigitsError {
    /// It cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// A line is not 64 numbers from 0 to 16 and a digit.
    #[error("line {line}: not 64 numbers from 0 to 16, commas between, and then a digit")]
    Line {
        /// The line, from 1 on.
        line: usize,
    },
    /// Too few for a training and a test.
    #[error("{lines} images: at least {min} are needed")]
    Few {
        /// How many there are.
        lines: usize,
        /// How many must be.
        min: usize,
    },
}

raas::debug_says_the_words!(ServeError, WorkError, DigitsError);

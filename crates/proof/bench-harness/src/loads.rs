//! The measuring programs of `bench` in a place: servers that say where they listen, and clients that report.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::child::{self, Stream};
use serde_json::Value;

use super::place::{End, Place};
use super::process::{Beside, READY_WITHIN};

/// One of them at an end; the words begin with its name.
pub(crate) fn command(place: &Place, end: End, words: &[&str]) -> Command {
    place.command(end, &[&[place.program("bench").as_str()], words].concat())
}

/// A server, and the address at which it is ready.
pub(crate) fn serve(place: &Place, end: End, words: &[&str]) -> Result<(Beside, String)> {
    let mut server = Beside::start(&mut command(place, end, words))?;
    let to = server.wait_line("ready ", READY_WITHIN)?;
    Ok((server, to))
}

/// A server of streams over `transport`.
pub(crate) fn stream_server(place: &Place, transport: &str, at: &str) -> Result<(Beside, String)> {
    serve(place, End::Server, &["sockbench", "server", "--transport", transport, "--at", at])
}

/// A client of such a server, with the words of its test.
pub(crate) fn stream_client(place: &Place, transport: &str, to: &str, test: &[&str]) -> Command {
    let words = ["sockbench", "client", "--transport", transport, "--to", to, "--test"];
    command(place, End::Client, &[&words, test].concat())
}

/// A client to its end; the JSON of the last line that it printed.
pub(crate) fn report(client: &mut Command, limit: Duration) -> Result<Value> {
    let ended = child::run_quiet(client, limit)?;
    ensure!(ended.success(), "{client:?}: {}\n{}", ended.describe(), ended.text(Stream::Err));
    let out = ended.text(Stream::Out);
    let last = out.lines().last().with_context(|| format!("{client:?} printed nothing"))?;
    serde_json::from_str(last).with_context(|| format!("{client:?}: not JSON: {last}"))
}

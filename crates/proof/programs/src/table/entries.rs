//! The programs: what they need, how the server starts, and how its client runs and checks the data. They are described
//! in `tests/programs/table.toml`, whose head says how. Owns its form.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};
use harness::packages::Need;
use serde::Deserialize;

/// Where the descriptions are, and the files of their scripts.
pub(super) const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/programs");
/// Before each script.
const BEFORE: &str = ". $FILES/shell.sh\n";
/// The first program has this port and those that follow.
const PORT_FIRST: u16 = 21_000;
const PORTS_OF_ONE: u16 = 24;

/// A program of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) name: String,
    #[serde(default)]
    quick: bool,
    needs: Vec<String>,
    /// Programs of which connections must be seen over RaaS, where the page says that it works.
    #[serde(default)]
    pub(super) over: Vec<String>,
    /// The reason of connections that stay on TCP, where the page says so.
    pub(super) tcp: Option<String>,
    #[serde(default)]
    prepare: String,
    server: String,
    client: String,
    /// Other entries have other ports.
    #[serde(skip)]
    pub(super) port: u16,
}

/// What runs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Script {
    /// Once, before all servers.
    Prepare,
    Server,
    /// Fails if anything was not as it should be; may print `speed NUMBER UNIT`.
    Client,
}

impl Entry {
    /// Programs or files that it needs, each with its Debian package.
    pub(super) fn needs(&'static self) -> Vec<Need> {
        let need = |text: &'static str| text.rsplit_once(':').unwrap_or((text, text));
        self.needs.iter().map(|text| need(text)).collect()
    }

    pub(super) fn script(&self, script: Script) -> String {
        let text = match script {
            Script::Prepare => &self.prepare,
            Script::Server => &self.server,
            Script::Client => &self.client,
        };
        format!("{BEFORE}{text}")
    }

    /// Whether it runs without `--full` too: an event loop, threads, two processes that share a socket, a process for
    /// each connection, proxies and runtimes.
    pub(super) fn is_quick(&self) -> bool {
        self.quick
    }
}

/// All programs.
pub(super) fn entries() -> Result<&'static [Entry]> {
    static ENTRIES: OnceLock<Result<Vec<Entry>, String>> = OnceLock::new();
    let read = ENTRIES.get_or_init(|| {
        let path = Path::new(FILES).join("table.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()));
        text.and_then(|text| parse(&text)).map_err(|error| format!("{error:#}"))
    });
    read.as_deref().map_err(|error| anyhow!("{error}"))
}

fn parse(text: &str) -> Result<Vec<Entry>> {
    #[derive(Deserialize)]
    struct Table {
        program: Vec<Entry>,
    }
    let Table { mut program } = toml::from_str(text).context("table.toml")?;
    let mut port = PORT_FIRST;
    for at in 0..program.len() {
        let (before, [entry, ..]) = program.split_at_mut(at) else { break };
        ensure!(before.iter().all(|other| other.name != entry.name), "table.toml has {} twice", entry.name);
        ensure!(!entry.needs.is_empty(), "table.toml: {} needs nothing?", entry.name);
        entry.port = port;
        port = port.checked_add(PORTS_OF_ONE).context("too many programs")?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_some_of_it_is_quick() {
        let entries = entries().unwrap();
        assert!(entries.windows(2).all(|two| two[0].port + PORTS_OF_ONE == two[1].port));
        assert!(entries.iter().filter(|entry| entry.is_quick()).count() >= 6);
    }

    #[test]
    fn what_is_wrong_with_a_table_is_said() {
        let row = |name: &str, more: &str| {
            format!("[[program]]\nname = '{name}'\nneeds = ['a', '/b/c:d']\nserver = 's'\nclient = 'c'\n{more}")
        };
        let entries: &'static [Entry] = parse(&(row("a", "") + &row("b", "quick = true"))).unwrap().leak();
        assert_eq!(entries[1].needs(), [("a", "a"), ("/b/c", "d")]);
        assert_eq!((entries[0].is_quick(), entries[1].is_quick(), entries[1].port), (false, true, 21_024));
        assert!(entries[0].script(Script::Client).ends_with("\nc"));
        for wrong in [row("a", "") + &row("a", ""), row("a", "qick = true"), "program = []\nx".into()] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
    }
}

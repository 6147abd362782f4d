//! The page of programs, docs/use/run-programs.md: which work under `raas run`, and which do not yet. Owns its form.

use anyhow::{Context, Result};
use harness::repo::Repo;

use crate::place::Way;

const PAGE: &str = "docs/use/run-programs.md";
const NOT_YET: &str = "not yet: ";
const ON_TCP: &str = "on TCP: ";
const MAY_BE_ON_TCP: &str = "works, at times on TCP: ";

/// The rows of the page.
#[derive(Debug)]
pub(super) struct Promises {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    program: String,
    same_host: String,
    two_hosts: String,
}

/// What the page says of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Promise<'p> {
    /// Its data is right, and went over RaaS.
    Works,
    /// Its data is right, and stays on kernel TCP, for this reason.
    OnTcp(&'p str),
    /// Its data is right; a race decides over what it goes.
    MayBeOnTcp,
    /// It fails, for this reason.
    NotYet(&'p str),
}

impl Promises {
    pub(super) fn read(repo: &Repo) -> Result<Self> {
        let text = std::fs::read_to_string(repo.root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
        Ok(Self::parse(&text))
    }

    /// Rows of the form ``| `program` | version | same host | two hosts | speed |``.
    fn parse(text: &str) -> Self {
        let rows = text.lines().filter_map(|line| {
            let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix('|')?.split(" | ").map(str::trim).collect();
            let [program, _, same_host, two_hosts, _] = cells[..] else { return None };
            let own = |cell: &str| cell.to_owned();
            Some(Row { program: own(program.strip_suffix('`')?), same_host: own(same_host), two_hosts: own(two_hosts) })
        });
        Self { rows: rows.collect() }
    }

    /// What is promised of a program on the way; a program without a row works.
    pub(super) fn of(&self, program: &str, way: Way) -> Promise<'_> {
        let row = self.rows.iter().find(|row| row.program == program);
        let cell = row.map(|row| if way == Way::TwoHosts { &row.two_hosts } else { &row.same_host });
        let Some(cell) = cell else { return Promise::Works };
        if cell.starts_with(MAY_BE_ON_TCP) {
            return Promise::MayBeOnTcp;
        }
        match (cell.strip_prefix(NOT_YET), cell.strip_prefix(ON_TCP)) {
            (Some(why), _) => Promise::NotYet(why),
            (_, Some(why)) => Promise::OnTcp(why),
            _ => Promise::Works,
        }
    }

    /// Rows of programs that are not in the table, and programs without a row.
    pub(super) fn unknown(&self, names: &[&str]) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| !names.contains(&row.program.as_str()));
        let lacking = names.iter().filter(|name| !self.rows.iter().any(|row| row.program == **name));
        rows.map(|row| format!("{PAGE}: no program {}", row.program))
            .chain(lacking.map(|name| format!("{PAGE}: no row for {name}")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_is_promised() {
        let text = "| `nginx` | 1 | on TCP: it forks | works, at times on TCP: short | 1 x |\n| `redis` | 7.0 | works | not yet: it forks | 1.2 x |\n| no | row |\n";
        let page = Promises::parse(text);
        assert_eq!(page.of("redis", Way::SameHost), Promise::Works);
        assert_eq!(page.of("redis", Way::TwoHosts), Promise::NotYet("it forks"));
        assert_eq!(page.of("nginx", Way::SameHost), Promise::OnTcp("it forks"));
        assert_eq!(page.of("nginx", Way::TwoHosts), Promise::MayBeOnTcp);
        assert_eq!(page.of("other", Way::TwoHosts), Promise::Works);
        assert_eq!(page.unknown(&["redis", "nginx"]), [""; 0]);
        assert_eq!(page.unknown(&["redis", "socat"]).len(), 2);
    }
}

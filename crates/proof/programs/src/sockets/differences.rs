//! The page of differences, docs/use/run-differences.md: which case differs where, and why. Owns its form.

use anyhow::{Context, Result};
use harness::repo::Repo;

use crate::place::Way;

const PAGE: &str = "docs/use/run-differences.md";
/// Everywhere where connections go over RaaS.
const OVER_RAAS: &str = "over RaaS";
/// Wherever an end is under `raas run`.
const EVERYWHERE: &str = "everywhere";
/// Behind a place: a race decides, so it need not differ there.
const SOMETIMES: &str = " sometimes";

/// The rows of the page.
#[derive(Debug)]
pub(super) struct Differences {
    rows: Vec<Row>,
}

#[derive(Debug, PartialEq, Eq)]
struct Row {
    /// A case, or several, where a star stands for any part of their names.
    case: String,
    places: String,
    why: String,
}

impl Row {
    fn names(&self, case: &str) -> bool {
        match self.case.split_once('*') {
            Some((begin, end)) => {
                case.len() >= begin.len() + end.len() && case.starts_with(begin) && case.ends_with(end)
            }
            None => case == self.case,
        }
    }

    /// Whether it speaks of the way, and then whether the case must differ there.
    fn holds(&self, way: Way) -> Option<bool> {
        self.places.split(", ").find_map(|told| {
            let place = told.strip_suffix(SOMETIMES).unwrap_or(told);
            let is_here = match place {
                EVERYWHERE => true,
                OVER_RAAS => way.is_raas(),
                _ => place == way.name(),
            };
            is_here.then_some(place == told)
        })
    }
}

impl Differences {
    pub(super) fn read(repo: &Repo) -> Result<Self> {
        let text = std::fs::read_to_string(repo.root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
        Ok(Self::parse(&text))
    }

    /// Rows of the form ``| `case` | where | TCP | raas run | why |``.
    fn parse(text: &str) -> Self {
        let rows = text.lines().filter_map(|line| {
            let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix('|')?.split(" | ").map(str::trim).collect();
            let [case, places, _, _, why] = cells[..] else { return None };
            Some(Row { case: case.strip_suffix('`')?.to_owned(), places: places.to_owned(), why: why.to_owned() })
        });
        Self { rows: rows.collect() }
    }

    /// Why this case differs there, and whether it always does.
    pub(super) fn row(&self, case: &str, way: Way) -> Option<(&str, bool)> {
        let mut told = self.rows.iter().filter(|row| row.names(case));
        told.find_map(|row| Some((row.why.as_str(), row.holds(way)?)))
    }

    /// Rows that name no case, or give no reason.
    pub(super) fn unknown(&self, cases: &[String]) -> Vec<String> {
        let unnamed = |row: &&Row| !cases.iter().any(|case| row.names(case)) || row.why.is_empty();
        self.rows.iter().filter(unnamed).map(|row| format!("{PAGE}: {row:?}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_hold_where_they_say() {
        let text = "| case | where | TCP | raas run | why |\n|---|---|---|---|---|\n\
                    | `flags/urgent` | over RaaS | sent | `EOPNOTSUPP` | no urgent bytes |\n\
                    | `end/process-*` | two-hosts, client-only | 0 | `ECONNRESET` | a death is told |\n\
                    | `end/race` | over RaaS sometimes | 1 | 2 | a race |\n";
        let page = Differences::parse(text);
        assert_eq!(page.rows.len(), 3);
        assert_eq!(page.row("flags/urgent", Way::SameHost), Some(("no urgent bytes", true)));
        assert_eq!(page.row("end/race", Way::SameHost), Some(("a race", false)));
        assert_eq!(page.row("flags/urgent", Way::ServerOnly), None);
        assert_eq!(page.row("end/process-exits", Way::TwoHosts), Some(("a death is told", true)));
        assert_eq!(page.row("end/process-exits", Way::SameHost), None);
        let parts = Row { case: "transfer/*-splice".to_owned(), places: EVERYWHERE.to_owned(), why: "x".to_owned() };
        assert!(parts.names("transfer/send-splice") && !parts.names("transfer/splice-send"));
        let cases = ["flags/urgent".to_owned()];
        assert_eq!(page.unknown(&cases).len(), 2);
    }
}

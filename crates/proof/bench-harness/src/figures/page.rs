//! The measured parts of docs/proof/figures.md and docs/proof/figures-programs.md: for each figure a block between two comments,
//! which the bench writes anew. The rest of a page is written by people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::data::{Figure, label};
use crate::stats::{Row, Verdict, spread};

/// The drawing, a table of the medians, the bars and what they came to, and where it was measured.
pub(crate) fn block(figure: &Figure, name: &str, context: &Value) -> String {
    let is_bytes = figure.x.contains("bytes");
    let mut out = format!("![{}](figures/{name}.svg)\n\n| {} |", figure.heading(), figure.x);
    for line in &figure.lines {
        let _ = write!(out, " {}, {} |", line.name, figure.y);
    }
    let _ = writeln!(out, "\n|{}", "---|".repeat(figure.lines.len() + 1));
    for x in figure.places() {
        let _ = write!(out, "| {} |", label(x, is_bytes));
        for line in &figure.lines {
            let cell = spread(&line.at(x)).map_or("-".to_owned(), |s| short(s.median));
            let _ = write!(out, " {cell} |");
        }
        out.push('\n');
    }
    if !figure.rows.is_empty() {
        out.push('\n');
    }
    for row in &figure.rows {
        let _ = writeln!(out, "- {}", sentence(row));
    }
    let (setting, machine) = (&context["setting"], &context["machine"]);
    // Figures without bars have fewer rounds than were asked for.
    let values = figure.lines.iter().flat_map(|line| &line.points).map(|point| point.values.len());
    let rounds = values.max().unwrap_or_default();
    let commit = context["commit"].as_str().unwrap_or_default();
    let _ = writeln!(
        out,
        "\n{} rounds on {}, {} processors, Linux {}; {}; commit {}.",
        rounds,
        machine["cpu"].as_str().unwrap_or("an unknown processor"),
        machine["cores"],
        machine["kernel"].as_str().unwrap_or("?"),
        measured_on(setting),
        commit.get(..7).unwrap_or(commit),
    );
    out
}

/// What a figure says of that by itself, or the device, its wire and MTU.
fn measured_on(setting: &Value) -> String {
    let word = |key: &str| setting[key].as_str().unwrap_or("?");
    match setting["measured_on"].as_str() {
        Some(words) => words.to_owned(),
        None => format!("{}, wire {}, MTU {}", word("device"), word("wire"), setting["mtu"]),
    }
}

fn sentence(row: &Row) -> String {
    let case = row.series.case.split_once(": ").map_or(row.series.case.as_str(), |(_, rest)| rest);
    let ratio = spread(&row.series.ratios())
        .map_or("not measured".to_owned(), |s| format!("{} ({} to {})", short(s.median), short(s.p10), short(s.p90)));
    let judged = match (row.bar, row.verdict()) {
        (Some((bar, kind)), Some(verdict)) => {
            let verdict = if verdict == Verdict::Missed { "**missed**" } else { verdict.name() };
            format!(" ({} {}: {verdict})", kind.name(), bar.text())
        }
        _ => String::new(),
    };
    format!("{case}, beside {}: {ratio}{judged}", row.series.rival)
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}", value),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Writes the blocks into the page, each in the place of the old one.
pub(crate) fn update(path: &Path, blocks: &BTreeMap<String, String>) -> Result<()> {
    let page = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let page = with_blocks(&page, blocks).with_context(|| path.display().to_string())?;
    std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) fn with_blocks(page: &str, blocks: &BTreeMap<String, String>) -> Result<String> {
    let mut page = page.to_owned();
    for (name, block) in blocks {
        let (begin, end) = (format!("<!-- {name}: measured -->\n"), format!("<!-- {name}: end -->"));
        let (Some(from), Some(to)) = (page.find(&begin), page.find(&end)) else {
            bail!("it has no place for {name}: `{}` and `{end}`", begin.trim());
        };
        let from = from + begin.len();
        if to < from {
            bail!("the place of {name} ends before it begins");
        }
        page.replace_range(from..to, &format!("\n{block}\n"));
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::data::{Scale, tests::example};
    use super::super::device::Device;
    use super::*;

    #[test]
    fn a_block_takes_the_place_of_the_old_one_and_nothing_else_changes() -> Result<()> {
        let page = "# A\n<!-- fig06: measured -->\nold\n<!-- fig06: end -->\nafter\n";
        let blocks = BTreeMap::from([("fig06".to_owned(), "new\n".to_owned())]);
        let once = with_blocks(page, &blocks)?;
        assert_eq!(once, "# A\n<!-- fig06: measured -->\n\nnew\n\n<!-- fig06: end -->\nafter\n");
        assert_eq!(with_blocks(&once, &blocks)?, once);
        let missing = BTreeMap::from([("fig07".to_owned(), String::new())]);
        assert!(with_blocks(page, &missing).is_err());
        Ok(())
    }

    #[test]
    fn the_page_of_the_repository_has_a_place_for_every_figure() -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(super::super::PAGE);
        let page = std::fs::read_to_string(path)?;
        for device in [Device::Softnic, Device::Rxe] {
            for (number, _) in super::super::FIGURES.iter().filter(|(number, _)| device.has(*number)) {
                with_blocks(&page, &BTreeMap::from([(device.name_of(*number), "x".to_owned())]))?;
            }
        }
        Ok(())
    }

    #[test]
    fn a_block_says_the_medians_and_the_machine() {
        let context = json!({
            "setting": { "rounds": 6, "device": "softnic", "wire": "roce", "mtu": 1500 },
            "machine": { "cpu": "Some CPU", "cores": 2, "kernel": "6.18" }, "commit": "0123456789",
        });
        let text = block(&example(Scale::Linear), "fig06", &context);
        assert!(text.contains("| 64 Ki | 137626 | 68813 |"), "{text}");
        assert!(
            text.contains(
                "2 rounds on Some CPU, 2 processors, Linux 6.18; softnic, wire roce, MTU 1500; commit 0123456"
            ),
            "{text}"
        );
        let context = json!({ "setting": { "rounds": 3, "measured_on": "one host" }, "commit": "0123456789" });
        let text = block(&example(Scale::Linear), "fig13", &context);
        assert!(text.contains("; one host; commit 0123456"), "{text}");
    }
}

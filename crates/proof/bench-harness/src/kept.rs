//! The result file that is kept of a bench: one for each, bench/results/NAME/COMMIT.json. Owns its form on disk, a line
//! for each row, and how a run that measured a part joins what was measured before: each case keeps its newest run.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

use super::stats::rounded;

/// Where result files lie.
pub(crate) const FOLDER: &str = "bench/results";
/// Keys of a file in the order in which they are written; lists have a line for each entry.
const KEYS: [&str; 13] = [
    "schema",
    "bench",
    "command",
    "commit",
    "dirty",
    "machine",
    "setting",
    "rounds",
    "runs",
    "rows",
    "figures",
    "rivals_missing",
    "failed",
];
const LISTS: [&str; 5] = ["runs", "rows", "figures", "rivals_missing", "failed"];
/// What a run says of itself; a run of which rows are kept beside newer ones has these under `runs`.
const OF_RUN: [&str; 5] = ["commit", "dirty", "machine", "setting", "rounds"];
/// Keys of a row that its readers look for first.
const ROW_KEYS: [&str; 4] = ["case", "side", "unit", "rival"];

/// The file of a bench.
pub(crate) fn path(root: &Path, bench: &str) -> Result<PathBuf> {
    let folder = root.join(FOLDER).join(bench);
    let mut files = files_in(&folder).with_context(|| format!("no results of {bench}: {}", folder.display()))?;
    match (files.pop(), files.pop()) {
        (Some(file), None) => Ok(file),
        (None, _) => bail!("{FOLDER}/{bench} has no result file; `cargo xtask bench` writes it"),
        (Some(_), Some(_)) => bail!("{FOLDER}/{bench} has several result files; keep the newest"),
    }
}

/// Result files of a folder.
pub(crate) fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect())
}

/// Reads a file, which must have what every reader needs.
pub(crate) fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    for key in ["schema", "command", "commit", "machine", "rounds", "rows", "rivals_missing"] {
        ensure!(!file[key].is_null(), "{} has no `{key}`", path.display());
    }
    Ok(file)
}

/// Writes it in the place of the one before. A run that did not measure all that the bench has (`is_part`) takes over
/// the rows and figures of the cases that it did not measure.
pub(crate) fn write(root: &Path, bench: &str, commit: &str, file: Value, is_part: bool) -> Result<PathBuf> {
    let folder = root.join(FOLDER).join(bench);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let before = files_in(&folder)?;
    let file = match before.as_slice() {
        [kept] if is_part => joined(file, read(kept)?),
        [_, _, ..] if is_part => bail!("{} has several result files; keep the newest", folder.display()),
        _ => file,
    };
    let path = folder.join(format!("{commit}.json"));
    std::fs::write(&path, text(&file)).with_context(|| format!("cannot write {}", path.display()))?;
    for old in before.iter().filter(|old| **old != path) {
        std::fs::remove_file(old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    Ok(path)
}

/// The new file, with the rows and figures of cases that it does not have. Each of these names its run, a place in
/// `runs`.
fn joined(mut new: Value, kept: Value) -> Value {
    let mut runs = vec![];
    for list in ["rows", "figures"] {
        let is_new = |entry: &Value| entries(&new, list).iter().any(|other| other["case"] == entry["case"]);
        let mut added = vec![];
        for mut entry in entries(&kept, list).iter().filter(|entry| !is_new(entry)).cloned() {
            let run = run_of(&kept, &entry);
            let place = runs.iter().position(|known| *known == run).unwrap_or_else(|| {
                runs.push(run);
                runs.len() - 1
            });
            entry["run"] = json!(place);
            added.push(entry);
        }
        let all = [entries(&new, list), &added].concat();
        new[list] = Value::Array(all);
    }
    new["runs"] = Value::Array(runs);
    new
}

/// What the run of a row says of itself: its commit, machine, setting and rounds.
pub(crate) fn run_of(file: &Value, row: &Value) -> Value {
    let run = row["run"].as_u64().and_then(|place| file["runs"].get(usize::try_from(place).ok()?));
    let run = run.unwrap_or(file);
    OF_RUN.iter().map(|key| ((*key).to_owned(), run[*key].clone())).collect::<Map<_, _>>().into()
}

fn entries<'f>(file: &'f Value, list: &str) -> &'f [Value] {
    file[list].as_array().map_or(&[], Vec::as_slice)
}

/// The file as it lies on disk.
pub(crate) fn text(file: &Value) -> String {
    let keys = KEYS.iter().filter(|key| !file[**key].is_null());
    let parts: Vec<String> = keys
        .map(|key| match LISTS.contains(key) {
            true if entries(file, key).is_empty() => format!("\"{key}\": []"),
            true => {
                let lines: Vec<String> = entries(file, key).iter().map(line).collect();
                format!("\"{key}\": [\n{}\n]", lines.join(",\n"))
            }
            false => format!("\"{key}\": {}", short(&file[*key])),
        })
        .collect();
    format!("{{\n{}\n}}\n", parts.join(",\n"))
}

/// An entry of a list, its name first.
fn line(entry: &Value) -> String {
    let Some(object) = entry.as_object() else { return short(entry).to_string() };
    let first = ROW_KEYS.iter().filter_map(|key| object.get_key_value(*key));
    let rest = object.iter().filter(|(key, _)| !ROW_KEYS.contains(&key.as_str()));
    let parts: Vec<String> = first.chain(rest).map(|(key, value)| format!("{}:{}", json!(key), short(value))).collect();
    format!("{{{}}}", parts.join(","))
}

/// The value with numbers of four digits.
fn short(value: &Value) -> Value {
    match value {
        Value::Array(all) => all.iter().map(short).collect(),
        Value::Object(object) => object.iter().map(|(key, value)| (key.clone(), short(value))).collect(),
        Value::Number(number) if number.is_f64() => number.as_f64().map_or(Value::Null, |v| json!(rounded(v))),
        other => other.clone(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file of one run with these cases.
    pub(crate) fn file(commit: &str, cases: &[&str]) -> Value {
        let row = |case: &&str| {
            json!({
                "case": case, "unit": "us", "better": "lower", "ours": [1.0, 1.23456789],
                "rival": "tcp", "rival_values": [2.0, 2.0], "ratio_median": 0.5586,
                "ratio_p10": 0.5, "ratio_p90": 0.6173, "bar": "ours/rival <= 0.6", "kind": "must", "verdict": "met",
            })
        };
        json!({
            "schema": "raas.bench/1", "bench": "b", "command": "cargo xtask bench b", "commit": commit, "dirty": false,
            "machine": { "cpu": "CPU of the test", "cores": 2, "load_before": 0.1234 }, "setting": { "mtu": 1500 },
            "rounds": 2, "rows": cases.iter().map(row).collect::<Vec<_>>(),
            "figures": cases.iter().map(|case| json!({ "case": case, "gbit": 9.87654321 })).collect::<Vec<_>>(),
            "rivals_missing": [], "failed": [],
        })
    }

    #[test]
    fn a_row_has_a_line_and_numbers_have_four_digits() -> Result<()> {
        let file = file("a", &["x", "y"]);
        let text = text(&file);
        assert!(text.contains("\n{\"case\":\"x\",\"unit\":\"us\",\"rival\":\"tcp\","), "{text}");
        assert!(text.contains("\"ours\":[1.0,1.235]") && text.contains("\"gbit\":9.877"), "{text}");
        assert_eq!(text.lines().count(), 20, "{text}");
        let read: Value = serde_json::from_str(&text)?;
        assert_eq!(read, short(&file));
        Ok(())
    }

    #[test]
    fn a_part_keeps_the_other_cases_with_their_run() {
        let older = file("old", &["x", "y"]);
        let all = joined(file("new", &["y"]), older);
        let named: Vec<_> = entries(&all, "rows").iter().map(|row| (&row["case"], &row["run"])).collect();
        assert_eq!(named, [(&json!("y"), &Value::Null), (&json!("x"), &json!(0))]);
        assert_eq!(entries(&all, "figures").len(), 2);
        let commits = entries(&all, "rows").iter().map(|row| run_of(&all, row)["commit"].clone());
        assert_eq!(commits.collect::<Vec<_>>(), ["new", "old"]);
        // Once more: what the first run left is now of two runs back, and nobody keeps the one between.
        let again = joined(file("newest", &["y"]), all);
        let commits = entries(&again, "rows").iter().map(|row| run_of(&again, row)["commit"].clone());
        assert_eq!(commits.collect::<Vec<_>>(), ["newest", "old"]);
        assert_eq!(entries(&again, "runs").len(), 1);
    }

    #[test]
    fn one_file_is_kept_of_a_bench() -> Result<()> {
        let root = tempfile::tempdir()?;
        let told = path(root.path(), "b").expect_err("there is none").to_string();
        assert!(told.contains("no results of b"), "{told}");
        write(root.path(), "b", "one", file("one", &["x", "y"]), true)?;
        let kept = write(root.path(), "b", "two", file("two", &["y"]), true)?;
        assert_eq!(path(root.path(), "b")?, kept);
        assert_eq!(entries(&read(&kept)?, "rows").len(), 2);
        let kept = write(root.path(), "b", "three", file("three", &["y"]), false)?;
        assert_eq!(entries(&read(&kept)?, "rows").len(), 1, "a whole run keeps nothing of others");
        std::fs::write(kept.with_file_name("other.json"), "{}")?;
        let told = path(root.path(), "b").expect_err("there are two").to_string();
        assert!(told.contains("several result files"), "{told}");
        Ok(())
    }

    #[test]
    fn a_file_without_what_readers_need_is_refused_by_name() -> Result<()> {
        let root = tempfile::tempdir()?;
        let path = root.path().join("a.json");
        for (text, told) in [("{", "is not JSON"), ("{\"schema\": \"raas.bench/1\"}", "has no `command`")] {
            std::fs::write(&path, text)?;
            let error = read(&path).expect_err("it is refused").to_string();
            assert!(error.contains(told) && error.contains("a.json"), "{error}");
        }
        Ok(())
    }
}

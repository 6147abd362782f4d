//! How the errors of libraries print: a program whose `main` returns an error prints its `Debug` form.
//!
//! Owns the list of libraries. It must never let an error of theirs print its fields.

use super::source::{Source, Sources};

/// Libraries that programs use, and those whose errors come through them.
const LIBRARIES: &[&str] = &[
    "crates/base/control/src",
    "crates/base/kernels/src",
    "crates/client/raas/src",
    "crates/systems",
    "crates/tools/raas-embedded/src",
];

/// `Reason` is what connections and logs have, by name; what fails with one says its words.
const NAMED: &str = "crates/base/control/src/reason.rs";

/// An error of a library says its words as `Debug` too.
pub(super) fn debug_is_words(sources: &Sources) -> Vec<String> {
    let mut findings = vec![];
    for library in LIBRARIES {
        let files: Vec<_> = sources.rust().filter(|file| file.path.starts_with(library)).collect();
        if files.is_empty() {
            findings.push(format!("{library} has no file: the list of libraries in {} is old", file!()));
        }
        findings.extend(files.into_iter().filter(|file| !file.path.ends_with(NAMED)).flat_map(fields_printed));
    }
    findings
}

fn fields_printed(file: &Source) -> Vec<String> {
    let derives = |text: &str, name: &str| text.split([' ', ',', '(', ')']).any(|word| word == name);
    let mut findings = vec![];
    for (number, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("#[derive(") && derives(line, "thiserror::Error") && derives(line, "Debug") {
            let at = format!("{}:{}", file.path.display(), number + 1);
            findings.push(format!("{at}: its Debug prints fields; leave Debug out, and `debug_says_the_words!` it"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn found(path: &str, text: &str) -> usize {
        let file = |path: &str, text: &str| Source { path: PathBuf::from(path), text: text.to_owned() };
        let mut files: Vec<_> = LIBRARIES.iter().map(|library| file(&format!("{library}/lib.rs"), "")).collect();
        files.push(file(path, text));
        debug_is_words(&Sources { files }).len()
    }

    #[test]
    fn a_library_that_moved_is_found() {
        assert_eq!(debug_is_words(&Sources { files: vec![] }).len(), LIBRARIES.len());
    }

    #[test]
    fn an_error_that_prints_fields_is_found() {
        let derived = "#[derive(Debug, Clone, thiserror::Error)]\npub enum E {}";
        assert_eq!(found("crates/systems/rmem/src/error.rs", derived), 1);
        assert_eq!(found("crates/systems/rmem/src/error.rs", "#[derive(thiserror::Error, Debug)]\nenum E {}"), 1);
        assert_eq!(found("crates/systems/rmem/src/error.rs", "#[derive(Clone, thiserror::Error)]\nenum E {}"), 0);
        assert_eq!(found("crates/systems/rmem/src/pool.rs", "#[derive(Debug, Clone)]\nstruct Pool;"), 0);
        assert_eq!(found(NAMED, derived), 0);
        assert_eq!(found("crates/service/engine/src/frame.rs", derived), 0);
    }
}

//! What the binary says about itself: versions, manual pages, completions.

use std::process::Command;

use crate::rig::{raas, run};

/// Every command that a person may type, as `--help` lists them.
fn commands(of: &[&str]) -> Vec<String> {
    let help = run(raas().args(of).arg("--help")).stdout;
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let names = list.lines().take_while(|line| !line.is_empty());
    // Only lines with two spaces before the name begin a command; the others go on with its description.
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn the_version_names_commit_wire_control_and_layout() {
    let ended = run(raas().arg("--version"));
    assert_eq!(ended.code(), 0);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], format!("raas {}", env!("CARGO_PKG_VERSION")));
    let value = |name: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no line `{name}`: {lines:?}")).to_owned()
    };
    assert_eq!(value("wire"), control::WIRE_VERSION.to_string());
    assert_eq!(value("control"), control::APP_VERSION.to_string());
    assert_eq!(value("layout"), shm::LAYOUT_VERSION.to_string());
    let git = |args: &[&str]| Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    match git(&["rev-parse", "HEAD"]) {
        // Somebody may commit while this runs, so an ancestor is right too.
        Ok(head) if head.status.success() => {
            let ancestor = git(&["merge-base", "--is-ancestor", &value("commit"), "HEAD"]).unwrap();
            assert!(ancestor.status.success(), "{} is no commit of this tree", value("commit"));
        }
        _ => assert!(value("commit") == "unknown" || value("commit").len() >= 40),
    }
    assert_eq!(run(raas().arg("-V")).stdout.trim(), lines[0]);
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("new/man1");
    let ended = run(raas().arg("man").arg("--dir").arg(&pages));
    assert_eq!(ended.code(), 0, "{ended:?}");
    let mut expected = vec!["raas.1".to_owned()];
    for name in commands(&[]) {
        expected.push(format!("raas-{name}.1"));
        expected.extend(commands(&[&name]).iter().map(|below| format!("raas-{name}-{below}.1")));
    }
    assert!(expected.len() > 12 && expected.contains(&"raas-perf-bw.1".to_owned()), "{expected:?}");
    let mut found: Vec<String> =
        std::fs::read_dir(&pages).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let mut told: Vec<String> = ended.stdout.lines().map(str::to_owned).collect();
    for list in [&mut expected, &mut found, &mut told] {
        list.sort();
    }
    assert_eq!(found, expected);
    assert_eq!(told, expected);
    for name in found {
        let page = std::fs::read_to_string(pages.join(&name)).unwrap();
        assert!(page.contains(".TH raas") && page.contains(".SH NAME"), "{name}: {page}");
    }
    // Without a directory it is the first page.
    let one = run(raas().arg("man"));
    assert_eq!(one.stdout, std::fs::read_to_string(pages.join("raas.1")).unwrap());
}

#[test]
fn completions_exist_for_each_shell_and_bash_completes_with_them() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(raas().args(["completions", shell]));
        assert_eq!(ended.code(), 0, "{shell}: {ended:?}");
        assert!(ended.stdout.contains("device"), "{shell}");
    }
    assert_eq!(run(raas().args(["completions", "tcsh"])).code(), 2);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("raas.bash");
    std::fs::write(&file, run(raas().args(["completions", "bash"])).stdout).unwrap();
    let script = r#"source "$1"; COMP_WORDS=(raas perf b); COMP_CWORD=2; _raas raas b perf; echo "${COMPREPLY[@]}""#;
    let ended = run(Command::new("bash").args(["-c", script, "bash"]).arg(&file));
    assert_eq!(ended.stdout.trim(), "bw", "{ended:?}");
}

#[test]
fn a_directory_that_cannot_be_made_is_code_2() {
    let ended = run(raas().args(["man", "--dir", "/proc/none/man"]));
    assert_eq!(ended.code(), 2, "{ended:?}");
    assert!(ended.stderr.contains("/proc/none/man"), "{ended:?}");
}

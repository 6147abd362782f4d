//! Which Debian suites packages come from: read from the machine's own apt sources, never from a list of our own. Owns
//! the parsing of both source formats and the choice of the neighbouring suites that carry another kernel. Changes
//! nothing.

use anyhow::{Context, Result, bail};
use std::path::Path;

/// Debian releases whose stock kernel the guests may run: kernel series, the release that has it.
const KERNEL_HOMES: &[(&str, &str)] = &[("6.1", "bookworm"), ("6.12", "trixie")];

/// One archive with the suites taken from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Archive {
    pub(super) uri: String,
    pub(super) suites: Vec<String>,
    /// Keyring path or empty for apt's own trusted keys.
    pub(super) signed_by: String,
}

/// The machine's archives, widened by the suites that carry the kernels of [`KERNEL_HOMES`].
pub(super) fn archives(etc_apt: &Path, codename: &str) -> Result<Vec<Archive>> {
    let found = read_all(etc_apt)?;
    let home_of = |suite: &str| found.iter().find(|archive| archive.suites.iter().any(|name| name == suite));
    let Some(main) = home_of(codename) else {
        bail!("no apt source has the suite {codename}; the guest needs Debian's own packages");
    };
    let mut main = Archive { suites: vec![codename.to_owned(), format!("{codename}-updates")], ..main.clone() };
    let security_suite = format!("{codename}-security");
    let mut security = home_of(&security_suite).map(|found| Archive { suites: vec![security_suite], ..found.clone() });
    for (_, release) in KERNEL_HOMES.iter().filter(|(_, release)| *release != codename) {
        if *release == "trixie" {
            // The newer kernel is built for the older release in its backports.
            main.suites.push(format!("{codename}-backports"));
        } else {
            main.suites.push((*release).to_owned());
            if let Some(security) = &mut security {
                security.suites.push(format!("{release}-security"));
            }
        }
    }
    Ok(std::iter::once(main).chain(security).collect())
}

/// The archives as one deb822 file.
pub(super) fn render(archives: &[Archive]) -> String {
    let stanza = |archive: &Archive| {
        let signed =
            if archive.signed_by.is_empty() { String::new() } else { format!("Signed-By: {}\n", archive.signed_by) };
        format!("Types: deb\nURIs: {}\nSuites: {}\nComponents: main\n{signed}", archive.uri, archive.suites.join(" "))
    };
    archives.iter().map(stanza).collect::<Vec<_>>().join("\n")
}

/// `VERSION_CODENAME` of an os-release file.
pub(super) fn codename(os_release: &str) -> Option<String> {
    let line = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(line.trim_matches('"').to_owned())
}

fn read_all(etc_apt: &Path) -> Result<Vec<Archive>> {
    let mut paths = vec![etc_apt.join("sources.list")];
    if let Ok(entries) = std::fs::read_dir(etc_apt.join("sources.list.d")) {
        paths.extend(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())));
    }
    paths.sort();
    let mut archives = vec![];
    for path in paths.iter().filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => archives.extend(stanzas(&text)),
            Some("list") => archives.extend(text.lines().filter_map(one_line)),
            _ => {}
        }
    }
    Ok(archives)
}

fn stanzas(text: &str) -> Vec<Archive> {
    let uncommented: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let text = uncommented.join("\n");
    text.split("\n\n").filter_map(stanza).collect()
}

fn stanza(text: &str) -> Option<Archive> {
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let binary = field("Types")?.split_whitespace().any(|kind| kind == "deb");
    let enabled = field("Enabled").is_none_or(|value| value != "no");
    // A key pasted into the stanza spans lines and is not carried over: apt's trusted keys must do.
    let signed_by = field("Signed-By").filter(|value| value.starts_with('/')).unwrap_or_default();
    let uri = field("URIs")?.split_whitespace().next()?.to_owned();
    let suites = field("Suites")?.split_whitespace().map(str::to_owned).collect();
    (binary && enabled).then_some(Archive { uri, suites, signed_by })
}

/// `deb [signed-by=/path] URI SUITE COMPONENT...`
fn one_line(line: &str) -> Option<Archive> {
    let rest = line.trim().strip_prefix("deb")?;
    let rest = rest.strip_prefix(char::is_whitespace)?.trim();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => ("", rest),
    };
    let signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by=")).unwrap_or_default();
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    Some(Archive { uri: uri.to_owned(), suites: vec![suite.to_owned()], signed_by: signed_by.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "Types: deb\n# a remark\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\n\
        Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n\nTypes: deb\nURIs: http://mirror/debian-security\n\
        Suites: bookworm-security\nComponents: main\n\nTypes: deb-src\nURIs: http://mirror/debian\nSuites: bookworm\n";

    #[test]
    fn both_formats_are_read() {
        let archives = stanzas(DEB822);
        assert_eq!(archives.len(), 2);
        assert_eq!(archives[0].signed_by, "/usr/share/keyrings/k.gpg");
        let line = one_line("deb [arch=amd64 signed-by=/k.gpg] http://m/debian trixie main contrib");
        let expected =
            Archive { uri: "http://m/debian".into(), suites: vec!["trixie".into()], signed_by: "/k.gpg".into() };
        assert_eq!(line, Some(expected));
        assert_eq!(one_line("# deb http://m/debian trixie main"), None);
        assert_eq!(one_line("deb-src http://m/debian trixie main"), None);
    }

    #[test]
    fn suites_follow_the_machine() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("vm-sources-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sources.list.d"))?;
        std::fs::write(dir.join("sources.list.d/debian.sources"), DEB822)?;
        let bookworm = archives(&dir, "bookworm")?;
        std::fs::write(dir.join("sources.list.d/debian.sources"), DEB822.replace("bookworm", "trixie"))?;
        let trixie = archives(&dir, "trixie")?;
        let foreign = archives(&dir, "noble");
        std::fs::remove_dir_all(&dir)?;
        assert_eq!(bookworm[0].suites, ["bookworm", "bookworm-updates", "bookworm-backports"]);
        assert_eq!(bookworm[1].suites, ["bookworm-security"]);
        assert_eq!(trixie[0].suites, ["trixie", "trixie-updates", "bookworm"]);
        assert_eq!(trixie[1].suites, ["trixie-security", "bookworm-security"]);
        assert!(foreign.is_err());
        Ok(())
    }
}

//! What `raas --version` says: release, commit, and the versions that two parties must agree on. What each means is in
//! docs/operate/packaging.md. Constants only.

use std::sync::LazyLock;

/// The commit that this was built from, or `unknown`.
pub(crate) const COMMIT: &str = env!("RAAS_COMMIT");

/// One thing a line, so that scripts find each by its first word.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\ncommit {COMMIT}\nwire {}\ncontrol {}\nlayout {}",
        env!("CARGO_PKG_VERSION"),
        control::WIRE_VERSION,
        control::APP_VERSION,
        shm::LAYOUT_VERSION,
    )
});

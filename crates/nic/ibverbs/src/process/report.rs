//! What the process's NIC did, as one line of a file when the process ends (`raas verbs --json`).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock};

use verbs::Provider;

use crate::events::lock;
use crate::process::Process;

/// Names the file.
const VARIABLE: &str = "RAAS_VERBS_REPORT";

static FILE: OnceLock<Option<OsString>> = OnceLock::new();
/// Numbers and types of all queue pairs that were made.
static MADE: Mutex<Vec<(u32, &str)>> = Mutex::new(Vec::new());

/// Has the line written when the process ends, if somebody wants it.
pub(crate) fn at_exit() {
    let mut is_first = false;
    let file = FILE.get_or_init(|| {
        is_first = true;
        std::env::var_os(VARIABLE)
    });
    if is_first && file.is_some() {
        // SAFETY: the function is of this library, which is never unloaded.
        unsafe { libc::atexit(write) };
    }
}

/// A queue pair was made.
pub(crate) fn note(qpn: u32, kind: &'static str) {
    if FILE.get().is_some_and(Option::is_some) {
        lock(&MADE).push((qpn, kind));
    }
}

extern "C" fn write() {
    let (Some(Some(path)), Some(process)) = (FILE.get(), Process::current()) else { return };
    let Some(held) = process.nic() else { return };
    let counters = held.nic.counters();
    drop(held);
    // The file is there, and each line is one write, so that those of several processes do not mix.
    if let Ok(mut file) = File::options().append(true).open(path) {
        let _ = file.write_all(line(&lock(&MADE), &counters).as_bytes());
    }
}

fn line(made: &[(u32, &str)], counters: &[(&'static str, u64)]) -> String {
    let mut line = format!("{{\"pid\":{},\"qps\":[", std::process::id());
    let comma = |index| if index == 0 { "" } else { "," };
    // Writing into a string does not fail. Names are words of this project, which need no escape.
    for (index, (qpn, kind)) in made.iter().enumerate() {
        let _ = write!(line, "{}{{\"qpn\":{qpn},\"type\":\"{kind}\"}}", comma(index));
    }
    line.push_str("],\"counters\":{");
    for (index, (name, count)) in counters.iter().enumerate() {
        let _ = write!(line, "{}\"{name}\":{count}", comma(index));
    }
    line.push_str("}}\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object() {
        let line = line(&[(5, "RC"), (6, "UD")], &[("retransmits", 2), ("drop_pkey", 0)]);
        let pid = std::process::id();
        let qps = r#"[{"qpn":5,"type":"RC"},{"qpn":6,"type":"UD"}]"#;
        let whole = format!("{{\"pid\":{pid},\"qps\":{qps},\"counters\":{{\"retransmits\":2,\"drop_pkey\":0}}}}\n");
        assert_eq!(line, whole);
    }
}

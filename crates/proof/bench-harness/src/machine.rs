//! Which machine this is and how busy it is, for the result file. It reads only /proc.

use serde_json::{Value, json};
use std::fs::read_to_string;

/// Processor, cores, memory, kernel and load.
pub(super) fn describe() -> Value {
    let cpu = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    json!({
        "cpu": field(&cpu, "model name"),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "memory_bytes": kibibytes(&memory, "MemTotal"),
        "kernel": read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "load_before": load(),
    })
}

/// The load average over one minute: other work spoils figures.
pub(super) fn load() -> Value {
    let text = read_to_string("/proc/loadavg").unwrap_or_default();
    json!(text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()))
}

fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim()))
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    Some(field(text, name)?.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nMemTotal:       24 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 3 GHz"));
        assert_eq!(kibibytes(text, "MemTotal"), Some(24 * 1024));
        assert_eq!(field(text, "absent"), None);
    }
}

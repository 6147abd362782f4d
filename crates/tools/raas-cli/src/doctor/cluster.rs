//! The directories of the cluster: whether each answers.

use control::DirectoryRow;
use serde_json::Value;
use transport::Raas;

use super::finding::Findings;

/// Says how it is with each directory that the daemon asks.
pub(super) fn look(raas: Option<&Raas>, findings: &mut Findings) {
    let Some(raas) = raas else { return };
    match raas::inspect::cluster(Some(raas.session().socket())) {
        Ok(state) => state.directories.iter().for_each(|row| directory(row, findings)),
        // One of a release before that knows of no cluster; its release was looked at.
        Err(e) => findings.ok("cluster", Value::Null, format!("the daemon says nothing of a cluster: {e}")),
    }
}

fn directory(row: &DirectoryRow, findings: &mut Findings) {
    let source = row.source.as_str();
    let asked = if row.asked.is_empty() { String::new() } else { format!(" ({})", row.asked.join(", ")) };
    let hosts = format!("{source}{asked} names {} hosts", row.hosts);
    let Some(error) = &row.error else {
        return match row.answered_seconds {
            Some(seconds) => findings.ok("cluster", source, format!("{hosts}, {seconds} s ago")),
            None => findings.ok("cluster", source, format!("{source}{asked} was not asked yet")),
        };
    };
    let fix = match source {
        "etcd" => {
            "see whether it runs, and whether this host reaches it: curl ENDPOINT/version; the endpoints stand under [cluster.etcd]"
        }
        "dns" => "see what this host says: getent ahosts NAME; the names stand in `dns` under [cluster]",
        _ => "see docs/operate/clusters.md",
    };
    let since = row.failed_seconds.map(|seconds| format!(" for {seconds} s")).unwrap_or_default();
    findings.warn("cluster", source, format!("{hosts}, and is in trouble{since}: {error}"), fix);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_trouble_is_named_with_its_fix() {
        let row = DirectoryRow {
            source: "etcd".into(),
            asked: vec!["http://a:2379".into()],
            hosts: 3,
            answered_seconds: Some(7),
            failed_seconds: None,
            error: None,
        };
        let mut findings = Findings::default();
        directory(&row, &mut findings);
        let error = Some("http://a:2379 does not answer".to_owned());
        directory(&DirectoryRow { failed_seconds: Some(5), error, ..row }, &mut findings);
        let told = findings.to_json();
        assert_eq!((&told["findings"][0]["level"], &told["findings"][1]["level"]), (&"ok".into(), &"warn".into()));
        let text = findings.to_text();
        assert!(text.contains("in trouble for 5 s: http://a:2379 does not answer") && text.contains("fix: "), "{text}");
        assert!(findings.worst().is_none(), "the hosts of before stay");
    }
}

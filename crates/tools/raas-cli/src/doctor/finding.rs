//! What `raas doctor` found: one line each, with the value that was seen and what to do. Owns their form as text and
//! JSON.

use std::net::IpAddr;

use serde_json::{Value, json};

use terminal::table::{Align, Table};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// It works, but slower or not for everything.
    Warn,
    /// Something does not work.
    Fail(Code),
}

/// The exit code that a failure asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// 1
    Failed,
    /// 3
    NoDaemon,
    /// 4
    Refused,
}

/// One thing that was looked at.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    /// Stable name; docs/operate/commands.md lists all.
    id: &'static str,
    /// The host that it is about, if not this one.
    peer: Option<IpAddr>,
    level: Level,
    value: Value,
    detail: String,
    /// What to do; none where nothing is to be done.
    fix: Option<String>,
}

/// All of them, in the order in which they were looked at.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    /// The peer that is being looked at.
    peer: Option<IpAddr>,
}

impl Findings {
    /// What follows is about this host.
    pub(crate) fn about(&mut self, peer: Option<IpAddr>) {
        self.peer = peer;
    }

    /// As it should be.
    pub(crate) fn ok(&mut self, id: &'static str, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(id, Level::Ok, value, detail, None);
    }

    /// Works, but could work better.
    pub(crate) fn warn(&mut self, id: &'static str, value: impl Into<Value>, detail: impl Into<String>, fix: &str) {
        self.push(id, Level::Warn, value, detail, Some(fix));
    }

    /// Does not work.
    pub(crate) fn fail(
        &mut self,
        id: &'static str,
        code: Code,
        value: impl Into<Value>,
        detail: impl Into<String>,
        fix: &str,
    ) {
        self.push(id, Level::Fail(code), value, detail, Some(fix));
    }

    fn push(
        &mut self,
        id: &'static str,
        level: Level,
        value: impl Into<Value>,
        detail: impl Into<String>,
        fix: Option<&str>,
    ) {
        let fix = fix.map(str::to_owned);
        self.list.push(Finding { id, peer: self.peer, level, value: value.into(), detail: detail.into(), fix });
    }

    /// The exit code of the first failure, and a line about all; `None` if nothing failed.
    pub(crate) fn worst(&self) -> Option<(Code, String)> {
        let failed: Vec<(&Finding, Code)> = self.list.iter().filter_map(|f| Some((f, f.code()?))).collect();
        let (first, code) = failed.first()?;
        let rest = if failed.len() > 1 { format!(", and {} more", failed.len() - 1) } else { String::new() };
        Some((*code, format!("{}: {}{rest}", first.id, first.detail)))
    }

    /// `raas.doctor/1`.
    pub(crate) fn to_json(&self) -> Value {
        let findings: Vec<Value> = self.list.iter().map(Finding::to_json).collect();
        json!({ "schema": "raas.doctor/1", "ok": self.worst().is_none(), "findings": findings })
    }

    /// A line for each, with the fix below it.
    pub(crate) fn to_text(&self) -> String {
        let mut table = Table::new(&[("", Align::Left), ("", Align::Left), ("", Align::Left)]);
        for f in &self.list {
            let about = f.peer.map(|peer| format!(" {peer}")).unwrap_or_default();
            table.row(vec![f.level_name().into(), format!("{}{about}", f.id), f.detail.clone()]);
            if let Some(fix) = &f.fix {
                table.row(vec![String::new(), String::new(), format!("fix: {fix}")]);
            }
        }
        table.render()
    }
}

impl Finding {
    fn code(&self) -> Option<Code> {
        match self.level {
            Level::Fail(code) => Some(code),
            Level::Ok | Level::Warn => None,
        }
    }

    fn level_name(&self) -> &'static str {
        match self.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail(_) => "fail",
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "id": self.id, "ok": self.code().is_none(), "level": self.level_name(), "peer": self.peer,
            "value": self.value, "detail": self.detail, "fix": self.fix,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_ok_and_the_first_failure_decides() {
        let mut findings = Findings::default();
        findings.ok("kernel", "6.1", "fine");
        findings.warn("mtu", 1500, "small", "raise it");
        assert!(findings.worst().is_none());
        assert_eq!(findings.to_json()["findings"][1]["ok"], true);
        findings.about(Some([10, 0, 0, 2].into()));
        findings.fail("peer-lane", Code::Refused, "peer-auth", "another key", "copy the key");
        findings.fail("key", Code::Failed, Value::Null, "open", "chmod 600 it");
        let (code, told) = findings.worst().unwrap();
        assert_eq!(code, Code::Refused);
        assert!(told.contains("another key") && told.contains("1 more"), "{told}");
        let json = findings.to_json();
        assert_eq!((&json["ok"], &json["findings"][2]["peer"]), (&json!(false), &json!("10.0.0.2")));
        let text = findings.to_text();
        assert!(text.contains("fix: copy the key") && text.contains("peer-lane 10.0.0.2"), "{text}");
    }
}

//! Running cases and telling how they ended.

use std::fmt;

use crate::{Failure, Outcome, Rig};

/// A case: its name and its body.
#[derive(Clone, Copy)]
pub struct Case {
    /// Stable name, `theme.what`.
    pub name: &'static str,
    /// The body.
    pub body: fn(&mut dyn Rig) -> Outcome,
    /// Nothing brings back a packet of the case that the link loses: over a link that does, the case is tried several
    /// times, with new queue pairs on the same devices.
    pub unreliable: bool,
}

/// Tries of an unreliable case over a link that loses packets. With one packet of a hundred lost, as many repeated and
/// as many late, a case of twenty packets fails all of them once in ten thousand runs.
const TRIES_WITH_LOSS: u32 = 12;

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A case's verdict for one provider.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// As specified.
    Passed,
    /// Not as specified.
    Failed(Failure),
    /// Not as specified, as the table of differences says.
    Differs(&'static str, Failure),
    /// The table of differences says that it fails, and it does not: the entry must go.
    Stale(&'static str),
}

/// The verdicts of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// In the order of the cases.
    pub verdicts: Vec<(&'static str, Verdict)>,
}

impl Report {
    /// Names and messages of everything that must not be.
    pub fn failures(&self) -> Vec<String> {
        let bad = |(name, v): &(&'static str, Verdict)| match v {
            Verdict::Failed(f) => Some(format!("{name}: {f}")),
            Verdict::Stale(reason) => {
                Some(format!("{name}: passes, yet stands in the table of differences ({reason})"))
            }
            _ => None,
        };
        self.verdicts.iter().filter_map(bad).collect()
    }

    /// How many passed, failed, and differ as documented.
    pub fn counts(&self) -> (usize, usize, usize) {
        let differs = self.verdicts.iter().filter(|(_, v)| matches!(v, Verdict::Differs(..))).count();
        let failed = self.failures().len();
        (self.verdicts.len() - differs - failed, failed, differs)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, verdict) in &self.verdicts {
            match verdict {
                Verdict::Passed => writeln!(f, "ok      {name}")?,
                Verdict::Failed(why) => writeln!(f, "FAILED  {name}: {why}")?,
                Verdict::Differs(reason, why) => writeln!(f, "differs {name}: {why} ({reason})")?,
                Verdict::Stale(reason) => writeln!(f, "STALE   {name}: {reason}")?,
            }
        }
        let (passed, failed, differs) = self.counts();
        write!(f, "{passed} passed, {failed} failed, {differs} differ as documented")
    }
}

/// Runs one case on a fresh rig.
pub fn run_case(case: &Case, rig: &mut dyn Rig) -> Verdict {
    let known = rig.differences().iter().find(|d| d.case == case.name).copied();
    let tries = if case.unreliable && rig.lossy() { TRIES_WITH_LOSS } else { 1 };
    let mut outcome = (case.body)(rig);
    for _ in 1..tries {
        if outcome.is_ok() {
            break;
        }
        outcome = (case.body)(rig);
    }
    match (outcome, known) {
        (Ok(()), None) => Verdict::Passed,
        // A lost datagram shows no difference.
        (Ok(()), Some(d)) if d.sometimes || tries > 1 => Verdict::Passed,
        (Ok(()), Some(d)) => Verdict::Stale(d.reason),
        (Err(why), None) => Verdict::Failed(why),
        (Err(why), Some(d)) => Verdict::Differs(d.reason, why),
    }
}

/// Runs the cases, each on a rig of its own.
pub fn run_all<R: Rig>(cases: &[Case], mut rig: impl FnMut() -> R) -> Report {
    let mut report = Report::default();
    for case in cases {
        report.verdicts.push((case.name, run_case(case, &mut rig())));
    }
    report
}

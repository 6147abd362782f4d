//! `raas stat --watch`: the state again and again, with what happened since the last time.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use control::Stat;

use super::{State, to_json, to_text};
use terminal::Failure;
use terminal::out::{self, Reader};
use terminal::table;

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Prints until the reader of stdout leaves or the daemon cannot be asked any more.
pub(super) fn run(socket: Option<&Path>, as_json: bool, period: Duration) -> Result<(), Failure> {
    let on_terminal = std::io::stdout().is_terminal();
    let mut last: Option<(Instant, Stat)> = None;
    loop {
        let State { stat, regions } = State::ask(socket)?;
        let now = Instant::now();
        let reader = if as_json {
            out::line(to_json(&stat, &regions))?
        } else {
            let happened = last.as_ref().map(|(then, before)| since(before, &stat, now.duration_since(*then)));
            let (before, after) = if on_terminal { (CLEAR, "") } else { ("", "\n") };
            out::print(format!("{before}{}{}{after}", happened.unwrap_or_default(), to_text(&stat, &regions)))?
        };
        if reader == Reader::Left {
            return Ok(());
        }
        last = Some((now, stat));
        std::thread::sleep(period);
    }
}

/// What happened from one state to the next, by second. A daemon that was restarted in between counts from 0.
fn since(before: &Stat, now: &Stat, took: Duration) -> String {
    let seconds = took.as_secs_f64().max(1e-9);
    let rate = |of: fn(&Stat) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
    let sent = rate(|s| s.lanes.iter().map(|l| l.tx_bytes).sum());
    let received = rate(|s| s.lanes.iter().map(|l| l.rx_bytes).sum());
    let requests = rate(|s| s.verbs.send + s.verbs.write + s.verbs.write_imm + s.verbs.read + s.verbs.atomic);
    let again = now.retransmits.saturating_sub(before.retransmits);
    format!(
        "last {seconds:.1} s: {}/s sent, {}/s received, {} work requests/s, {} packets sent again\n\n",
        table::bytes(sent as u64),
        table::bytes(received as u64),
        table::grouped(requests as u64),
        table::grouped(again),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::stat;
    use super::*;

    #[test]
    fn rates_are_by_second_and_a_new_daemon_counts_from_nothing() {
        let before = stat();
        let mut now = stat();
        now.lanes[0].tx_bytes += 4_000_000;
        now.verbs.write_imm += 20;
        now.retransmits += 3;
        let text = since(&before, &now, Duration::from_secs(2));
        assert_eq!(text, "last 2.0 s: 2.00 MB/s sent, 0 B/s received, 10 work requests/s, 3 packets sent again\n\n");
        assert!(since(&now, &before, Duration::from_secs(1)).contains("0 B/s sent"));
    }
}

//! The cells: which program with which words, and what it must say.

use harness::child::Ended;

use super::words;

/// The address of both sides.
const PEER: &str = "127.0.0.1";

/// What a cell's words must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// This text.
    Text(&'static str),
    /// So many lines of the client or the server that begin with a number and have three more.
    Rows(usize),
}

/// One run of one program.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    name: String,
    server: String,
    /// Empty: the program has no other side.
    client: String,
    shows: Shows,
    /// Exit code that is as good as 0.
    also_ends_with: i32,
    nobody: bool,
    killed: bool,
}

impl Cell {
    fn alone(words: &str, text: &'static str) -> Self {
        let (name, server) = (words.to_owned(), words.to_owned());
        let (shows, client) = (Shows::Text(text), String::new());
        Self { name, server, client, shows, also_ends_with: 0, nobody: false, killed: false }
    }

    fn pair(words: &str, shows: Shows) -> Self {
        let client = format!("{words} {PEER}");
        Self { client, shows, ..Self::alone(words, "") }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) fn client(&self) -> &str {
        &self.client
    }

    pub(super) fn is_nobodys(&self) -> bool {
        self.nobody
    }

    pub(super) fn is_killed_first(&self) -> bool {
        self.killed
    }

    fn called(self, how: &str) -> Self {
        Self { name: format!("{} ({how})", self.name), ..self }
    }

    /// What is not as it must be.
    pub(super) fn findings(&self, ended: &Ended) -> Vec<String> {
        let said = words(ended);
        let mut findings = Vec::new();
        let code = ended.status.and_then(|status| status.code());
        if !ended.success() && code != Some(self.also_ends_with) {
            findings.push(ended.describe());
        }
        match self.shows {
            Shows::Text(text) if !said.contains(text) => findings.push(format!("does not say `{text}`")),
            Shows::Rows(least) if rows(&said) < least => {
                findings.push(format!("{} rows of figures, not {least}", rows(&said)));
            }
            _ => {}
        }
        if !findings.is_empty() {
            let last: Vec<_> = said.lines().filter(|line| !line.starts_with("---")).collect();
            findings.extend(last.iter().rev().take(12).rev().map(|line| format!("| {line}")));
        }
        findings
    }
}

/// Lines of figures: the first is a whole number, and there are three more.
fn rows(said: &str) -> usize {
    let is_row = |line: &&str| {
        let mut fields = line.split_whitespace();
        fields.next().is_some_and(|first| first.parse::<u64>().is_ok())
            && fields.take(3).filter(|field| field.parse::<f64>().is_ok()).count() == 3
    };
    said.lines().filter(is_row).count()
}

fn pingpongs() -> Vec<Cell> {
    let mut cells = Vec::new();
    for kind in ["rc", "uc", "ud", "srq"] {
        for words in ["", " -e", " -c", " -s 1048576 -n 100"] {
            // A datagram is no longer than a packet.
            let words = if kind == "ud" && words.contains("1048576") { " -s 2048" } else { words };
            cells.push(Cell::pair(&format!("ibv_{kind}_pingpong -g 0{words}"), Shows::Text("iters in")));
        }
    }
    cells
}

/// Programs of perftest with few rounds: it is the answers that are judged. On the unreliable services they wait for ever
/// for a message that was lost; so there all messages of a run fit the buffer of the receiver's socket.
fn perftest(full: bool) -> Vec<Cell> {
    let mut all: Vec<String> = Vec::new();
    for operation in ["send", "write", "read", "atomic"] {
        all.push(format!("ib_{operation}_lat -n 100"));
        for words in ["", " -q 4", " -q 16"] {
            all.push(format!("ib_{operation}_bw -n 500{words}"));
        }
    }
    for operation in ["send", "read", "atomic"] {
        all.extend([format!("ib_{operation}_lat -n 100 -e"), format!("ib_{operation}_bw -n 500 -e")]);
    }
    let others = [
        "ib_send_lat -n 100 -c UD",
        "ib_send_lat -n 100 -c UC",
        "ib_send_bw -n 100 -s 1024 -c UD",
        "ib_send_bw -n 100 -s 1024 -c UC",
        "ib_write_bw -n 500 -c UC",
        "ib_write_lat -n 100 -c UC",
        "ib_send_bw -n 500 -b",
        "ib_write_bw -n 500 -b",
        "ib_read_bw -n 500 -b",
        "ib_send_bw -n 500 -q 4 --use-srq",
        "ib_send_bw -n 500 -q 16 --use-srq",
        "ib_send_lat -n 100 --use-srq",
    ];
    all.extend(others.map(str::to_owned));
    if full {
        for operation in ["send", "write", "read"] {
            all.extend(["lat -n 100", "bw -n 50"].map(|how| format!("ib_{operation}_{how} -a")));
            all.extend(["-q 4 -b", "-q 16 -b"].map(|how| format!("ib_{operation}_bw -n 500 {how}")));
            // perftest has no events for WRITEs, whose target learns of none.
            if operation != "write" {
                all.extend(["-e -q 4", "-e -b"].map(|how| format!("ib_{operation}_bw -n 500 {how}")));
            }
        }
        for transport in ["UC", "UD"] {
            let with = |(rounds, how): (u32, &str)| format!("ib_send_bw -n {rounds} -s 1024 -c {transport} {how}");
            all.extend([(100, "-e"), (50, "-b"), (25, "-q 4"), (6, "-q 16"), (25, "-q 4 --use-srq")].map(with));
        }
    }
    all.iter().map(|words| Cell::pair(words, Shows::Rows(if words.ends_with(" -a") { 20 } else { 1 }))).collect()
}

/// All cells.
pub(super) fn all(full: bool) -> Vec<Cell> {
    let mut cells = vec![
        Cell::alone("ibv_devices", "soft0"),
        Cell::alone("ibv_devinfo -v", "::ffff:127.0.0.1, RoCE v2"),
        // It waits for events until it is ended.
        Cell { also_ends_with: 124, ..Cell::alone("timeout 2 ibv_asyncwatch", "async event FD") },
    ];
    cells.extend(pingpongs());
    cells.extend(perftest(full));
    let again = |words: &str, shows| Cell::pair(words, shows);
    for words in ["ibv_rc_pingpong -g 0 -c", "ibv_ud_pingpong -g 0 -e"] {
        cells.push(Cell { nobody: true, ..again(words, Shows::Text("iters in")).called("as nobody, no_new_privs") });
    }
    cells.push(Cell { nobody: true, ..again("ib_write_bw -n 500", Shows::Rows(1)).called("as nobody, no_new_privs") });
    cells.push(Cell {
        killed: true,
        ..again("ibv_rc_pingpong -g 0 -c", Shows::Text("iters in")).called("after one was killed")
    });
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_lines_of_figures() {
        let said = " #bytes #iterations t_min\n 65536      1000   142.65   132.70  0.002123raas verbs: x\n 2 100 6.8 7.2 7.1\n\
                    1000 iters in 0.91 seconds\n8388608 bytes in";
        assert_eq!(rows(said), 2);
    }

    #[test]
    fn cells_have_names_of_their_own() {
        for full in [false, true] {
            let mut names: Vec<_> = all(full).iter().map(|cell| cell.name.clone()).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
            assert!(count >= if full { 80 } else { 55 }, "{count}");
        }
    }
}

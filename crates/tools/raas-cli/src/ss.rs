//! `raas ss`: the connections of this host, each with its path and the reason for it, and its datagram sockets.

pub(crate) mod ends;
mod filter;
pub(crate) mod programs;

use std::path::Path;

use control::{ConnectionRow, DatagramRow};
use serde_json::{Map, Value, json};

use crate::cli::SsArgs;
use ends::{Connection, connections};
use filter::Filter;
use programs::Programs;
use terminal::Failure;
use terminal::out;
use terminal::table::{self, Align, Table};
use transport::session_failure;

/// Asks the daemon and prints its connections, of those that the command line asks for.
pub(crate) fn run(args: &SsArgs) -> Result<(), Failure> {
    let filter = Filter::new(args)?;
    let socket = args.socket.path();
    let mut rows = raas::inspect::connections(socket).map_err(session_failure)?;
    let mut datagrams = raas::inspect::datagrams(socket).map_err(session_failure)?;
    let programs = Programs::of(&raas::inspect::stat(socket).map_err(session_failure)?.apps);
    let takes = |row: &ConnectionRow| filter.takes_connection(row, &programs);
    datagrams.retain(|row| filter.takes_datagram(row, &programs));
    if args.json {
        rows.retain(takes);
        return out::line(to_json(&rows, &datagrams, &programs)).map(drop);
    }
    let connections: Vec<_> = connections(&rows).into_iter().filter_map(|c| c.seen_by(takes)).collect();
    let mut text = to_text(&connections, &programs);
    if !datagrams.is_empty() {
        text += &format!("\ndatagram sockets\n{}", datagrams_to_text(&datagrams, &programs));
    }
    out::print(text).map(drop)
}

/// The connection of this number; without one the command has failed.
pub(crate) fn connection(socket: Option<&Path>, id: u64) -> Result<ConnectionRow, Failure> {
    let rows = raas::inspect::connections(socket).map_err(session_failure)?;
    let row = rows.into_iter().find(|row| row.id == id);
    row.ok_or_else(|| Failure::Failed(format!("there is no connection {id}; `raas ss` lists them")))
}

fn to_json(rows: &[ConnectionRow], datagrams: &[DatagramRow], programs: &Programs) -> Value {
    let connections: Vec<Value> = rows
        .iter()
        .map(|r| {
            json!({
                "id": r.id,
                "local": r.local,
                "peer": r.peer,
                "state": r.state.as_str(),
                "lane": r.lane,
                "route_id": r.route_id,
                "path": r.path.as_str(),
                "wire": r.wire,
                "encrypted": r.encrypted,
                "cipher": r.cipher,
                "reason": r.reason.key(),
                "verb": r.verb,
                "verb_asked": r.verb_asked,
                "verb_reason": r.verb_reason,
                "tx_bytes": r.tx_bytes,
                "rx_bytes": r.rx_bytes,
                "direct_tx_bytes": r.direct_tx_bytes,
                "direct_rx_bytes": r.direct_rx_bytes,
                "tx_queued_bytes": r.tx_queued_bytes,
                "rx_queued_bytes": r.rx_queued_bytes,
                "app_pid": r.app_pid,
                "program": programs.name(r.app_pid),
            })
        })
        .collect();
    let sockets: Vec<Value> = datagrams
        .iter()
        .map(|r| {
            let drops: Map<_, _> = r.drops.iter().map(|(reason, n)| (reason.clone(), json!(n))).collect();
            json!({
                "id": r.id,
                "kind": "datagram",
                "local": r.local,
                "tx_datagrams": r.tx_datagrams,
                "rx_datagrams": r.rx_datagrams,
                "tx_bytes": r.tx_bytes,
                "rx_bytes": r.rx_bytes,
                "drops": drops,
                "app_pid": r.app_pid,
                "program": programs.name(r.app_pid),
            })
        })
        .collect();
    json!({ "schema": "raas.ss/1", "connections": connections, "datagram_sockets": sockets })
}

fn datagrams_to_text(rows: &[DatagramRow], programs: &Programs) -> String {
    let mut t = Table::new(&[
        ("ID", Align::Right),
        ("LOCAL", Align::Left),
        ("DATAGRAMS-SENT", Align::Right),
        ("DATAGRAMS-RECEIVED", Align::Right),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("PID", Align::Right),
        ("PROGRAM", Align::Left),
        ("DROPPED", Align::Left),
    ])
    .spare(&["SENT", "RECEIVED", "ID", "PID"]);
    for r in rows {
        let drops: Vec<String> = r.drops.iter().map(|(reason, n)| format!("{} {reason}", table::grouped(*n))).collect();
        t.row(vec![
            r.id.to_string(),
            r.local.to_string(),
            table::grouped(r.tx_datagrams),
            table::grouped(r.rx_datagrams),
            table::bytes(r.tx_bytes),
            table::bytes(r.rx_bytes),
            r.app_pid.to_string(),
            programs.cell(r.app_pid),
            if drops.is_empty() { "-".to_owned() } else { drops.join(", ") },
        ]);
    }
    t.render()
}

/// A row for each connection, also where both of its ends are programs of this host.
fn to_text(connections: &[Connection<'_>], programs: &Programs) -> String {
    let mut t = Table::new(&[
        ("LOCAL", Align::Left),
        ("PEER", Align::Left),
        ("PATH", Align::Left),
        ("WHY", Align::Left),
        ("STATE", Align::Left),
        ("WIRE", Align::Left),
        ("ENCRYPTED", Align::Left),
        ("VERB", Align::Left),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("TX-QUEUE", Align::Right),
        ("RX-QUEUE", Align::Right),
        ("ROUTE", Align::Right),
        ("LANE", Align::Left),
        ("PID", Align::Right),
        ("PROGRAM", Align::Left),
        ("PEER-PROGRAM", Align::Left),
        ("PEER-PID", Align::Right),
        ("ID", Align::Right),
    ])
    .spare(&[
        "ROUTE",
        "ID",
        "PEER-PID",
        "WIRE",
        "ENCRYPTED",
        "VERB",
        "LANE",
        "RX-QUEUE",
        "TX-QUEUE",
        "PID",
        "STATE",
        "PEER-PROGRAM",
        "RECEIVED",
        "SENT",
        "PROGRAM",
    ]);
    for c in connections {
        let r = c.row;
        t.row(vec![
            r.local.to_string(),
            r.peer.to_string(),
            r.path.as_str().to_owned(),
            r.reason.key().to_owned(),
            r.state.as_str().to_owned(),
            r.wire.clone().unwrap_or("-".to_owned()),
            protection_cell(r),
            verb_cell(r),
            table::bytes(r.tx_bytes),
            table::bytes(r.rx_bytes),
            table::bytes(r.tx_queued_bytes),
            table::bytes(r.rx_queued_bytes),
            r.route_id.map_or("-".to_owned(), |id| id.to_string()),
            r.lane.clone().unwrap_or("-".to_owned()),
            r.app_pid.to_string(),
            programs.cell(r.app_pid),
            c.other.map_or("-".to_owned(), |other| programs.cell(other.app_pid)),
            c.other.map_or("-".to_owned(), |other| other.app_pid.to_string()),
            r.id.to_string(),
        ]);
    }
    t.render()
}

/// What carried the last bytes, and in brackets what was asked for, where that is another verb.
fn verb_cell(row: &ConnectionRow) -> String {
    match (&row.verb, &row.verb_asked) {
        (Some(used), Some(asked)) if used != asked => format!("{used} ({asked})"),
        (Some(used), _) => used.clone(),
        (None, Some(asked)) => format!("({asked})"),
        (None, None) => "-".to_owned(),
    }
}

/// What encrypts and authenticates the bytes between the hosts.
fn protection_cell(row: &ConnectionRow) -> String {
    match (row.encrypted, &row.cipher) {
        (_, Some(cipher)) => cipher.clone(),
        (Some(_), None) => "no".to_owned(),
        (None, None) => "-".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cli::{PATHS, STATES};
    use control::{AppRow, ConnectionState, PathKind};

    pub(crate) fn connection() -> ConnectionRow {
        ConnectionRow {
            id: 7,
            local: "10.0.0.1:5000".parse().unwrap(),
            peer: "10.0.0.2:80".parse().unwrap(),
            state: ConnectionState::FinSent,
            lane: Some("10.0.0.2/0".into()),
            route_id: Some(3),
            path: PathKind::Lane,
            wire: Some("roce".into()),
            encrypted: None,
            cipher: None,
            reason: control::Reason::OtherHost,
            verb: Some("send".into()),
            verb_asked: None,
            verb_reason: Some("short".into()),
            tx_bytes: 1,
            rx_bytes: 2,
            direct_tx_bytes: 0,
            direct_rx_bytes: 0,
            tx_queued_bytes: 3,
            rx_queued_bytes: 4,
            app_pid: 5,
        }
    }

    pub(super) fn datagram() -> DatagramRow {
        DatagramRow {
            id: 8,
            local: "10.0.0.1:7001".parse().unwrap(),
            tx_datagrams: 1,
            rx_datagrams: 2,
            tx_bytes: 3,
            rx_bytes: 4,
            drops: vec![("ring_full".into(), 5)],
            app_pid: 6,
        }
    }

    pub(super) fn app(pid: u32, name: &str) -> AppRow {
        AppRow {
            pid,
            uid: 0,
            name: name.into(),
            connections: 0,
            tx_bytes: 0,
            rx_bytes: 0,
            pinned_bytes: 0,
            reads: 0,
            writes: 0,
            atomics: 0,
            kernels: 0,
            tenant: String::new(),
            session: 0,
        }
    }

    #[test]
    fn keys_and_words_are_the_ones_that_bind() {
        let programs = Programs::of(&[app(5, "server")]);
        let value = to_json(&[connection()], &[datagram()], &programs);
        assert_eq!(
            value,
            json!({"schema": "raas.ss/1", "connections": [{
                "id": 7, "local": "10.0.0.1:5000", "peer": "10.0.0.2:80", "state": "fin-sent", "lane": "10.0.0.2/0",
                "route_id": 3, "path": "lane", "wire": "roce", "encrypted": null, "cipher": null, "reason": "other-host", "verb": "send",
                "verb_asked": null, "verb_reason": "short", "tx_bytes": 1, "rx_bytes": 2,
                "direct_tx_bytes": 0, "direct_rx_bytes": 0, "tx_queued_bytes": 3, "rx_queued_bytes": 4, "app_pid": 5, "program": "server"
            }], "datagram_sockets": [{
                "id": 8, "kind": "datagram", "local": "10.0.0.1:7001", "tx_datagrams": 1, "rx_datagrams": 2, "tx_bytes": 3,
                "rx_bytes": 4, "drops": {"ring_full": 5}, "app_pid": 6, "program": null
            }]})
        );
        let text = to_text(&connections(&[connection()]), &programs);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("10.0.0.2:80  lane  other-host"), "{text}");
        assert!(datagrams_to_text(&[datagram()], &programs).contains("5 ring_full"));
    }

    #[test]
    fn a_connection_between_two_programs_of_this_host_is_one_row() {
        let programs = Programs::of(&[app(5, "server"), app(6, "client")]);
        let one = ConnectionRow { path: PathKind::Shm, ..connection() };
        let other = ConnectionRow { id: 8, local: one.peer, peer: one.local, app_pid: 6, ..one.clone() };
        let text = to_text(&connections(&[one, other]), &programs);
        let cells = |line| str::split(line, "  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let words: Vec<Vec<&str>> = text.lines().map(cells).collect();
        assert_eq!(words.len(), 2, "{text}");
        let cell = |name: &str| words[1][words[0].iter().position(|word| *word == name).unwrap()];
        assert_eq!((cell("LOCAL"), cell("PROGRAM"), cell("PID")), ("10.0.0.1:5000", "server", "5"));
        assert_eq!((cell("PEER-PROGRAM"), cell("PEER-PID"), cell("ID")), ("client", "6", "7"));
    }

    #[test]
    fn a_verb_that_was_asked_for_and_is_not_used_stands_beside_the_one_that_is() {
        let cell = |used: Option<&str>, asked: Option<&str>| {
            let [verb, verb_asked] = [used, asked].map(|v| v.map(str::to_owned));
            verb_cell(&ConnectionRow { verb, verb_asked, ..connection() })
        };
        assert_eq!(cell(Some("write_imm"), None), "write_imm");
        assert_eq!(cell(Some("read"), Some("read")), "read");
        assert_eq!(cell(Some("write_imm"), Some("read")), "write_imm (read)");
        assert_eq!((cell(None, Some("send")), cell(None, None)), ("(send)".to_owned(), "-".to_owned()));
    }

    #[test]
    fn what_protects_a_connection_is_named() {
        let cell = |encrypted: Option<bool>, cipher: Option<&str>| {
            protection_cell(&ConnectionRow { encrypted, cipher: cipher.map(str::to_owned), ..connection() })
        };
        assert_eq!(cell(Some(true), Some("AES-128-GCM")), "AES-128-GCM");
        assert_eq!((cell(Some(false), None), cell(None, None)), ("no".to_owned(), "-".to_owned()));
    }

    #[test]
    fn every_state_and_path_can_be_asked_for() {
        use ConnectionState::{Backlog, Closing, Connecting, Established, FinReceived, FinSent};
        let states = [Connecting, Backlog, Established, FinSent, FinReceived, Closing].map(ConnectionState::as_str);
        assert_eq!(states, STATES);
        assert_eq!(
            [PathKind::Shm, PathKind::Lane, PathKind::Leased, PathKind::Tcp, PathKind::TcpDirect].map(PathKind::as_str),
            PATHS
        );
    }
}

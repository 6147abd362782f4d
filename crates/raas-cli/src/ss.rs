//! `raas ss`: the connections of this host, each with its path and the reason for it, and its datagram sockets.

use std::path::Path;

use control::{ConnectionRow, ConnectionState, DatagramRow, PathKind};
use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::table::{self, Align, Table};
use crate::transport::session_failure;

/// Asks the daemon at `socket` and prints its connections.
pub(crate) fn run(socket: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let rows = raas::inspect::connections(socket).map_err(session_failure)?;
    let datagrams = raas::inspect::datagrams(socket).map_err(session_failure)?;
    if as_json {
        println!("{}", to_json(&rows, &datagrams));
    } else {
        print!("{}", to_text(&rows));
        if !datagrams.is_empty() {
            print!("\ndatagram sockets\n{}", datagrams_to_text(&datagrams));
        }
    }
    Ok(())
}

/// The word for a path in JSON and tables.
pub(crate) fn path_name(path: PathKind) -> &'static str {
    match path {
        PathKind::Shm => "shm",
        PathKind::Lane => "lane",
        PathKind::Leased => "leased",
        PathKind::Tcp => "tcp",
    }
}

fn state_name(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::Connecting => "connecting",
        ConnectionState::Backlog => "backlog",
        ConnectionState::Established => "established",
        ConnectionState::FinSent => "fin-sent",
        ConnectionState::FinReceived => "fin-received",
        ConnectionState::Closing => "closing",
    }
}

fn to_json(rows: &[ConnectionRow], datagrams: &[DatagramRow]) -> Value {
    let connections: Vec<Value> = rows
        .iter()
        .map(|r| {
            json!({
                "id": r.id,
                "local": r.local,
                "peer": r.peer,
                "state": state_name(r.state),
                "lane": r.lane,
                "route_id": r.route_id,
                "path": path_name(r.path),
                "reason": r.reason.key(),
                "tx_bytes": r.tx_bytes,
                "rx_bytes": r.rx_bytes,
                "tx_queued_bytes": r.tx_queued_bytes,
                "rx_queued_bytes": r.rx_queued_bytes,
                "app_pid": r.app_pid,
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
            })
        })
        .collect();
    json!({ "schema": "raas.ss/1", "connections": connections, "datagram_sockets": sockets })
}

fn datagrams_to_text(rows: &[DatagramRow]) -> String {
    let mut t = Table::new(&[
        ("ID", Align::Right),
        ("LOCAL", Align::Left),
        ("DATAGRAMS-SENT", Align::Right),
        ("DATAGRAMS-RECEIVED", Align::Right),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("PID", Align::Right),
        ("DROPPED", Align::Left),
    ]);
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
            if drops.is_empty() { "-".to_owned() } else { drops.join(", ") },
        ]);
    }
    t.render()
}

fn to_text(rows: &[ConnectionRow]) -> String {
    let mut t = Table::new(&[
        ("ID", Align::Right),
        ("STATE", Align::Left),
        ("PATH", Align::Left),
        ("LOCAL", Align::Left),
        ("PEER", Align::Left),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("TX-QUEUE", Align::Right),
        ("RX-QUEUE", Align::Right),
        ("ROUTE", Align::Right),
        ("LANE", Align::Left),
        ("PID", Align::Right),
        ("WHY THIS PATH", Align::Left),
    ]);
    for r in rows {
        t.row(vec![
            r.id.to_string(),
            state_name(r.state).to_owned(),
            path_name(r.path).to_owned(),
            r.local.to_string(),
            r.peer.to_string(),
            table::bytes(r.tx_bytes),
            table::bytes(r.rx_bytes),
            table::bytes(r.tx_queued_bytes),
            table::bytes(r.rx_queued_bytes),
            r.route_id.map_or("-".to_owned(), |id| id.to_string()),
            r.lane.clone().unwrap_or("-".to_owned()),
            r.app_pid.to_string(),
            r.reason.key().to_owned(),
        ]);
    }
    t.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_words_are_the_ones_that_bind() {
        let row = ConnectionRow {
            id: 7,
            local: "10.0.0.1:5000".parse().unwrap(),
            peer: "10.0.0.2:80".parse().unwrap(),
            state: ConnectionState::FinSent,
            lane: Some("10.0.0.2/0".into()),
            route_id: Some(3),
            path: PathKind::Lane,
            reason: control::Reason::OtherHost,
            tx_bytes: 1,
            rx_bytes: 2,
            tx_queued_bytes: 3,
            rx_queued_bytes: 4,
            app_pid: 5,
        };
        let socket = DatagramRow {
            id: 8,
            local: "10.0.0.1:7001".parse().unwrap(),
            tx_datagrams: 1,
            rx_datagrams: 2,
            tx_bytes: 3,
            rx_bytes: 4,
            drops: vec![("ring_full".into(), 5)],
            app_pid: 6,
        };
        let value = to_json(std::slice::from_ref(&row), std::slice::from_ref(&socket));
        assert_eq!(
            value.to_string(),
            json!({"schema": "raas.ss/1", "connections": [{
                "id": 7, "local": "10.0.0.1:5000", "peer": "10.0.0.2:80", "state": "fin-sent", "lane": "10.0.0.2/0",
                "route_id": 3, "path": "lane", "reason": "other-host", "tx_bytes": 1, "rx_bytes": 2,
                "tx_queued_bytes": 3, "rx_queued_bytes": 4, "app_pid": 5
            }], "datagram_sockets": [{
                "id": 8, "kind": "datagram", "local": "10.0.0.1:7001", "tx_datagrams": 1, "rx_datagrams": 2, "tx_bytes": 3,
                "rx_bytes": 4, "drops": {"ring_full": 5}, "app_pid": 6
            }]})
            .to_string()
        );
        let text = to_text(&[row]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("10.0.0.2:80") && text.contains("other-host"));
        assert!(datagrams_to_text(&[socket]).contains("5 ring_full"));
    }
}

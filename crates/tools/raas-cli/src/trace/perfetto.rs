//! Messages in the trace event format, which Perfetto and Chrome's `about:tracing` read. Each message has a track of its
//! own, since messages of a connection overlap.

use control::TraceRow;
use serde_json::{Value, json};

/// One object with all events; times in microseconds of this host's monotonic clock.
pub(super) fn to_json<'a>(messages: impl Iterator<Item = &'a TraceRow>) -> Value {
    let mut events = Vec::new();
    for row in messages {
        let from = row.stages.iter().map(|(_, from, _)| *from).min();
        let to = row.stages.iter().map(|(.., to)| *to).max();
        let (Some(from), Some(to)) = (from, to) else { continue };
        let name = format!("connection {} with {}", row.connection, row.peer);
        let about = json!({ "offset": row.offset, "connection": row.connection, "peer": row.peer });
        events.push(event(row, "b", &name, from, Some(about)));
        // The longer of two that begin together is the outer one.
        let mut stages: Vec<_> = row.stages.iter().collect();
        stages.sort_by_key(|(_, from, to)| (*from, std::cmp::Reverse(*to)));
        let mut open: Vec<(&str, u64)> = Vec::new();
        for (stage, from, to) in stages {
            while let Some((inner, end)) = open.pop_if(|(_, end)| *end <= *from) {
                events.push(event(row, "e", inner, end, None));
            }
            events.push(event(row, "b", stage, *from, None));
            open.push((stage, *to));
        }
        open.sort_by_key(|(_, end)| *end);
        events.extend(open.into_iter().map(|(stage, end)| event(row, "e", stage, end, None)));
        events.push(event(row, "e", &name, to, None));
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}

fn event(row: &TraceRow, phase: &str, name: &str, at_ns: u64, about: Option<Value>) -> Value {
    json!({
        "ph": phase,
        "cat": "raas",
        "name": name,
        "id": format!("{}.{}", row.engine, row.number),
        "pid": 1,
        "tid": row.connection,
        "ts": at_ns as f64 / 1000.0,
        "args": about.unwrap_or_else(|| json!({})),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::message;
    use super::*;

    #[test]
    fn every_event_that_begins_ends_and_none_before_its_begin() {
        let sent = message(1, &[("tx-engine", 100, 300), ("tx-device", 300, 900), ("tx-delivery", 300, 2000)]);
        let received = message(2, &[("rx-publish", 5, 6), ("rx-application", 6, 1006)]);
        let value = to_json([&sent, &received].into_iter());
        let events = value["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 2 * (1 + 3) + 2 * (1 + 2));
        let mut open: Vec<(Value, Value, f64)> = Vec::new();
        let mut last = 0.0;
        for e in events {
            let (key, ts) = ((e["id"].clone(), e["name"].clone()), e["ts"].as_f64().unwrap());
            if open.is_empty() {
                last = 0.0;
            }
            assert!(ts >= last, "in order: {events:?}");
            last = ts;
            if e["ph"] == "b" {
                open.push((key.0, key.1, ts));
            } else {
                let (id, name, begun) = open.pop().expect("it began");
                assert_eq!((id, name), key, "nested");
                assert!(begun <= ts);
            }
        }
        assert!(open.is_empty());
        assert_eq!(events[0]["args"]["offset"], 16_384);
    }
}

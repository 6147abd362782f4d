//! Pictures of `raas top`, drawn into memory: what they show at each width, and what keys change.

use std::time::{Duration, Instant};

use control::{AppRow, ConnectionRow, ConnectionState, LaneRow, PathKind, Reason, StageRow, Stat, VerbCounts};
use monitor::Sample;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::view::{Goes, View};

fn app(session: u64, name: &str, tx_bytes: u64) -> AppRow {
    AppRow {
        pid: 4000 + session as u32,
        uid: 1000,
        name: name.into(),
        connections: 1,
        tx_bytes,
        rx_bytes: 0,
        pinned_bytes: 1 << 20,
        reads: 0,
        writes: 1,
        atomics: 0,
        kernels: 0,
        tenant: String::new(),
        session,
    }
}

fn lane(peer: &str, state: &str, tx_bytes: u64) -> LaneRow {
    LaneRow {
        name: format!("{peer}/0"),
        peer: format!("{peer}:4791").parse().unwrap(),
        state: state.into(),
        incarnation: 1,
        resets: 0,
        qpn: Some(17),
        peer_qpn: Some(18),
        wire: Some("iwarp".into()),
        wire_reason: None,
        encrypted: None,
        encryption_reason: None,
        cipher: None,
        keys_age_us: None,
        mtu_bytes: 4096,
        connections: 2,
        credits: 500,
        granted: 200,
        tx_bytes,
        rx_bytes: 0,
        dials_failed: 0,
        redial_in_us: 0,
        link_path: None,
        link_path_reason: None,
    }
}

fn connection(id: u64, peer: &str, tx_bytes: u64) -> ConnectionRow {
    ConnectionRow {
        id,
        local: "10.0.0.1:40000".parse().unwrap(),
        peer: peer.parse().unwrap(),
        state: ConnectionState::Established,
        lane: Some("10.0.0.2/0".into()),
        route_id: Some(3),
        path: PathKind::Lane,
        wire: Some("iwarp".into()),
        encrypted: None,
        cipher: None,
        reason: Reason::OtherHost,
        verb: Some("write_imm".into()),
        verb_asked: None,
        verb_reason: None,
        tx_bytes,
        rx_bytes: 0,
        direct_tx_bytes: 0,
        direct_rx_bytes: 0,
        tx_queued_bytes: 0,
        rx_queued_bytes: 0,
        app_pid: 4001,
    }
}

fn sample(at: Instant, bytes: u64) -> Sample {
    let stat = Stat {
        device: "softnic".into(),
        device_reason: "no hardware".into(),
        lanes: vec![lane("10.0.0.2", "up", 5 * bytes), lane("10.0.0.3", "connecting", 0)],
        rc_qps: 1,
        ud_qps: 1,
        cqs: 1,
        srqs: 1,
        srq_free: 1000,
        mrs: 3,
        pinned_bytes: 4096,
        fds: 20,
        drops: vec![("bad_icrc".into(), bytes / 1_000_000)],
        verbs: VerbCounts { write_imm: bytes / 1000, ..VerbCounts::default() },
        retransmits: 0,
        counters: vec![("connects".into(), 3)],
        apps: vec![app(1, "quiet", bytes), app(2, "\x1b[31mevil\nname", 4 * bytes)],
        stages: Vec::new(),
        uptime_seconds: 60,
        all_users: true,
        unknown: Vec::new(),
    };
    let stage = |name: &str, buckets: &[(u64, u64)]| StageRow {
        name: name.into(),
        sum_ns: 1,
        buckets: buckets.iter().map(|(end, n)| (*end, n * (bytes / 1_000_000))).collect(),
    };
    let stages =
        vec![stage("tx-engine", &[(1024, 10), (2048, 40)]), stage("tx-delivery", &[(10_000, 1), (1 << 40, 1)])];
    let stat = Stat { stages, ..stat };
    let connections = vec![connection(11, "10.0.0.2:7000", bytes), connection(12, "10.0.0.3:7001", 4 * bytes)];
    Sample { at, took: Duration::ZERO, stat, connections }
}

fn view() -> View {
    let mut view = View::new();
    let begin = Instant::now();
    view.take(sample(begin, 0));
    view.take(sample(begin + Duration::from_secs(1), 2_000_000));
    view
}

fn lines(view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| super::draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn press(view: &mut View, code: KeyCode) -> Goes {
    view.on_key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(view: &mut View, keys: &str) {
    keys.chars().for_each(|c| assert_eq!(press(view, KeyCode::Char(c)), Goes::On));
}

#[test]
fn eighty_columns_show_who_carries_most() {
    let shown = lines(&view(), 80, 24);
    assert_eq!(shown[0], "raas top: softnic, up 60 s, 2 applications, 2 connections, 1 of 2 lanes up");
    assert_eq!(shown[1], "10.0 MB/s out, 0 B/s in, 2,000 work requests/s, 2.0 drops/s, 0 sent again");
    assert_eq!(shown[5], " 1 applications   2 connections   3 lanes   4 latency and counters");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&shown[6]), ["PID", "NAME", "USER", "CONNS", "OUT/sv", "IN/s", "SENT", "RECEIVED", "OPS"]);
    assert_eq!(
        words(&shown[7]),
        ["4002", "\u{fffd}[31mevil\u{fffd}name", "1000", "1", "8.00", "MB", "-", "8.00", "MB", "0", "B", "1"]
    );
    assert_eq!(words(&shown[8])[..2], ["4001", "quiet"]);
    assert!(shown[23].starts_with("q quit"), "{shown:?}");
}

#[test]
fn every_table_fits_every_width_and_height() {
    let mut view = view();
    for tab in ['1', '2', '3', '4'] {
        type_in(&mut view, &tab.to_string());
        for (width, height) in [(1, 1), (10, 3), (20, 8), (40, 24), (60, 10), (80, 24), (120, 40), (300, 100)] {
            let shown = lines(&view, width, height);
            assert_eq!(shown.len(), usize::from(height));
        }
        let narrow = lines(&view, 60, 24).join("\n");
        let wide = lines(&view, 200, 24).join("\n");
        for must in match tab {
            '1' => ["NAME", "OUT/s", "4002"],
            '2' => ["PEER", "10.0.0.3:7001", "lane"],
            '3' => ["LANE", "10.0.0.2/0", "connecting"],
            _ => ["COUNTER", "drop: bad_icrc", "connects"],
        } {
            assert!(narrow.contains(must) && wide.contains(must), "{tab} {must}:\n{narrow}\n{wide}");
        }
    }
    assert!(
        lines(
            &{
                type_in(&mut view, "2");
                view
            },
            200,
            24
        )
        .join("\n")
        .contains("other-host")
    );
}

#[test]
fn latency_is_a_line_with_a_histogram_for_each_stage() {
    let mut view = view();
    type_in(&mut view, "4");
    let shown = lines(&view, 80, 24);
    assert!(shown[6].starts_with("STAGE") && shown[6].ends_with("since the last look"), "{shown:?}");
    assert_eq!(shown[7], "tx-engine          100     2.0 us     2.0 us    \u{2582}\u{2588}");
    assert!(shown[8].starts_with("tx-delivery          4    10.0 us") && shown[8].ends_with('\u{2588}'), "{shown:?}");
    assert!(shown[10].starts_with("COUNTER"), "{shown:?}");
}

#[test]
fn keys_sort_filter_and_end_it() {
    let mut view = view();
    type_in(&mut view, "2");
    let order = |view: &View| {
        let shown = lines(view, 200, 24);
        shown.iter().skip(7).filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok()).collect::<Vec<_>>()
    };
    assert_eq!(order(&view), [12, 11], "by bytes a second");
    type_in(&mut view, "r");
    assert_eq!(order(&view), [11, 12]);
    // From OUT/s over IN/s, QUEUED, PID and PROGRAM round to ID.
    type_in(&mut view, "sssssr");
    assert_eq!(order(&view), [12, 11], "by number, the largest first");
    type_in(&mut view, "/7000");
    assert!(lines(&view, 80, 24)[23].contains("filter: 7000_"));
    assert_eq!(order(&view), [11]);
    // In a filter keys are letters.
    type_in(&mut view, "q");
    assert_eq!(order(&view), [0u64; 0]);
    press(&mut view, KeyCode::Backspace);
    press(&mut view, KeyCode::Enter);
    assert_eq!(order(&view), [11]);
    press(&mut view, KeyCode::Esc);
    press(&mut view, KeyCode::Down);
    assert_eq!(order(&view), [11], "the first row is scrolled away");
    (0..50).for_each(|_| _ = press(&mut view, KeyCode::PageDown));
    assert_eq!(order(&view), [11], "the last row stays");
    type_in(&mut view, "p");
    view.take(sample(Instant::now() + Duration::from_secs(9), 0));
    assert!(lines(&view, 80, 24)[1].starts_with("PAUSED") && order(&view) == [11]);
    assert_eq!(press(&mut view, KeyCode::Char('q')), Goes::Away);
    assert_eq!(view.on_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Goes::Away);
}

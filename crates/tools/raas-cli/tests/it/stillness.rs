//! Daemons that stand still (SIGSTOP, a paused machine) and go on: connections wait for them, show it, and lose
//! nothing.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::rig::{self, Cluster, Daemon, WATCHDOG, address, pattern, raas, run, wait_until};
use raas::{
    Batch, Completion, Listener, Quorum, Reason, Region, RegionAccess, RegionError, RegionKey, RegionOptions, Stream,
    StreamError,
};
use rustix::process::Signal;

/// A daemon whose connections wait as long as this configuration says.
fn daemon(cluster: &Cluster, configuration: &str) -> Daemon {
    use std::process::Stdio;
    let ip = address();
    let (socket, file) = (cluster.dir.path().join(format!("{ip}.sock")), cluster.dir.path().join(format!("{ip}.toml")));
    std::fs::write(&file, configuration).unwrap();
    let mut command = raas();
    command.args(["daemon", "--listen", &ip.to_string(), "--until-stdin-closes", "--config"]).arg(&file);
    command.arg("--socket").arg(&socket).arg("--key-file").arg(cluster.key()).stdin(Stdio::piped());
    rig::on_wire(&mut command);
    let mut process = rig::Running::start(&mut command);
    process.wait_for(&format!("ready socket={}", socket.display()));
    Daemon { ip, socket, process }
}

/// A stopped daemon that goes on when dropped, so that it can be ended.
struct Still<'a>(&'a Daemon, Instant);

impl<'a> Still<'a> {
    fn new(daemon: &'a Daemon) -> Self {
        daemon.process.signal(Signal::STOP);
        // A thread that runs goes on until the kernel has interrupted it.
        wait_until("all threads stand still", || daemon.process.stands_still());
        Self(daemon, Instant::now())
    }

    fn until(&self, seconds: f64) {
        std::thread::sleep(Duration::from_secs_f64(seconds).saturating_sub(self.1.elapsed()));
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.0.process.signal(Signal::CONT);
    }
}

fn pair(a: &raas::Session, listener: &Listener) -> (Stream, Stream) {
    let near = Stream::connect_with(a, listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept_timeout(WATCHDOG).unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        stream.set_write_timeout(Some(WATCHDOG)).unwrap();
    }
    (near, far)
}

/// A round trip of some bytes.
fn exchange(mut near: &Stream, mut far: &Stream) {
    let mut got = [0; 5];
    near.write_all(b"hello").unwrap();
    far.read_exact(&mut got).unwrap();
    far.write_all(&got).unwrap();
    near.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
}

fn reasons(daemon: &Daemon) -> Vec<String> {
    let ended = run(&mut daemon.command(&["ss", "--json"]));
    assert_eq!(ended.code(), 0, "{ended:?}");
    let rows = ended.json()["connections"].clone();
    rows.as_array().unwrap().iter().map(|row| row["reason"].as_str().unwrap().to_owned()).collect()
}

/// Bytes that go from one end to the other all the time, each checked.
struct Traffic {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<u64>>,
}

impl Traffic {
    fn start(near: Stream, far: Stream) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (block, seen) = (Arc::new(pattern(1 << 20)), Arc::clone(&stop));
        let sent = Arc::clone(&block);
        let writer = std::thread::spawn(move || {
            let (mut near, mut bytes) = (near, 0);
            while !seen.load(Ordering::Relaxed) {
                near.write_all(&sent).unwrap();
                bytes += sent.len() as u64;
            }
            near.shutdown(std::net::Shutdown::Write).unwrap();
            bytes
        });
        let reader = std::thread::spawn(move || {
            let (mut far, mut bytes, mut buffer) = (far, 0, vec![0; 64 << 10]);
            loop {
                let count = far.read(&mut buffer).unwrap();
                if count == 0 {
                    return bytes as u64;
                }
                for byte in &buffer[..count] {
                    assert_eq!(*byte, block[bytes % block.len()], "at {bytes}");
                    bytes += 1;
                }
            }
        });
        Self { stop, threads: vec![writer, reader] }
    }

    /// Ends it; all that was sent has arrived.
    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let bytes: Vec<u64> = self.threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(bytes[0], bytes[1]);
        bytes[0]
    }
}

/// Twenty connections, idle and busy, over a stillness of either daemon.
fn survives(configuration: &str, seconds: f64) {
    let cluster = Cluster::new();
    // What is tested is the lane, and the busy streams would leave it.
    let configuration = &format!("tcp_direct = \"off\"\n{configuration}");
    let (a, b) = (daemon(&cluster, configuration), daemon(&cluster, configuration));
    let (session_a, session_b) = (a.session("on-a"), b.session("on-b"));
    let listener = Listener::bind_with(&session_b, (b.ip, 7000)).unwrap();
    let idle: Vec<_> = (0..18).map(|_| pair(&session_a, &listener)).collect();
    idle.iter().for_each(|(near, far)| exchange(near, far));
    let (near, far) = pair(&session_a, &listener);
    let forth = Traffic::start(near, far);
    let (near, far) = pair(&session_a, &listener);
    let back = Traffic::start(far, near);
    for (still, awake) in [(&b, &a), (&a, &b)] {
        let pause = Still::new(still);
        wait_until("stalled connections", || reasons(awake).iter().all(|reason| reason == "stalled"));
        assert_eq!(reasons(awake).len(), 20);
        pause.until(seconds);
        drop(pause);
        for daemon in [still, awake] {
            wait_until("no stalled connections", || reasons(daemon).iter().all(|reason| reason == "other-host"));
        }
        idle.iter().for_each(|(near, far)| exchange(near, far));
    }
    assert!(forth.finish() > 0 && back.finish() > 0);
    let stat = run(&mut a.command(&["stat", "--json"])).json();
    let lane = &stat["lanes"][0];
    // A daemon that had nothing in flight when its peer stopped keeps its queue pair, so one of the two may be left out.
    // On TCP the kernel of the daemon that stands still answers for it.
    let least = u64::from(lane["wire"] != "iwarp");
    assert!(
        lane["resets"].as_u64().unwrap() >= least && lane["state"] == "up",
        "the queue pair had time to give up: {lane}"
    );
    idle.iter().for_each(|(near, far)| assert_eq!((near.failure(), far.failure()), (None, None)));
    drop((idle, listener, session_a, session_b));
    a.stop();
    b.stop();
}

/// Longer than the lane's queue pair tries to send, and than two daemons may take to make another: 10 s.
#[test]
fn connections_survive_a_daemon_that_stands_still() {
    // Many misses: on a busy machine the daemons wait for each other for longer than this stands still.
    survives("heartbeat_ms = 200\nheartbeat_misses = 1000\n", 11.5);
}

#[test]
fn connections_survive_half_a_minute_of_stillness_by_default() {
    if std::env::var_os("RAAS_TEST_FULL").is_none() {
        eprintln!(
            "a stillness of 30 s takes a minute: `cargo xtask test unit --full` runs it, the shorter one runs always"
        );
        return;
    }
    survives("", 30.5);
}

#[test]
fn an_application_may_ask_to_wait_for_less() {
    let cluster = Cluster::new();
    let configuration = "heartbeat_ms = 100\nheartbeat_misses = 1000\n";
    let (a, b) = (daemon(&cluster, configuration), daemon(&cluster, configuration));
    let (session_a, session_b) = (a.session("on-a"), b.session("on-b"));
    let listener = Listener::bind_with(&session_b, (b.ip, 7000)).unwrap();
    let options = raas::ConnectOptions::new().peer_timeout(Duration::from_millis(800));
    let mut hasty = options.connect(&session_a, listener.local_addr().unwrap()).unwrap();
    assert_eq!(hasty.peer_timeout(), Some(Duration::from_millis(800)));
    let (hasty_peer, _) = listener.accept_timeout(WATCHDOG).unwrap();
    let (patient, patient_peer) = pair(&session_a, &listener);
    let (late, late_peer) = pair(&session_a, &listener);
    assert_eq!(late.set_peer_timeout(Some(Duration::ZERO)).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(patient.peer_timeout(), None);
    let pause = Still::new(&b);
    hasty.set_read_timeout(Some(WATCHDOG)).unwrap();
    let error = hasty.read(&mut [0]).unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerTimeout), "{error}");
    assert_eq!(StreamError::reason_of(&hasty.write(b"x").unwrap_err()), Some(Reason::PeerTimeout));
    // One that waits already may still say for how long.
    late.set_peer_timeout(Some(Duration::from_millis(100))).unwrap();
    let error = (&late).read(&mut [0]).unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerTimeout), "{error}");
    assert_eq!(patient.failure(), None);
    drop(pause);
    exchange(&patient, &patient_peer);
    for ended in [&hasty_peer, &late_peer] {
        let mut ended = ended;
        ended.set_read_timeout(Some(WATCHDOG)).unwrap();
        let error = ended.read(&mut [0]).unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerTimeout), "{error}");
    }
    drop((hasty, hasty_peer, late, late_peer, patient, patient_peer, listener, session_a, session_b));
    a.stop();
    b.stop();
}

/// The system reports the death of a peer's process, however long the daemon waits for silent peers.
#[test]
fn a_daemon_that_dies_while_it_stands_still_ends_its_connections_at_once() {
    let cluster = Cluster::new();
    let configuration = "heartbeat_ms = 100\nheartbeat_misses = 1000\n";
    let (a, mut b) = (daemon(&cluster, configuration), daemon(&cluster, configuration));
    let (session_a, session_b) = (a.session("on-a"), b.session("on-b"));
    let listener = Listener::bind_with(&session_b, (b.ip, 7000)).unwrap();
    let (near, _far) = pair(&session_a, &listener);
    b.process.signal(Signal::STOP);
    wait_until("a stalled connection", || reasons(&a) == ["stalled"]);
    assert_eq!(near.failure(), None);
    b.process.kill();
    let error = (&near).read(&mut [0]).unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerLost), "{error}");
    assert!(!a.process.stderr().contains("go on"), "its connections ended: {}", a.process.stderr());
    assert!(a.process.stderr().contains("its connections end"), "{}", a.process.stderr());
}

/// The daemon of the program that has a leased lane stands still. The owner takes the lane away all the same, and
/// nothing that was on its way lands afterwards.
#[test]
fn a_leased_lane_is_taken_away_from_a_host_that_stands_still() {
    let cluster = Cluster::new();
    // Over the shared lane the owner would wait this long for the other host.
    let a = daemon(&cluster, "[limits]\nregion_move_ms = 100000\n");
    let b = daemon(&cluster, "");
    let (owner, user) = (a.session("owner"), b.session("user"));
    let (key, bytes) = (RegionKey::new([7; 16]), 1 << 20);
    let own = RegionOptions::new().key(key).create(&owner, "log", bytes).unwrap();
    let lane = Region::open_leased(&user, a.ip, "log", key, RegionAccess::ALL).unwrap();
    let writer = std::thread::spawn(move || {
        for round in 1_u64.. {
            let piece = round.to_le_bytes().repeat(8192);
            match lane.write(round % 16 * (64 << 10), &piece) {
                Ok(()) => {}
                Err(RegionError::OutcomeUnknown { .. }) => {}
                Err(end) => return end,
            }
        }
        unreachable!()
    });
    wait_until("writes arrive", || own.load(15 * (64 << 10)).unwrap() > 0);
    let still = Still::new(&b);
    own.revoke(None).unwrap();
    let mut before = vec![0; bytes as usize];
    own.read(0, &mut before).unwrap();
    drop(still);
    let end = writer.join().unwrap();
    assert!(matches!(end, RegionError::Revoked { .. }), "{end}");
    let mut after = vec![0; bytes as usize];
    own.read(0, &mut after).unwrap();
    assert!(before == after, "something landed after the revoke");
    let again = Region::open_leased(&user, a.ip, "log", key, RegionAccess::ALL).unwrap();
    assert_eq!(again.fetch_add(0, 1).unwrap(), own.load(0).unwrap() - 1);
}

/// Stores a number in each of these.
fn store(logs: &[Region], round: u64) -> Quorum {
    let mut quorum = Quorum::new(2);
    for log in logs {
        let mut batch = Batch::new();
        batch.write_as(log, 0, round.to_ne_bytes(), Completion::Acked);
        quorum.add(batch.submit());
    }
    quorum
}

/// As `store`, until the two hosts that answer have it: a lane may be reset on a busy machine, and nobody knows then of
/// what was under way there.
fn stored(logs: &[Region], round: u64) -> Quorum {
    let begin = Instant::now();
    let mut quorum = store(logs, round);
    loop {
        let end = quorum.wait_timeout(Duration::from_millis(10));
        let has_failed = |number| quorum.ended(number).is_some_and(|ended| ended.check().is_err());
        match end {
            Ok(true) => return quorum,
            Ok(false) if !has_failed(0) && !has_failed(1) => {}
            _ => quorum = store(logs, round),
        }
        assert!(begin.elapsed() < WATCHDOG, "{end:?}");
    }
}

/// Takes what has ended; how many of the third host's were done, and how many failed otherwise than by a full queue.
fn collect(open: &mut Vec<Quorum>, counts: &mut (u64, u64)) {
    open.retain_mut(|quorum| {
        for (number, result) in quorum.late() {
            match result {
                Ok(()) if number == 2 => counts.0 += 1,
                Err(RegionError::TooManyPending { .. }) | Ok(()) => {}
                Err(_) => counts.1 += 1,
            }
        }
        !quorum.is_over()
    });
}

/// One of three hosts answers late, again and again, and in the end never. Nobody waits for it, and nothing is left of
/// what it was asked for.
#[test]
fn a_quorum_waits_for_no_host_that_stands_still() {
    let cluster = Cluster::new();
    let configuration = "heartbeat_ms = 200\nheartbeat_misses = 1000\n";
    let mut owners: Vec<Daemon> = (0..3).map(|_| daemon(&cluster, configuration)).collect();
    let user = daemon(&cluster, configuration);
    let (key, bytes) = (RegionKey::new([7; 16]), 4096);
    let owned = owners.iter().map(|owner| {
        let session = owner.session("owner");
        let own = RegionOptions::new().key(key).create(&session, "log", bytes).unwrap();
        (session, own)
    });
    let owned: Vec<_> = owned.collect();
    let session = user.session("user");
    let logs: Vec<Region> = owners.iter().map(|o| Region::open(&session, o.ip, "log", key).unwrap()).collect();
    let (pauses, quorums) = (10, if std::env::var_os("RAAS_TEST_FULL").is_some() { 1_000_000 } else { 30_000 });
    let (mut round, mut counts) = (0, (0, 0));
    // How many submissions to the still host are taken in each pause, before its queue is full.
    let mut taken = Vec::new();
    for pause in 1..=pauses {
        let still = Still::new(&owners[2]);
        let mut open = Vec::new();
        for _ in 0..quorums / pauses {
            round += 1;
            let quorum = stored(&logs, round);
            assert!((0..2).all(|number| quorum.ended(number).unwrap().check().is_ok()), "both others are needed");
            if !quorum.is_over() {
                open.push(quorum);
            }
        }
        assert_eq!([0, 1].map(|number: usize| owned[number].1.load(0).unwrap()), [round; 2]);
        taken.push(open.len());
        if pause == pauses {
            drop(still);
            owners[2].process.signal(Signal::STOP);
            owners[2].process.kill();
        } else {
            drop(still);
            if pause % 2 == 0 {
                // Nobody looks for these.
                open.clear();
            }
        }
        wait_until("the late ends", || {
            collect(&mut open, &mut counts);
            open.is_empty()
        });
        if pause < pauses {
            // Behind all of them, also of those that were dropped.
            logs[2].store(8, round).unwrap();
            assert_eq!(owned[2].1.load(8).unwrap(), round);
        }
    }
    assert!(counts.0 > 0 && counts.1 > 0, "{counts:?}: some came late, and some never");
    let least = taken.iter().min().unwrap();
    assert!(*least > 1024 && least * 2 > taken[0], "the queue has its room again after each pause: {taken:?}");
    // What is under way holds its handle.
    drop(logs);
    for owner in &owners[..2] {
        let opens = || raas::inspect::regions(Some(&owner.socket)).unwrap()[0].remote_opens;
        wait_until("all handles are given back", || opens() == 0);
    }
    let pinned = || run(&mut user.command(&["stat", "--json"])).json()["apps"][0]["connections"].clone();
    wait_until("the queues are given back", || pinned() == 0);
}

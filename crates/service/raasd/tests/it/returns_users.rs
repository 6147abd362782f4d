//! Programs that come back as another user than the one whom the daemon gave their tickets: the process itself is taken,
//! any other is not (docs/inside/restart.md).
//!
//! Only root can become others: elsewhere these tests are skipped.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use control::{ChunkKind, Reason, Reply};
use serde_json::{Value, json};
use shm::SessionShape;

use crate::control_socket::RawClient;
use crate::hosts::{Host, bounded, eventually};
use crate::returns_liars::{Kept, connected, words_of, world};
use crate::several_users::{OTHER, USER, as_user, is_root};

/// What another process brings along, and as whom.
const BRINGS: &str = "RAAS_TEST_BRINGS";

#[test]
fn a_process_that_became_another_user_keeps_its_connections() {
    if !is_root() {
        return;
    }
    bounded(|| {
        let mut world = world();
        let (_old, kept, mut far) = connected(&world.hosts[0], &world.listener);
        world.restart();
        // A stranger's ticket is no better for being brought by a process that has others of its own.
        let forged = kept.ticket.iter().map(|byte| byte ^ 1).collect();
        let (client, answer) = as_user(USER, || kept.come_back(&world.hosts[0], vec![forged, kept.ticket.clone()]));
        assert!(matches!(answer, Some(Reply::Welcome { .. })), "{answer:?}");
        far.write_all(b"hello").unwrap();
        eventually("it arrives", || kept.words.rx_tail.load(Ordering::Acquire) == 5);
        // It is the new user's from here on, and goes on with one more daemon, and as one more user.
        world.restart();
        drop(client);
        let (_client, answer) = as_user(OTHER, || kept.come_back(&world.hosts[0], vec![kept.ticket.clone()]));
        assert!(matches!(answer, Some(Reply::Welcome { .. })), "{answer:?}");
        far.write_all(b"again").unwrap();
        eventually("it arrives", || kept.words.rx_tail.load(Ordering::Acquire) == 10);
        world.check_polite();
        world.check_lanes();
    });
}

#[test]
fn another_process_with_ticket_and_memory_is_taken_as_the_same_user_alone() {
    if !is_root() {
        return;
    }
    bounded(|| {
        let mut world = world();
        for (uid, is_taken) in [(OTHER, false), (0, true)] {
            let (_old, kept, mut far) = connected(&world.hosts[0], &world.listener);
            world.restart();
            let mut thief = Thief::start(&world.hosts[0], &kept, uid);
            if is_taken {
                far.write_all(b"hello").unwrap();
                eventually("it arrives", || kept.words.rx_tail.load(Ordering::Acquire) == 5);
            } else {
                assert_eq!(kept.reset_reason(), Some(Reason::DaemonLost));
                let error = far.read(&mut [0; 1]).unwrap_err();
                assert_eq!(raas::StreamError::reason_of(&error), Some(Reason::PeerLost), "{error}");
            }
            thief.end();
        }
        world.check_polite();
        world.check_lanes();
    });
}

/// This program once more, which brings what another one kept, and stays until it is told to go.
struct Thief(Child);

impl Thief {
    /// Returns once the daemon has welcomed it.
    fn start(host: &Host, kept: &Kept, uid: u32) -> Self {
        let fd = |fd: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let chunk = |(number, kind, bytes, memory): &(u32, ChunkKind, u64, OwnedFd)| json!({ "number": number, "kind": kind, "bytes": bytes, "memory": fd(memory) });
        let brings = json!({
            "uid": uid, "socket": host.config.socket, "segment": fd(&kept.segment), "slot": kept.slot,
            "slots": kept.shape.slots, "engines": kept.shape.engines, "ticket": kept.ticket,
            "chunks": kept.chunks.iter().map(chunk).collect::<Vec<_>>(),
        });
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "returns_users::brings_what_another_kept", "--nocapture"]);
        again.env(BRINGS, brings.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut thief = Self(again.spawn().unwrap());
        let mut said = String::new();
        while !said.contains("welcome\n") {
            let mut byte = [0];
            let count = thief.0.stdout.as_mut().unwrap().read(&mut byte).unwrap();
            assert_eq!(count, 1, "{said}");
            said.push(char::from(byte[0]));
        }
        thief
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

/// Part of the test above, in a process of its own.
#[test]
fn brings_what_another_kept() {
    let Ok(brings) = std::env::var(BRINGS) else { return };
    let brings: Value = serde_json::from_str(&brings).unwrap();
    let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let memory = |value: &Value| -> OwnedFd {
        std::fs::File::options().read(true).write(true).open(value.as_str().unwrap()).unwrap().into()
    };
    let chunk = |value: &Value| {
        let kind = serde_json::from_value(value["kind"].clone()).unwrap();
        (number(&value["number"]), kind, value["bytes"].as_u64().unwrap(), memory(&value["memory"]))
    };
    let segment = memory(&brings["segment"]);
    let shape = SessionShape { slots: number(&brings["slots"]), engines: number(&brings["engines"]) };
    let slot = number(&brings["slot"]);
    let words = words_of(&segment, shape, slot);
    let chunks = brings["chunks"].as_array().unwrap().iter().map(chunk).collect();
    let ticket: Vec<u8> = serde_json::from_value(brings["ticket"].clone()).unwrap();
    let kept = Kept { segment, shape, chunks, ticket, slot, words };
    let socket = PathBuf::from(brings["socket"].as_str().unwrap());
    let come = || kept.come_back_by(RawClient::connected_to(Path::new(&socket)), vec![kept.ticket.clone()]);
    let (_client, answer) = as_user(number(&brings["uid"]), come);
    assert!(matches!(answer, Some(Reply::Welcome { .. })), "{answer:?}");
    println!("welcome");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

//! A connection over a lane without any daemon: the test plays the engine in the shared words.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use control::{ChunkKind, Connection as Described, Kind, NotTaken, Path, Reason, Request};
use raas_core::{
    Answer, Connection, DaemonMessage, End, EngineEnd, News, Readiness, Reserved, Session, SessionFault, SessionMemory,
    Side, Wake,
};
use shm::{Region, app_flag, begin_rest, end_rest, engine_flag, is_unused, prepare_sleep};

const RING: u32 = 4096;

/// An engine that is asleep at all times, and at each wake begins to give pages of the ring back if it may.
#[derive(Debug)]
struct Engine {
    memory: shm::Session,
    wakes: AtomicU32,
}

impl Wake for Engine {
    fn wake(&self) -> io::Result<()> {
        let words = self.memory.slot(0);
        self.wakes.fetch_add(1, Ordering::Relaxed);
        begin_rest(&words);
        if !is_unused(&words) {
            end_rest(&words);
        }
        // The bell is heard, so that the next change rings it again.
        self.memory.a2e(0).take(&mut Vec::new(), 64);
        Ok(())
    }
}

struct World {
    memory: shm::Session,
    engine: Arc<Engine>,
    session: Session,
}

fn world(can_rest: bool) -> World {
    let bytes = usize::try_from(shm::Session::bytes(64)).unwrap();
    let memory = shm::Session::format(Region::anonymous(bytes).unwrap(), 64, 1).unwrap();
    let page = Region::anonymous(usize::try_from(shm::EnginePage::BYTES).unwrap()).unwrap();
    let sleep = shm::EnginePage::format(page, 1).unwrap().engine_sleep(0);
    prepare_sleep(&sleep);
    let engine = Arc::new(Engine { memory: memory.clone(), wakes: AtomicU32::new(0) });
    let wake = Arc::clone(&engine) as Arc<dyn Wake>;
    let parts = SessionMemory {
        session: memory.clone(),
        engines: vec![EngineEnd { sleep, wake }],
        can_rest,
        clock: Some(|| 4711),
    };
    World { memory, engine, session: Session::new(parts).unwrap() }
}

fn described(slot: u32, tx_chunk: u32) -> Described {
    let addr = "127.0.0.2:7".parse().unwrap();
    let (tx_offset, rx_offset, ring_bytes, grown_bytes) = (0, 0, RING, RING);
    let path = Path::Lane { slot, generation: 3, tx_chunk, tx_offset, rx_chunk: 1, rx_offset, ring_bytes, grown_bytes };
    Described { id: 9, local: addr, peer: addr, path, ticket: Vec::new() }
}

/// Rings for slot 0, and the answer to a connect.
fn connected(world: &mut World) -> Connection {
    for (chunk, kind) in [(0, ChunkKind::Tx), (1, ChunkKind::Rx)] {
        let region = Some(Region::anonymous(RING as usize).unwrap());
        world.session.on_message(DaemonMessage::Chunk { chunk, kind, region, kept: None }).unwrap();
    }
    let (id, request) = world.session.connect("127.0.0.2:7".parse().unwrap(), 0, Kind::Message);
    assert!(matches!(request, Request::Connect { kind: Kind::Message, .. }));
    let answer = DaemonMessage::Connected { request: id.number(), result: Ok(described(0, 0)) };
    assert_eq!(world.session.on_message(answer).unwrap(), News::Answered(id));
    match world.session.finish(id) {
        Some(Answer::Connected(Ok(connection))) => *connection,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_whole_message_stays_whole_when_the_engine_rests_between_its_pieces() {
    let mut w = world(true);
    let Connection { endpoint, mut rx, mut tx } = connected(&mut w);
    let message = vec![7; RING as usize / 2];
    // Not reserved, the ring is the engine's from the first piece on: the rest of the bytes finds no room.
    let put = tx.put(&endpoint, &[IoSlice::new(&message)]).unwrap();
    assert!(
        put < message.len() && w.engine.wakes.load(Ordering::Relaxed) > 0,
        "{put}: the engine did not come between"
    );
    end_rest(&w.memory.slot(0));
    let before = w.memory.slot(0).tx_tail.load(Ordering::Relaxed);
    let Ok(Ok(mut room)) = Reserved::try_new(&mut tx, &endpoint, message.len()) else { panic!("there is room") };
    room.put_all(&endpoint, &[IoSlice::new(&message[..4]), IoSlice::new(&message[4..])]);
    drop(room);
    let after = w.memory.slot(0).tx_tail.load(Ordering::Relaxed);
    assert_eq!(after - before, message.len() as u64);
    rx.close(&endpoint, true);
}

#[test]
fn bytes_come_before_the_end_and_a_close_says_how_it_was() {
    let mut w = world(false);
    let mut connection = connected(&mut w);
    let words = w.memory.slot(0);
    assert_eq!(connection.try_read(&mut [0; 8]), Ok(None));
    assert_eq!(connection.readiness(), Readiness::WRITE);
    words.rx_tail.store(5, Ordering::Release);
    words.engine_flags.store(engine_flag::FIN, Ordering::Release);
    assert_eq!(connection.try_read(&mut [0; 8]), Ok(Some(5)));
    assert_eq!(connection.try_read(&mut [0; 8]), Err(End::Finished));
    assert!(connection.readiness().contains(Readiness::READ | Readiness::HUP));
    assert_eq!(connection.try_write(b"word"), Ok(Some(4)));
    connection.shut(Side::Write).unwrap();
    assert_eq!(words.app_flags.load(Ordering::Relaxed), app_flag::FIN);
    assert_eq!(connection.try_write(b"word"), Err(End::Finished));
    words.rx_tail.store(6, Ordering::Release);
    connection.close();
    let flags = words.app_flags.load(Ordering::Relaxed);
    assert_eq!(flags, app_flag::FIN | app_flag::STOP | app_flag::CLOSED | app_flag::ABORT, "a byte was not read");
}

#[test]
fn of_the_bytes_that_the_engine_looks_at_the_application_says_when_it_wrote_them() {
    let mut w = world(false);
    let mut connection = connected(&mut w);
    let words = w.memory.slot(0);
    words.engine_flags.store(0, Ordering::Release);
    assert_eq!(connection.try_write(b"word"), Ok(Some(4)));
    assert_eq!(words.tx_written.load(Ordering::Relaxed), shm::written_word(0, 4711));
    words.tx_written.store(0, Ordering::Relaxed);
    assert_eq!(connection.try_write(b"more"), Ok(Some(4)));
    assert_eq!(words.tx_written.load(Ordering::Relaxed), 0, "none of them is looked at");
    let mut written = 8;
    while written + 2500 <= shm::MARK_BYTES {
        let count = connection.try_write(&[0; 2500]).unwrap().unwrap_or(0);
        written += count as u64;
        words.tx_head.store(written, Ordering::Release);
    }
    assert_eq!(words.tx_written.load(Ordering::Relaxed), 0, "not yet");
    assert_eq!(connection.try_write(&[0; 2500]), Ok(Some(2500)));
    let word = words.tx_written.load(Ordering::Relaxed);
    assert_eq!(shm::written_at(word, (0, written + 2500), 4800), Some((shm::MARK_BYTES, 4711)));
}

#[test]
fn a_cursor_that_cannot_be_ends_the_connection_alone() {
    let mut w = world(false);
    let mut connection = connected(&mut w);
    w.memory.slot(0).rx_tail.store(1 << 40, Ordering::Release);
    let fault = End::Reset(Reason::AppFault);
    assert_eq!(connection.try_read(&mut [0; 8]), Err(fault));
    assert_eq!(connection.try_write(b"word"), Err(fault));
    assert!(w.session.daemon().life().is_alive());
    drop(connection);
    assert_ne!(w.memory.slot(0).app_flags.load(Ordering::Relaxed) & app_flag::ABORT, 0);
}

#[test]
fn what_the_daemon_says_is_checked_and_one_slot_has_one_connection() {
    let mut w = world(false);
    let connection = connected(&mut w);
    let ask = |w: &mut World, described: Described| {
        let (id, _) = w.session.connect("127.0.0.2:7".parse().unwrap(), 0, Kind::Stream);
        w.session.on_message(DaemonMessage::Connected { request: id.number(), result: Ok(described) }).unwrap();
        w.session.finish(id)
    };
    let refused = |answer: Option<Answer>| matches!(answer, Some(Answer::Connected(Err(_))));
    assert!(refused(ask(&mut w, described(0, 0))), "the slot is in use");
    assert!(refused(ask(&mut w, described(64, 0))), "there is no such slot");
    assert!(refused(ask(&mut w, described(1, 1))), "the chunk is of the other direction");
    let gone = DaemonMessage::Chunk { chunk: 2, kind: ChunkKind::Tx, region: None, kept: None };
    w.session.on_message(gone).unwrap();
    let outgoing = w.session.next_outgoing().unwrap();
    assert!(matches!(outgoing.request, Request::NotTaken { what: NotTaken::Chunk { chunk: 2 }, .. }));
    assert!(refused(ask(&mut w, described(1, 2))), "there was no descriptor for it");
    drop(connection);
    assert!(!refused(ask(&mut w, described(0, 0))), "free again");
    let lost = w.session.on_message(DaemonMessage::Detached { reason: Reason::ShuttingDown });
    assert_eq!(lost, Err(SessionFault::Lost(Reason::ShuttingDown)));
}

#[test]
fn a_process_that_is_killed_closes_nothing() {
    let mut w = world(false);
    let mut connection = connected(&mut w);
    w.session.disown();
    assert!(matches!(connection.try_read(&mut [0; 8]), Err(End::Forked(_))));
    assert!(matches!(connection.try_write(b"word"), Err(End::Forked(_))));
    assert!(connection.shut(Side::Write).is_err());
    connection.close();
    assert_eq!(w.memory.slot(0).app_flags.load(Ordering::Relaxed), 0);
}

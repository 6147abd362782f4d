//! How threads wait between hosts: nobody spins there, whatever the session was told.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use raas::{ConnectOptions, ListenOptions, MessageListener, MessageStream, Session, Stream};

use crate::Watchdog;
use crate::fake_daemon::{FakeDaemon, THERE};

const RING: u32 = 4096;
/// Looks at a thread that is to be asleep, 10 ms apart. One that spins as often as its session allows is busy for longer.
const LOOKS: u32 = 2000;

/// A session whose threads spin for minutes where they spin at all.
fn spinning(daemon: &FakeDaemon) -> Session {
    Session::builder().socket(daemon.path()).spins(u32::MAX).yields(0).connect().unwrap()
}

/// Whether a thread of this process comes to sleep, and stays so for a while.
fn falls_asleep(tid: i32) -> bool {
    let mut in_a_row = 0;
    for _ in 0..LOOKS {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        let state = stat.rsplit_once(") ").unwrap().1.chars().next();
        in_a_row = if state == Some('S') { in_a_row + 1 } else { 0 };
        if in_a_row == 5 {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Runs `waits` in a thread and says whether it falls asleep; `goes_on` ends its wait.
fn sleeps_in(waits: impl FnOnce() + Send, goes_on: impl FnOnce()) -> bool {
    thread::scope(|s| {
        let (tell, told) = channel();
        let waiting = s.spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            waits();
        });
        let asleep = falls_asleep(told.recv().unwrap());
        goes_on();
        waiting.join().unwrap();
        asleep
    })
}

#[test]
fn a_whole_message_waits_for_room_asleep() {
    let _watchdog = Watchdog::start("a_whole_message_waits_for_room_asleep");
    let daemon = FakeDaemon::start();
    let far = Session::builder().socket(daemon.path()).background(true).connect().unwrap();
    let options = ListenOptions::new().ring_bytes(RING);
    let listener = MessageListener::bind_with(&far, "0.0.0.0:0", options).unwrap();
    let to = SocketAddr::new(THERE.parse().unwrap(), listener.local_addr().unwrap().port());
    let options = ConnectOptions::new().ring_bytes(RING);
    let client = MessageStream::connect_with(&spinning(&daemon), to, options).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while client.send(&[7; 1000]).is_ok() {
        sent += 1;
    }
    client.set_nonblocking(false).unwrap();
    let asleep = sleeps_in(
        || client.send(&[8; 1000]).unwrap(),
        || (0..sent).for_each(|_| assert_eq!(server.receive_vec().unwrap().unwrap(), [7; 1000])),
    );
    assert!(asleep, "the sender spins");
    assert_eq!(server.receive_vec().unwrap().unwrap(), [8; 1000]);
}

#[test]
fn a_loan_waits_for_room_asleep() {
    let _watchdog = Watchdog::start("a_loan_waits_for_room_asleep");
    let daemon = FakeDaemon::start();
    let far = Session::builder().socket(daemon.path()).background(true).connect().unwrap();
    let listener = ListenOptions::new().ring_bytes(RING).bind(&far, "0.0.0.0:0").unwrap();
    let to = SocketAddr::new(THERE.parse().unwrap(), listener.local_addr().unwrap().port());
    let client = ConnectOptions::new().ring_bytes(RING).connect(&spinning(&daemon), to).unwrap();
    let (server, _) = listener.accept().unwrap();
    (&client).write_all(&[7; 3000]).unwrap();
    let asleep = sleeps_in(|| drop(client.reserve(2000).unwrap()), || read(&server, 3000));
    assert!(asleep, "the writer spins");
}

fn read(mut stream: &Stream, bytes: usize) {
    std::io::Read::read_exact(&mut stream, &mut vec![0; bytes]).unwrap();
}

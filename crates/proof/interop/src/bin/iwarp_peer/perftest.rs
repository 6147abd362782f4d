//! The server that perftest's clients expect with `-R`, from its source (src/perftest_communication.c, 4.5) and from
//! captures. There are two connections to one port. On the first one client and server tell each other, message for message,
//! their version, sizes, and where their memory is; the client speaks first each time. The second one carries the test.

use std::net::{IpAddr, TcpListener};
use std::sync::Mutex;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use iwarp::Ending;
use verbs::{RemoteAddr, Rkey};

use crate::host::{Answer, Host, Setup};

/// `struct pingpong_dest`: the key is at 16, the address at 24, both big endian.
const PLACE_BYTES: usize = 56;
/// Memory that the client writes and reads; it goes through its first pages in turn.
const MEMORY: usize = 1 << 20;
/// Longest message.
const SIZE_MAX: usize = 1 << 16;
const TALK: Setup = Setup { wants_crc: false, receives: 16, receive_bytes: 4096, scratch_bytes: 4096 };
const TEST: Setup = Setup { wants_crc: false, receives: 64, receive_bytes: SIZE_MAX, scratch_bytes: 4096 };

/// What the client tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Program {
    /// ib_send_bw
    Send,
    /// ib_write_bw
    Write,
    /// ib_read_bw
    Read,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Address to listen at.
    address: IpAddr,
    /// Port to listen at.
    port: u16,
    /// The client's program.
    program: Program,
    /// Messages of the client (SEND).
    #[arg(long, default_value_t = 20)]
    count: u32,
    /// Bytes of each (SEND).
    #[arg(long, default_value_t = 20_000)]
    size: usize,
}

/// Serves one client.
pub(crate) fn serve(options: &Options) -> Result<String> {
    let (mut talk, mut test) = (Host::new(&TALK)?, Host::new(&TEST)?);
    let memory = test.offered(MEMORY)?;
    let own = RemoteAddr { addr: 0, rkey: memory.mr.rkey };
    let listener = TcpListener::bind((options.address, options.port))?;
    println!("listening {}", options.port);
    talk.accept(&listener, |_| Ok(Answer::Accept(vec![])))?;
    let theirs = Mutex::new(None);
    std::thread::scope(|scope| {
        let talking = scope.spawn(|| converse(&mut talk, own, &theirs));
        test.accept(&listener, |_| Ok(Answer::Accept(vec![])))?;
        if options.program == Program::Send {
            take(&mut test, options, &theirs)?;
        }
        let ending = test.end()?;
        ensure!(ending == Ending::ClosedByPeer, "the test ended with: {ending}");
        let Ok(messages) = talking.join() else { bail!("the conversation panicked") };
        Ok(format!("{} messages beside the test", messages?))
    })
}

/// Answers each message with itself, but for the place of the memory.
fn converse(host: &mut Host, own: RemoteAddr, theirs: &Mutex<Option<RemoteAddr>>) -> Result<u32> {
    let mut count = 0;
    while let Some(mut message) = host.next_message()? {
        count += 1;
        if message.len() == PLACE_BYTES {
            let (rkey, addr) = (message[16..20].try_into()?, message[24..32].try_into()?);
            let place = RemoteAddr { addr: u64::from_be_bytes(addr), rkey: Rkey(u32::from_be_bytes(rkey)) };
            if let Ok(mut theirs) = theirs.lock() {
                *theirs = Some(place);
            }
            message[16..20].copy_from_slice(&own.rkey.0.to_be_bytes());
            message[24..32].copy_from_slice(&own.addr.to_be_bytes());
        }
        host.send(&message)?;
    }
    Ok(count)
}

/// Takes the client's messages, and tells it how many by a WRITE of that number to where it said.
fn take(host: &mut Host, options: &Options, theirs: &Mutex<Option<RemoteAddr>>) -> Result<()> {
    for number in 1..=options.count {
        let Some(message) = host.next_message()? else { bail!("message {number} of {} is missing", options.count) };
        ensure!(message.len() == options.size, "message {number} has {} bytes", message.len());
        let Some(place) = theirs.lock().ok().and_then(|theirs| *theirs) else { bail!("a message before the place") };
        host.write(&number.to_le_bytes(), place)?;
    }
    Ok(())
}

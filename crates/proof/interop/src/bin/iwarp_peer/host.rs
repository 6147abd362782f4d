//! One host with one connection: a device, its memory, a queue pair of the TCP wire and the socket below it.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use iwarp::mpa::{FrameKind, Parsed, Startup};
use iwarp::{Ending, Extensions, Qp, QpAttr, QpEvent};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rnic::{Device, DeviceLimits, ReceiveQueue};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use verbs::{
    Access, Capabilities, Completion, CqId, DeviceAttr, Gid, Mr, PathMtu, Payload, QpInit, QpType, Qpn, RecvWr, Region,
    RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Sge, Status, Time, WcOpcode,
};

use crate::wire::Wire;

/// A case that takes longer hangs.
pub(crate) const CASE_LIMIT: Duration = Duration::from_secs(60);
/// READs that an end executes and has outstanding at a time.
const READS: u8 = 8;
const QUEUE_DEPTH: u32 = 128;
/// Longest sleep without a look at the clock.
const TURN: Duration = Duration::from_millis(20);
/// A peer that has said nothing for so long since it accepted gets a nudge.
const SILENCE: Duration = Duration::from_millis(300);
/// Work requests of the program, and the nudge.
const WORK: u64 = 0;
const NUDGE: u64 = 1;

/// Leaves the port free when the connection has ended: siw chooses ports by chance and binds to them, and one that
/// another connection keeps for a minute (TIME_WAIT) would be in use, unless both allow that it is used again.
fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// Registered memory.
pub(crate) struct Memory {
    pub(crate) region: Region,
    pub(crate) mr: Mr,
}

impl Memory {
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<()> {
        Ok(self.region.write(0, bytes)?)
    }

    pub(crate) fn bytes(&self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.region.read(0, &mut bytes)?;
        Ok(bytes)
    }

    fn sge(&self, addr: u64, len: usize) -> Result<Sge> {
        Ok(Sge { addr, len: u32::try_from(len)?, lkey: self.mr.lkey })
    }
}

/// How a host's end of a connection is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// CRCs are asked for.
    pub(crate) wants_crc: bool,
    /// Receives, and their size in bytes.
    pub(crate) receives: usize,
    pub(crate) receive_bytes: usize,
    /// Bytes of the memory that sends, WRITEs and READs go through.
    pub(crate) scratch_bytes: usize,
}

/// The host.
pub(crate) struct Host {
    dev: Device,
    qp: Qp,
    cq: CqId,
    wire: Option<Wire>,
    rng: StdRng,
    start: Instant,
    scratch: Memory,
    receives: Vec<Memory>,
    received: VecDeque<Completion>,
    sent: VecDeque<Completion>,
    /// What the peer's reply brought.
    answer: Option<Vec<u8>>,
    /// When the peer, a passive end that has sent no frame yet, gets its next nudge.
    nudge_at: Option<Instant>,
    ending: Option<Ending>,
}

fn device_attr() -> DeviceAttr {
    DeviceAttr {
        name: "iwarp-peer".to_owned(),
        gid: Gid::from(IpAddr::from([127, 0, 0, 1])),
        udp_port: 0,
        mtu: PathMtu::Mtu1024,
        max_msg_bytes: iwarp::MAX_MESSAGE_BYTES,
        max_inline_bytes: 64,
        max_qp_wr: QUEUE_DEPTH,
        max_srq_wr: QUEUE_DEPTH,
        max_cqe: 4 * QUEUE_DEPTH,
        max_sge: 4,
        max_rd_atomic: READS,
        max_qp: 1,
        max_mr: 2 * QUEUE_DEPTH,
        capabilities: Capabilities::SOFTWARE_NIC,
        rx_budget_bytes: u32::MAX,
    }
}

impl Host {
    /// A host without a connection, with its receives posted.
    pub(crate) fn new(setup: &Setup) -> Result<Self> {
        let mut dev = Device::new(device_attr(), DeviceLimits { max_cq: 1, max_srq: 0 });
        let mut rng = StdRng::seed_from_u64(u64::from(std::process::id()));
        let cq = dev.create_cq(4 * QUEUE_DEPTH)?;
        let init = QpInit { sq_sig_all: true, ..QpInit::new(QpType::Rc, cq, QUEUE_DEPTH) };
        let attr = QpAttr {
            qpn: Qpn(1),
            init,
            access: Access::all(),
            max_msg_bytes: iwarp::MAX_MESSAGE_BYTES,
            ird: READS.into(),
            ord: READS.into(),
            wants_crc: setup.wants_crc,
            // siw has nothing of RFC 7306.
            extensions: Extensions::empty(),
            // siw answers a READ of no bytes with stale ones if it has another READ to answer (`siw_activate_tx`).
            confirms: false,
        };
        let mut memory = |dev: &mut Device, len: usize, access| -> Result<Memory> {
            let region = Region::anonymous(len)?;
            let mr = dev.register(&verbs::MrInit::new(&region, 0, region.len(), access), &mut rng)?;
            Ok(Memory { region, mr })
        };
        let scratch = memory(&mut dev, setup.scratch_bytes, Access::LOCAL_WRITE)?;
        let receives: Result<Vec<Memory>> =
            (0..setup.receives).map(|_| memory(&mut dev, setup.receive_bytes, Access::LOCAL_WRITE)).collect();
        let mut host = Self {
            qp: Qp::new(attr, ReceiveQueue::new(QUEUE_DEPTH, 4)),
            dev,
            cq,
            wire: None,
            rng,
            start: Instant::now(),
            scratch,
            receives: receives?,
            received: VecDeque::new(),
            sent: VecDeque::new(),
            answer: None,
            nudge_at: None,
            ending: None,
        };
        for at in 0..setup.receives {
            host.post_receive(at)?;
        }
        Ok(host)
    }

    /// Memory that the peer may read and write.
    pub(crate) fn offered(&mut self, len: usize) -> Result<Memory> {
        let region = Region::anonymous(len)?;
        let mr = self.dev.register(&verbs::MrInit::new(&region, 0, region.len(), Access::all()), &mut self.rng)?;
        Ok(Memory { region, mr })
    }

    fn post_receive(&mut self, at: usize) -> Result<()> {
        let memory = &self.receives[at];
        let sges = [memory.sge(0, memory.region.len() as usize)?];
        Ok(self.qp.post_recv(&RecvWr { wr_id: at as u64, sges: &sges }, &mut self.dev)?)
    }

    /// Connects as the active end and returns the private data of the reply.
    pub(crate) fn connect(&mut self, address: SocketAddr, private_data: &[u8]) -> Result<Vec<u8>> {
        self.wire = Some(Wire::new(connect(address).with_context(|| address.to_string())?)?);
        self.qp.connect(private_data)?;
        let answer = self.until("the MPA reply", |host| host.answer.take())?;
        self.nudge_at = Some(Instant::now() + SILENCE);
        Ok(answer)
    }

    /// siw's passive end begins to listen for the first frame after it has sent its reply (`siw_accept`). A frame that
    /// comes in between lies there until more bytes come. So a silent peer gets a WRITE of no bytes now and then.
    fn nudge(&mut self) -> Result<()> {
        if self.nudge_at.is_some_and(|at| at <= Instant::now()) && self.ending.is_none() {
            self.nudge_at = Some(Instant::now() + SILENCE);
            let op = SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0) });
            let wr = SendWr { wr_id: NUDGE, op, payload: Payload::Sges(&[]), flags: SendFlags::SIGNALED, dest: None };
            self.qp.post_send(&wr, &mut self.dev)?;
        }
        Ok(())
    }

    /// Takes one connection as the passive end: `answer` says with what a request's private data is answered, or refused.
    pub(crate) fn accept(
        &mut self,
        listener: &TcpListener,
        answer: impl FnOnce(&[u8]) -> Result<Answer>,
    ) -> Result<()> {
        let mut stream = accepted(listener)?;
        let request = request(&mut stream)?;
        match answer(&request.private_data)? {
            Answer::Accept(private_data) => {
                self.qp.accept(&request, &private_data)?;
                self.wire = Some(Wire::new(stream)?);
            }
            Answer::Refuse(private_data) => stream.write_all(&request.refusal(&private_data).to_bytes())?,
        }
        Ok(())
    }

    /// Lets bytes flow until `done` gives something.
    pub(crate) fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> Result<T> {
        loop {
            if let Some(value) = done(self) {
                return Ok(value);
            }
            if let Some(ending) = &self.ending
                && self.qp.is_over()
            {
                bail!("{what} did not come: {ending}");
            }
            ensure!(self.start.elapsed() < CASE_LIMIT, "{what} did not come within {CASE_LIMIT:?}");
            self.turn()?;
        }
    }

    fn turn(&mut self) -> Result<()> {
        self.nudge()?;
        let Some(wire) = &mut self.wire else { bail!("there is no connection") };
        let moved = wire.step(&mut self.qp, &mut self.dev);
        let now = Time(u64::try_from(self.start.elapsed().as_nanos())?);
        if self.qp.deadline().is_some_and(|deadline| deadline <= now) {
            self.qp.handle_timeout(&mut self.dev, now);
        }
        while let Some(event) = self.qp.poll_event() {
            match event {
                QpEvent::Established { private_data, .. } => self.answer = Some(private_data),
                QpEvent::Ended(ending) => self.ending = Some(ending),
                other => bail!("an event that this program does not know: {other:?}"),
            }
        }
        let mut completions = vec![];
        self.dev.poll_cq(self.cq, &mut completions, usize::MAX)?;
        let seen = moved || !completions.is_empty();
        for completion in completions {
            let is_receive = completion.opcode == WcOpcode::Recv;
            if is_receive || completion.opcode == WcOpcode::Read {
                self.nudge_at = None;
            }
            if !is_receive && completion.wr_id == NUDGE {
                continue;
            }
            if is_receive { &mut self.received } else { &mut self.sent }.push_back(completion);
        }
        if !seen {
            wire.wait(TURN);
        }
        Ok(())
    }

    fn post(&mut self, op: SendOp, len: usize) -> Result<()> {
        let sges = [self.scratch.sge(0, len)?];
        let wr = SendWr { wr_id: WORK, op, payload: Payload::Sges(&sges), flags: SendFlags::SIGNALED, dest: None };
        Ok(self.qp.post_send(&wr, &mut self.dev)?)
    }

    fn completed(&mut self, what: &str) -> Result<()> {
        let completion = self.until(what, |host| host.sent.pop_front())?;
        ensure!(completion.status == Status::Success, "{what} ended with {:?}", completion.status);
        Ok(())
    }

    /// SENDs `bytes`.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.scratch.fill(bytes)?;
        self.post(SendOp::Send, bytes.len())?;
        self.completed("the completion of a SEND")
    }

    /// WRITEs `bytes` to `remote`.
    pub(crate) fn write(&mut self, bytes: &[u8], remote: RemoteAddr) -> Result<()> {
        self.scratch.fill(bytes)?;
        self.post(SendOp::Write(remote), bytes.len())?;
        self.completed("the completion of a WRITE")
    }

    /// READs `len` bytes at `remote`.
    pub(crate) fn read(&mut self, len: usize, remote: RemoteAddr) -> Result<Vec<u8>> {
        self.scratch.fill(&vec![0; len])?;
        self.post(SendOp::Read(remote), len)?;
        self.completed("the completion of a READ")?;
        self.scratch.bytes(len)
    }

    /// The next message.
    pub(crate) fn receive(&mut self) -> Result<Vec<u8>> {
        match self.next_message()? {
            Some(bytes) => Ok(bytes),
            None => bail!("the connection ended before a message: {:?}", self.ending),
        }
    }

    /// The next message; none if the connection ended.
    pub(crate) fn next_message(&mut self) -> Result<Option<Vec<u8>>> {
        let completion = self.until("a message", |host| host.received.pop_front())?;
        if completion.status == Status::WrFlushErr {
            return Ok(None);
        }
        ensure!(completion.status == Status::Success, "a receive ended with {:?}", completion.status);
        let at = usize::try_from(completion.wr_id)?;
        let bytes = self.receives[at].bytes(completion.byte_len as usize)?;
        self.post_receive(at)?;
        Ok(Some(bytes))
    }

    /// Spoils the CRC of the next frame.
    pub(crate) fn break_crc(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.breaks_crc = true;
        }
    }

    /// Closes the connection in order and waits until the peer has closed its side.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.qp.close(&mut self.dev);
        match self.end()? {
            Ending::Closed => Ok(()),
            other => bail!("closing ended otherwise: {other}"),
        }
    }

    /// Waits for the end of the connection and says what it was.
    pub(crate) fn end(&mut self) -> Result<Ending> {
        self.until("the end of the connection", |host| {
            let is_over = host.qp.is_over();
            host.ending.clone().filter(|_| is_over)
        })
    }
}

/// What a request is answered with.
pub(crate) enum Answer {
    Accept(Vec<u8>),
    Refuse(Vec<u8>),
}

/// Waits for a connection; a peer that never comes is a failure, not a hang.
fn accepted(listener: &TcpListener) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(CASE_LIMIT))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                ensure!(start.elapsed() < CASE_LIMIT, "nobody connected within {CASE_LIMIT:?}");
                std::thread::sleep(TURN);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the MPA request, and not a byte more.
fn request(stream: &mut TcpStream) -> Result<Startup> {
    use std::io::Read;
    let mut bytes = vec![];
    loop {
        match Startup::parse(FrameKind::Request, &bytes)? {
            Parsed::Whole(request, _) => return Ok(request),
            Parsed::More(wanted) => {
                let had = bytes.len();
                bytes.resize(wanted, 0);
                stream.read_exact(&mut bytes[had..]).context("reading the MPA request")?;
            }
        }
    }
}

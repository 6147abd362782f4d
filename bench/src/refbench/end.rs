//! One end of the ping-pong: its region, and the slices of it that are out.

use anyhow::{Context, Result, ensure};
use raas::{Lent, Mapped, MessageListener, MessageStream, Region, RegionOptions, Session, View};

/// Slices of a region, lent in turn. Each is back long before its next turn.
const SLICES: u64 = 8;

/// An end of the connection.
#[derive(Debug)]
pub(crate) struct Ends {
    stream: MessageStream,
    region: Region,
    mapped: Mapped,
    size: u64,
    stride: u64,
    turn: u64,
    lent: Vec<Option<Lent>>,
}

impl Ends {
    fn new(stream: MessageStream, size: u32) -> Result<Self> {
        ensure!(size >= 16, "a slice of {size} bytes has no first and last 8");
        let size = u64::from(size);
        let stride = size.next_multiple_of(4096);
        let name = format!("refbench-{}", std::process::id());
        let region = RegionOptions::new().create(&Session::global()?, &name, SLICES * stride)?;
        // Every page is there before the first slice is timed.
        region.write(0, &vec![0x5a; usize::try_from(SLICES * stride)?])?;
        let mapped = region.map(0, SLICES * stride)?;
        Ok(Self { stream, region, mapped, size, stride, turn: 0, lent: (0..SLICES).map(|_| None).collect() })
    }

    fn send(&mut self, value: u64) -> Result<()> {
        let turn = self.turn % SLICES;
        let offset = turn * self.stride;
        self.turn += 1;
        let place = usize::try_from(turn)?;
        if let Some(before) = self.lent[place].take() {
            before.wait()?;
        }
        self.mapped.write(offset, &value.to_ne_bytes())?;
        self.mapped.write(offset + self.size - 8, &value.to_ne_bytes())?;
        self.mapped.check()?;
        self.lent[place] = Some(self.stream.lend(&self.region, offset, self.size)?);
        Ok(())
    }

    /// The value of the next slice; none at the end.
    fn receive(&self) -> Result<Option<u64>> {
        let Some(view) = self.stream.receive_view()? else { return Ok(None) };
        ensure!(view.is_lent() && view.len() == self.size, "{view:?} is no slice of {} bytes", self.size);
        let [first, last] = [0, self.size - 8].map(|at| word(&view, at));
        let (first, last) = (first?, last?);
        ensure!(first == last, "a slice begins with {first} and ends with {last}");
        Ok(Some(first))
    }

    /// There and back.
    pub(crate) fn trip(&mut self) -> Result<()> {
        let value = self.turn + 1;
        self.send(value)?;
        let back = self.receive()?.context("the server ended")?;
        ensure!(back == value, "{back} came back for {value}");
        Ok(())
    }

    /// How the slices travel, as `raas ss` says it.
    pub(crate) fn path(&self) -> &'static str {
        self.stream.path().as_str()
    }
}

fn word(view: &View, at: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    view.read(at, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Serves one client to its end.
pub(crate) fn serve(size: u32) -> Result<()> {
    let listener = MessageListener::bind("127.0.0.1:0")?;
    println!("ready {}", listener.local_addr()?);
    let mut end = Ends::new(listener.accept()?.0, size)?;
    // The client ends it by closing.
    while let Ok(Some(value)) = end.receive() {
        end.send(value)?;
    }
    Ok(())
}

/// Connects to a server.
pub(crate) fn connect(to: &str, size: u32) -> Result<Ends> {
    Ends::new(MessageStream::connect(to)?, size)
}

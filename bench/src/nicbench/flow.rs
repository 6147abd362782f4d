//! Streams of WRITEs, READs and atomics: the requester keeps so many outstanding, the responder lets its device work.

use std::time::Instant;

use anyhow::{Result, ensure};
use verbs::{Payload, SendFlags, SendOp, SendWr};

use super::case::{Load, Sample};
use super::control::Run;
use super::end::End;
use super::waiting::{Poller, Wait, YIELDS_BEFORE_SLEEP, is_readable, sleep};
use crate::control::Control;

/// Where the word of the atomics lies on the responder, and the old values on the requester.
const WORD: u64 = 0;

/// Fills memory so that the data of this run differs from that of others.
pub(crate) fn prepare(end: &End, run: &Run, is_requester: bool) -> Result<()> {
    let source = match run.load {
        Load::ReadStream => !is_requester,
        Load::FetchAddStream => return Ok(end.region.write(WORD, &[0; 8])?),
        _ => is_requester,
    };
    end.fill(run.bytes, run.depth, if source { run.mark } else { 0 })
}

/// What is wrong with the memory of a side after a run.
pub(crate) fn verify(end: &End, run: &Run, is_requester: bool) -> Result<Option<String>> {
    match (run.load, is_requester) {
        (Load::WriteStream, false) | (Load::ReadStream, true) => end.wrong(run.bytes, run.depth, run.count, run.mark),
        (Load::FetchAddStream, false) => {
            let mut word = [0; 8];
            end.region.read(WORD, &mut word)?;
            let sum = u64::from_ne_bytes(word);
            let wrong = sum != u64::from(run.count);
            Ok(wrong.then(|| format!("{} additions of 1 made {sum}", run.count)))
        }
        _ => Ok(None),
    }
}

/// Runs the stream and takes the time until its last completion.
pub(crate) fn request(end: &mut End, run: &Run, wait: Wait) -> Result<Sample> {
    let mut poller = Poller::new(end.cq, wait);
    let (mut posted, mut done) = (0, 0);
    let begin = Instant::now();
    while done < run.count {
        let free = (run.depth - (posted - done)).min(run.count - posted);
        post(end, run, posted, free)?;
        posted += free;
        let End { nic, .. } = &mut *end;
        let came = poller.poll(nic.as_mut())?.len();
        if came > 0 {
            poller.on_progress();
        }
        done += u32::try_from(came)?;
        ensure!(done <= posted, "more completions than work requests");
        poller.check()?;
    }
    Ok(Sample::Stream { operations: run.count.into(), seconds: begin.elapsed().as_secs_f64() })
}

/// Posts `count` work requests in one call.
fn post(end: &mut End, run: &Run, first: u32, count: u32) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let slots = End::slots(run.bytes, run.depth);
    let sges: Vec<_> = (first..first + count).map(|index| [end.sge(u64::from(index) % slots, run.bytes)]).collect();
    let wrs: Vec<_> = sges
        .iter()
        .map(|sges| {
            let op = match run.load {
                Load::ReadStream => SendOp::Read(end.remote(sges[0].addr)),
                Load::FetchAddStream => SendOp::FetchAdd { remote: end.remote(WORD), add: 1 },
                _ => SendOp::Write(end.remote(sges[0].addr)),
            };
            SendWr { wr_id: 2, op, payload: Payload::Sges(sges), flags: SendFlags::SIGNALED, dest: None }
        })
        .collect();
    let qpn = end.qpn()?;
    end.nic.post_send(qpn, &wrs)?;
    Ok(())
}

/// Lets the device work until the client has something to say. A responder gets no completions of streams, so it looks
/// at progress alone; a device that needs no processor of ours lets it sleep.
pub(crate) fn respond(end: &mut End, control: &Control) -> Result<()> {
    let mut idle = 0;
    loop {
        if end.nic.progress() {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle <= YIELDS_BEFORE_SLEEP {
            std::thread::yield_now();
        } else if is_readable(control.fd())? {
            end.settle();
            return Ok(());
        } else {
            sleep(end.nic.as_ref(), Some(control.fd()))?;
        }
    }
}

//! The serving side of one device: makes queue pairs when asked, plays its part in each run, and says what arrived.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};

use super::case::Load;
use super::control::{Answer, Request, Run, accept};
use super::end::{DeviceKind, DeviceOptions, End, place};
use super::{flow, latency};
use crate::control::Control;

/// Serves one client, until it ends or goes away.
pub(crate) fn run(device: DeviceKind, address: IpAddr, at: SocketAddr, options: &DeviceOptions) -> Result<()> {
    let mut end = End::open(device, address)?;
    let mut control = accept(at)?;
    loop {
        let request = control.recv()?;
        let answer = match request {
            Request::End => return Ok(()),
            Request::Done => bail!("no run has begun"),
            Request::Connect(card) => end.new_qp().and_then(|own| end.connect(&card).map(|()| Answer::Card(own))),
            Request::Run(run) => serve(&mut end, &mut control, &run, options),
        };
        control.send(&answer.unwrap_or_else(|e| Answer::Failed(format!("{e:#}"))))?;
    }
}

/// One run; gives the report that the client asks for with [`Request::Done`].
fn serve(end: &mut End, control: &mut Control, run: &Run, options: &DeviceOptions) -> Result<Answer> {
    place(1, !run.load.is_ping_pong())?;
    let wrong = match run.load {
        Load::SendPingPong | Load::WritePingPong => {
            latency::prepare(end, run)?;
            control.send(&Answer::Ready)?;
            latency::pong(end, run, options.lat_wait)?;
            flow::respond(end, control)?;
            None
        }
        _ => {
            flow::prepare(end, run, false)?;
            control.send(&Answer::Ready)?;
            flow::respond(end, control)?;
            flow::verify(end, run, false)?
        }
    };
    match control.recv()? {
        Request::Done => Ok(Answer::Report { wrong, counters: end.counters() }),
        other => bail!("{other:?} in the middle of a run"),
    }
}

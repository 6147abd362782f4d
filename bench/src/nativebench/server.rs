//! The serving side: memory that clients read, write and add in, and receives for what they send. It knows no load
//! beyond that, as a server of one-sided verbs does not.

use std::net::TcpListener;

use crate::control::Control;
use crate::pattern;
use anyhow::{Context, Result, ensure};
use verbs::{Payload, SendFlags, SendOp, SendWr, WcOpcode};

use super::end::{Done, End, Hello, Needs};
use super::waiting::Waiting;
use super::{DeviceArgs, Verb};

/// Receives that are posted.
pub(crate) const RECEIVES: u32 = 512;

pub(crate) fn run(device: &DeviceArgs) -> Result<()> {
    let listener = TcpListener::bind((device.address, 0)).context("the control port")?;
    println!("ready {}", listener.local_addr()?);
    let mut control = Control::new(listener.accept()?.0)?;
    let hello: Hello = control.recv()?;
    let load = &hello.load;
    let receives = if load.verb.takes_receives() { RECEIVES } else { 0 };
    let mut end = End::open(
        device,
        Needs {
            connections: load.contexts().iter().sum(),
            transport: load.verb.transport(),
            sends: load.sends(),
            receives,
            bytes: load.region_bytes,
        },
    )?;
    let mut first = 0;
    for card in &hello.contexts {
        first += end.connect(first, card)?;
    }
    ensure!(first == end.qpns.len(), "the client has {first} connections, and said {}", end.qpns.len());
    if load.verb == Verb::Read {
        pattern::pages(load.region_bytes)
            .try_for_each(|page| end.region.write(page, &pattern::word(page).to_le_bytes()))?;
    }
    if receives > 0 {
        end.post_receives(receives, load.size)?;
    }
    control.send(&end.card(0..first))?;
    let arrived = serve(&mut end, &control, load.verb, load.size)?;
    let Done = control.recv()?;
    control.send(&arrived)?;
    settle(&mut end, &control)
}

/// Lets the device work until the client says that it is done; the bytes of messages that took a receive.
fn serve(end: &mut End, control: &Control, verb: Verb, size: u32) -> Result<u64> {
    let mut waiting = Waiting::new();
    let mut arrived = 0;
    loop {
        if waiting.poll(end, Some(control.fd()))? == 0 {
            if control.has_more()? {
                return Ok(arrived);
            }
            continue;
        }
        let received: Vec<_> = waiting
            .done
            .iter()
            .filter(|c| matches!(c.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm))
            .map(|c| (c.qpn, c.byte_len))
            .collect();
        arrived += received.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
        if !received.is_empty() {
            end.post_receives(u32::try_from(received.len())?, size)?;
        }
        if verb == Verb::Hold {
            // Back on the connection that it came from.
            for (qpn, bytes) in received {
                let sges = [end.sge(0, bytes)];
                let payload = Payload::Sges(&sges);
                let wr = SendWr { wr_id: 1, op: SendOp::Send, payload, flags: SendFlags::SIGNALED, dest: None };
                end.nic.post_send(qpn, &[wr])?;
            }
        }
    }
}

/// Until the client has its last acknowledgement and closes.
fn settle(end: &mut End, control: &Control) -> Result<()> {
    let mut waiting = Waiting::new();
    // The client says nothing more, so what comes is its end.
    while !control.has_more()? {
        waiting.poll(end, Some(control.fd()))?;
    }
    Ok(())
}

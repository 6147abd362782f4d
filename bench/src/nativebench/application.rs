//! An application at rest, as the paper's Figure 8 counts it: a device context of its own, a completion queue, a shared
//! receive queue with its buffers, and a queue pair for each connection. It has sent and received 64 KiB on each.

use std::os::fd::AsFd;

use anyhow::{Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Payload, QpType, SendFlags, SendOp, SendWr, WcOpcode};

use super::end::{End, Needs};
use super::server::RECEIVES;
use super::waiting::Waiting;
use super::{DeviceArgs, LoadArgs};

/// Carried each way on each connection.
const CARRIED_BYTES: u32 = 64 << 10;
/// Messages under way: fewer than either side has receives.
const WINDOW: u32 = 16;

pub(crate) fn hold(device: &DeviceArgs, load: &LoadArgs) -> Result<()> {
    let size = load.size;
    let mut end = End::open(
        device,
        Needs {
            connections: load.connections,
            transport: QpType::Rc,
            sends: load.sends().max(2 * WINDOW),
            receives: RECEIVES,
            bytes: u64::from(size) * u64::from(RECEIVES + WINDOW),
        },
    )?;
    end.post_receives(RECEIVES, size)?;
    let mut ends = [end];
    let mut controls = End::connect_all(&mut ends, load)?;
    let [mut end] = ends;
    let mut waiting = Waiting::new();
    let messages = (CARRIED_BYTES / size).max(1);
    for connection in 0..end.qpns.len() {
        let (mut sent, mut back, mut acknowledged) = (0, 0, 0);
        while back < messages || acknowledged < messages {
            while sent < messages && sent - back < WINDOW {
                let place = u64::from(RECEIVES + sent % WINDOW) * u64::from(size);
                let sges = [end.sge(place, size)];
                let payload = Payload::Sges(&sges);
                let wr = SendWr { wr_id: 0, op: SendOp::Send, payload, flags: SendFlags::SIGNALED, dest: None };
                end.nic.post_send(end.qpns[connection], &[wr])?;
                sent += 1;
            }
            if waiting.poll(&mut end, None)? > 0 {
                let came = waiting.done.iter().filter(|c| c.opcode == WcOpcode::Recv).count();
                back += u32::try_from(came)?;
                acknowledged += u32::try_from(waiting.done.len() - came)?;
                end.post_receives(u32::try_from(came)?, size)?;
            }
        }
    }
    println!("holding {}", end.qpns.len());
    // Nothing is written to stdin, so what comes is its end. The device goes on answering.
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    while poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        if waiting.poll(&mut end, Some(stdin.as_fd()))? > 0 {
            bail!("a message that nobody asked for");
        }
    }
    End::finish(&mut controls)?;
    Ok(())
}

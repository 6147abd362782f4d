//! An encrypted stream: records between a queue pair's machine and a stream of the world, as the software NIC moves them.
//!
//! Owns the order in which a stream that broke is noticed. It must never hand on what the shipped records did not open.

use rand::RngExt;
use roce::Nic;
use wires::Opened;

use super::{CALLS, Link, TcpSide};
use crate::streams::{EndId, Standing, Streams};

/// Steps of an encrypted stream: what was opened is handed on in one go, however small the pieces are.
const RECORD_STEPS: usize = 100_000;

impl TcpSide {
    /// What the software NIC does with records, over a stream of the world.
    pub(super) fn receive_records(
        &mut self,
        link: &mut Link,
        end: EndId,
        nic: &mut Nic,
        streams: &mut Streams,
    ) -> bool {
        let mut moved = false;
        for _ in 0..RECORD_STEPS {
            if link.qp.is_over() {
                break;
            }
            // As without records: nothing is handed on of a stream that is known to be broken. Regions are revoked
            // between hosts in no time here, so it could be for a region that its peer has lost.
            if streams.standing(end) == Standing::Broken {
                link.fail(nic, streams);
                return true;
            }
            link.qp.want(nic.device_mut(), &mut self.scatter);
            let Some(sealed) = link.sealed.as_mut().filter(|_| !self.scatter.is_empty()) else { break };
            match sealed.hand_on(&mut link.qp, nic.device_mut(), &self.scatter) {
                Ok(Opened::HandedOn) => moved = true,
                Ok(Opened::WantsMore) => {
                    let most = self.rng.random_range(1..=self.cut_max);
                    let bytes = streams.read(end, most);
                    if !bytes.is_empty() {
                        sealed.opener().room()[..bytes.len()].copy_from_slice(&bytes);
                        sealed.opener().fill(bytes.len());
                        moved = true;
                        continue;
                    }
                    match streams.standing(end) {
                        Standing::AtEnd if !link.has_told_end => {
                            link.has_told_end = true;
                            match sealed.opener().end() {
                                Ok(()) => link.qp.on_eof(nic.device_mut()),
                                Err(_) => link.fail(nic, streams),
                            }
                            return true;
                        }
                        _ => break,
                    }
                }
                Err(fault) => {
                    self.broken_rules.push((link.peer.gid.ip(), fault.to_string()));
                    link.fail(nic, streams);
                    return true;
                }
            }
        }
        moved
    }

    pub(super) fn transmit_records(
        &mut self,
        link: &mut Link,
        end: EndId,
        nic: &mut Nic,
        streams: &mut Streams,
    ) -> bool {
        let mut moved = false;
        for _ in 0..CALLS {
            if streams.standing(end) == Standing::Broken {
                moved |= link.break_off(nic, streams);
                break;
            }
            let Some(sealed) = &mut link.sealed else { break };
            if sealed.unsent().is_empty() {
                link.qp.poll_transmit(nic.device_mut(), &mut self.gather);
                if self.gather.is_empty() {
                    break;
                }
                match sealed.seal(&self.gather) {
                    Ok(taken) => link.qp.sent(nic.device_mut(), taken),
                    Err(fault) => {
                        self.broken_rules.push((link.peer.gid.ip(), fault.to_string()));
                        link.fail(nic, streams);
                        return true;
                    }
                }
            }
            let most = streams.room(end).min(self.rng.random_range(1..=self.cut_max)).min(sealed.unsent().len());
            if most == 0 {
                break;
            }
            let bytes = sealed.unsent()[..most].to_vec();
            let (rng, cut_max) = (&mut self.rng, self.cut_max);
            streams.send(end, &bytes, || rng.random_range(1..=cut_max));
            sealed.on_sent(most);
            moved = true;
        }
        moved
    }
}

//! Protection domains, addresses of registered memory, and which CQ a notification is of (IBTA 10.2.3, 10.6.3, 11.4.2.2).

use verbs::{Access, Mr, MrInit, Payload, PdId, QpState, RemoteAddr, SendFlags, SendOp, Sge, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Failure, Options, Outcome, Pair, Rig, Side};

cases!("domain":
    addresses_run_from_the_iova, addresses_beside_the_iova_are_none, own_domain_reaches_its_memory,
    foreign_key_of_a_peer, foreign_key_of_its_own, in_use_until_all_is_gone, notified_by_cq,
);

/// An address that no offset into a region is, a multiple of all page sizes.
const IOVA: u64 = 0x7a5a_0000_0000;

/// A side's memory once more, in another domain or at other addresses.
fn again(p: &mut Pair<'_>, side: Side, pd: PdId, iova: u64) -> Result<Mr, Failure> {
    let (region, access) = (p.end(side).region.clone(), p.options.mr_access);
    let len = p.options.bytes;
    Ok(p.device(side).register(&MrInit { pd, region: &region, offset: 0, len, iova, access })?)
}

fn own(rig: &mut dyn Rig) -> Result<Pair<'_>, Failure> {
    Pair::connect(rig, Options { domain: true, ..Options::default() })
}

fn addresses_run_from_the_iova(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.fill(Side::A, 100, b"by address");
    let (from, to) = (again(&mut p, Side::A, PdId::default(), IOVA)?, again(&mut p, Side::B, PdId::default(), IOVA)?);
    let local = [Sge { addr: IOVA + 100, len: 10, lkey: from.lkey }];
    let remote = RemoteAddr { addr: IOVA + p.options.bytes - 10, rkey: to.rkey };
    p.post(Side::A, 1, SendOp::Write(remote), Payload::Sges(&local))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, p.options.bytes - 10, 10) == b"by address", "the bytes are not at the end of the region");
    let back = [Sge { addr: IOVA, len: 10, lkey: from.lkey }];
    p.post(Side::A, 2, SendOp::Read(remote), Payload::Sges(&back))?;
    p.ok(Side::A, 2, WcOpcode::Read)?;
    ensure!(p.bytes(Side::A, 0, 10) == b"by address", "what was read is not at the start of the region");
    Ok(())
}

fn addresses_beside_the_iova_are_none(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let to = again(&mut p, Side::B, PdId::default(), IOVA)?;
    let before = RemoteAddr { addr: IOVA - 1, rkey: to.rkey };
    denied(&mut p, before, 8)
}

/// A WRITE there is refused by the peer.
fn denied(p: &mut Pair<'_>, remote: RemoteAddr, len: usize) -> Outcome {
    p.fill(Side::B, 0, &[0x5a; 64]);
    let local = [p.sge(Side::A, 0, len)];
    p.post(Side::A, 1, SendOp::Write(remote), Payload::Sges(&local))?;
    p.status(Side::A, 1, Status::RemAccessErr)?;
    ensure!(p.bytes(Side::B, 0, 64) == [0x5a; 64], "the target was touched");
    p.reaches(Side::A, QpState::Err)
}

fn own_domain_reaches_its_memory(rig: &mut dyn Rig) -> Outcome {
    let mut p = own(rig)?;
    p.fill(Side::A, 0, b"ours");
    let (local, remote) = ([p.sge(Side::A, 0, 4)], p.remote(Side::A, 8));
    p.post(Side::A, 1, SendOp::Write(remote), Payload::Sges(&local))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, 8, 4) == b"ours", "the bytes did not land");
    p.recv(Side::B, 2, &[p.sge(Side::B, 0, 64)])?;
    p.post(Side::A, 3, SendOp::Send, Payload::Sges(&local))?;
    p.ok(Side::B, 2, WcOpcode::Recv)?;
    p.ok(Side::A, 3, WcOpcode::Send)?;
    Ok(())
}

fn foreign_key_of_a_peer(rig: &mut dyn Rig) -> Outcome {
    let mut p = own(rig)?;
    let foreign = again(&mut p, Side::B, PdId::default(), 0)?;
    denied(&mut p, RemoteAddr { addr: 0, rkey: foreign.rkey }, 8)
}

fn foreign_key_of_its_own(rig: &mut dyn Rig) -> Outcome {
    let mut p = own(rig)?;
    let foreign = again(&mut p, Side::A, PdId::default(), 0)?;
    p.recv(Side::B, 7, &[p.sge(Side::B, 0, 64)])?;
    let local = [Sge { addr: 0, len: 8, lkey: foreign.lkey }];
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&local))?;
    p.status(Side::A, 1, Status::LocProtErr)
}

fn in_use_until_all_is_gone(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let pd = p.device(Side::A).alloc_pd()?;
    let mr = again(&mut p, Side::A, pd, 0)?;
    ensure!(p.device(Side::A).dealloc_pd(pd).is_err(), "a domain went in which a memory region is");
    p.device(Side::A).dereg_mr(mr.id)?;
    p.device(Side::A).dealloc_pd(pd)?;
    ensure!(p.device(Side::A).dealloc_pd(pd).is_err(), "a domain went twice");
    let region = p.end(Side::A).region.clone();
    let of_none = MrInit { pd, ..MrInit::new(&region, 0, p.options.bytes, Access::LOCAL_WRITE) };
    ensure!(p.device(Side::A).register(&of_none).is_err(), "memory was registered in a domain that is gone");
    Ok(())
}

/// Of two CQs that are both armed the one is told of that got its completion, and the other one stays armed.
fn notified_by_cq(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    if p.rig.notified(Side::B).is_none() {
        return Ok(());
    }
    let cq = p.end(Side::B).cq;
    let other = p.device(Side::B).create_cq(16)?;
    for armed in [other, cq] {
        p.device(Side::B).req_notify_cq(armed, false)?;
    }
    for round in 1..=2 {
        p.recv(Side::B, round, &[p.sge(Side::B, 0, 64)])?;
        p.post_flags(Side::A, round, SendOp::Send, Payload::Inline(&[1; 8]), SendFlags::empty())?;
        let mut told = None;
        for _ in 0..20_000 {
            told = p.device(Side::B).poll_cq_event();
            if told.is_some() {
                break;
            }
            p.device(Side::A).progress();
            p.rig.step();
        }
        ensure!(told == Some(cq), "{told:?} was told of, not the CQ of the message");
        ensure!(p.device(Side::B).poll_cq_event().is_none(), "a second notification");
        p.device(Side::B).progress();
        p.ok(Side::B, round, WcOpcode::Recv)?;
        p.device(Side::B).req_notify_cq(cq, false)?;
    }
    p.device(Side::B).destroy_cq(other)?;
    Ok(())
}

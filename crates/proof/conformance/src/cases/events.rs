//! Completion notification and asynchronous events (IBTA 11.4.2.2, 11.6.3).

use verbs::{AsyncEvent, Payload, QpModify, SendFlags, SendOp, WcOpcode};

use super::{cases, ensure};
use crate::{Failure, Options, Outcome, Pair, Rig, Side};

cases!("event":
    notified_after_arming, not_notified_unarmed, armed_once, solicited_only, error_counts_as_solicited, last_wqe_with_srq,
);

/// Steps until the channel of a side is readable, or long enough; `None` where there is no channel.
fn readable(p: &mut Pair<'_>, side: Side, steps: u32) -> Option<bool> {
    for _ in 0..steps {
        if p.rig.notified(side)? {
            return Some(true);
        }
        p.device(side.other()).progress();
        p.rig.step();
    }
    Some(false)
}

const LONG: u32 = 20_000;
const SHORT: u32 = 60;

fn arrive(p: &mut Pair<'_>, id: u64, flags: SendFlags) -> Outcome {
    p.recv(Side::B, id, &[p.sge(Side::B, 0, 64)])?;
    p.post_flags(Side::A, id, SendOp::Send, Payload::Inline(&[1; 8]), flags)
}

fn arm(p: &mut Pair<'_>, solicited_only: bool) -> Outcome {
    let cq = p.end(Side::B).cq;
    p.device(Side::B).req_notify_cq(cq, solicited_only)?;
    Ok(())
}

fn expect(p: &mut Pair<'_>, want: bool, what: &str) -> Outcome {
    let steps = if want { LONG } else { SHORT };
    match readable(p, Side::B, steps) {
        Some(got) if got != want => Err(Failure(format!("{what}: channel readable is {got}"))),
        _ => Ok(()),
    }
}

fn notified_after_arming(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    arm(&mut p, false)?;
    arrive(&mut p, 1, SendFlags::empty())?;
    expect(&mut p, true, "armed, one arrival")?;
    p.device(Side::B).progress();
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    expect(&mut p, false, "taken")
}

fn not_notified_unarmed(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    arrive(&mut p, 1, SendFlags::empty())?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    expect(&mut p, false, "never armed")
}

fn armed_once(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    arm(&mut p, false)?;
    arrive(&mut p, 1, SendFlags::empty())?;
    expect(&mut p, true, "first arrival")?;
    p.device(Side::B).progress();
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    arrive(&mut p, 2, SendFlags::empty())?;
    p.ok(Side::B, 2, WcOpcode::Recv)?;
    expect(&mut p, false, "second arrival without arming again")
}

fn solicited_only(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    arm(&mut p, true)?;
    arrive(&mut p, 1, SendFlags::empty())?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    expect(&mut p, false, "unsolicited arrival, armed for solicited ones")?;
    arrive(&mut p, 2, SendFlags::SOLICITED)?;
    expect(&mut p, true, "solicited arrival")
}

fn error_counts_as_solicited(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 64)])?;
    arm(&mut p, true)?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).modify_qp(qpn, &QpModify::Err)?;
    expect(&mut p, true, "a flushed receive, armed for solicited ones")
}

/// IBTA 11.6.3.1.6: a QP with an SRQ that goes into error says when it has taken its last receive.
fn last_wqe_with_srq(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { srq: true, ..Options::default() })?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).modify_qp(qpn, &QpModify::Err)?;
    for _ in 0..1_000 {
        match p.device(Side::B).poll_event() {
            Some(AsyncEvent::LastWqeReached(q)) => {
                ensure!(q == qpn, "the event names QP {q}, not {qpn}");
                return Ok(());
            }
            Some(_) => {}
            None => p.rig.step(),
        }
    }
    Err(Failure("no LastWqeReached event came".into()))
}

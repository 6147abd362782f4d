//! Memory of a program that takes it away while it is registered: the work request fails, or the peer's, and no signal is
//! raised.

use std::ffi::c_void;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use verbs::*;

use crate::rig::{End, PATIENCE, config};

const PAGE: usize = 4096;

/// A page of the program's, registered on a NIC at its own address.
struct Page {
    at: *mut c_void,
    mr: Mr,
}

impl Page {
    fn on(end: &mut End) -> Self {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), PAGE, prot, MapFlags::PRIVATE) }.expect("memory");
        // SAFETY: these bytes are reached by copies of the region alone.
        let region = unsafe { Region::of_program(at.expose_provenance(), PAGE, true) }.expect("memory of the program");
        let iova = at.addr() as u64;
        let init = MrInit { iova, ..MrInit::new(&region, 0, PAGE as u64, Access::all()) };
        Self { at, mr: end.nic.register(&init).expect("registered") }
    }

    fn take_away(&self) {
        // SAFETY: a whole mapping, to which no reference exists.
        unsafe { munmap(self.at, PAGE) }.expect("unmapped");
    }

    fn sge(&self) -> Sge {
        Sge { addr: self.at.addr() as u64, len: 64, lkey: self.mr.lkey }
    }

    fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.at.addr() as u64, rkey: self.mr.rkey }
    }
}

/// Two connected ends, and a page of each.
fn pair() -> ([End; 2], [Page; 2]) {
    let mut ends = ["127.0.0.1", "127.0.0.2"].map(|address| End::open(config(address)));
    let av = ends.each_ref().map(End::address_vector);
    let qpns = ends.each_ref().map(|end| end.qpn);
    for side in 0..2 {
        let psn = Psn::new(7);
        ends[side].connect(qpns[1 - side], av[1 - side], PathMtu::Mtu1024, psn, psn);
    }
    let pages = ends.each_mut().map(Page::on);
    (ends, pages)
}

fn post(end: &mut End, op: SendOp, sges: &[Sge]) {
    let wr = SendWr { wr_id: 1, op, payload: Payload::Sges(sges), flags: SendFlags::SIGNALED, dest: None };
    end.nic.post_send(end.qpn, &[wr]).expect("posted");
}

/// The next completion of a side.
fn completion(ends: &mut [End; 2], side: usize) -> Status {
    let begin = std::time::Instant::now();
    let mut out = Vec::new();
    while begin.elapsed() < PATIENCE {
        for (at, end) in ends.iter_mut().enumerate() {
            let cq = end.cq;
            let mut other = Vec::new();
            let into = if at == side { &mut out } else { &mut other };
            end.nic.poll_cq(cq, into, usize::from(at == side)).expect("polled");
        }
        if let Some(completion) = out.first() {
            return completion.status;
        }
    }
    panic!("no completion");
}

#[test]
fn it_is_written_and_read_at_its_own_address() {
    let (mut ends, [own, peers]) = pair();
    // SAFETY: a page that is mapped; the NIC does not touch it meanwhile.
    unsafe { own.at.cast::<[u8; 64]>().write([7; 64]) };
    post(&mut ends[0], SendOp::Write(peers.remote()), &[own.sge()]);
    assert_eq!(completion(&mut ends, 0), Status::Success);
    // SAFETY: as above: the WRITE has completed.
    assert_eq!(unsafe { peers.at.cast::<[u8; 64]>().read() }, [7; 64]);
    let add = SendOp::FetchAdd { remote: peers.remote(), add: 1 };
    post(&mut ends[0], add, &[Sge { len: 8, ..own.sge() }]);
    assert_eq!(completion(&mut ends, 0), Status::Success);
    // SAFETY: as above: the atomic has completed.
    assert_eq!(unsafe { peers.at.cast::<u64>().read() }, u64::from_ne_bytes([7; 8]) + 1);
}

#[test]
fn what_was_taken_away_fails_where_it_was() {
    let ops: [fn(RemoteAddr) -> SendOp; 3] =
        [SendOp::Write, SendOp::Read, |remote| SendOp::FetchAdd { remote, add: 1 }];
    for op in ops {
        let (mut ends, [own, peers]) = pair();
        peers.take_away();
        post(&mut ends[0], op(peers.remote()), &[Sge { len: 8, ..own.sge() }]);
        assert_eq!(completion(&mut ends, 0), Status::RemAccessErr, "{:?}", op(peers.remote()));
    }
    let (mut ends, [own, peers]) = pair();
    own.take_away();
    post(&mut ends[0], SendOp::Write(peers.remote()), &[own.sge()]);
    assert_eq!(completion(&mut ends, 0), Status::LocProtErr, "what is sent");
    let (mut ends, [own, peers]) = pair();
    own.take_away();
    post(&mut ends[0], SendOp::Read(peers.remote()), &[own.sge()]);
    assert_eq!(completion(&mut ends, 0), Status::LocProtErr, "where an answer lands");
}

#[test]
fn a_receive_that_was_taken_away_fails_at_both_ends() {
    let (mut ends, [own, peers]) = pair();
    let qpn = ends[1].qpn;
    ends[1].nic.post_recv(qpn, &[RecvWr { wr_id: 2, sges: &[peers.sge()] }]).expect("posted");
    peers.take_away();
    post(&mut ends[0], SendOp::Send, &[own.sge()]);
    assert_eq!(completion(&mut ends, 1), Status::LocProtErr);
    let (mut ends, [own, peers]) = pair();
    let qpn = ends[1].qpn;
    ends[1].nic.post_recv(qpn, &[RecvWr { wr_id: 2, sges: &[peers.sge()] }]).expect("posted");
    peers.take_away();
    post(&mut ends[0], SendOp::Send, &[own.sge()]);
    assert_eq!(completion(&mut ends, 0), Status::RemOpErr);
}

//! Agent and members in one process.

use std::net::{IpAddr, UdpSocket};

use rustix::net::{AddressFamily, SocketType};

use super::*;

/// An agent at a port of its own, until nobody needs it.
fn agent(port: u16) -> std::thread::JoinHandle<io::Result<()>> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let agent = std::thread::spawn(move || serve(port, move || ready.send(()).expect("the test waits")));
    is_ready.recv().expect("it serves");
    agent
}

fn place(port: u16, at: &[IpAddr]) -> Share {
    join(port, at).expect("a place").expect("an agent")
}

/// The beginning of a packet to a queue pair.
fn packet(qpn: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    bytes
}

/// A number of a queue pair that is of the range.
fn of(range: QpnRange) -> u32 {
    range.prefix << (24 - range.bits) | 0x5a5
}

fn takes(share: &Share, at: usize) -> usize {
    let mut taken = 0;
    while rustix::net::recv(&share.sockets[at].1, &mut [0_u8; 64][..], rustix::net::RecvFlags::DONTWAIT).is_ok() {
        taken += 1;
    }
    taken
}

#[test]
fn each_packet_reaches_the_process_whose_number_it_bears() {
    const PORT: u16 = 47_913;
    let own = ["127.0.0.71", "::1"].map(|address| address.parse::<IpAddr>().unwrap());
    let agent = agent(PORT);
    let members: Vec<_> = (0..5).map(|_| place(PORT, &own)).collect();
    for (at, address) in own.iter().enumerate() {
        let from = UdpSocket::bind((*address, 0)).unwrap();
        for round in 0..32 {
            for member in &members {
                from.send_to(&packet(of(member.qpns) + round), (*address, PORT)).unwrap();
            }
        }
        let taken: Vec<_> = members.iter().map(|member| takes(member, at)).collect();
        assert_eq!(taken, [32; 5], "{address}");
    }
    drop(members);
    agent.join().unwrap().expect("it ends when the last one is gone");
}

#[test]
fn a_slot_that_was_anothers_has_other_numbers_and_nothing_waits_in_it() {
    const PORT: u16 = 47_914;
    let own = ["127.0.0.72".parse::<IpAddr>().unwrap()];
    let agent = agent(PORT);
    let stays = place(PORT, &own);
    let gone = place(PORT, &own);
    let old = gone.qpns;
    drop(gone);
    let from = UdpSocket::bind((own[0], 0)).unwrap();
    from.send_to(&packet(of(old)), (own[0], PORT)).unwrap();
    // The agent learns of the end by the closed connection, which may be after the next one asks.
    let next = (0..1000)
        .find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let next = place(PORT, &own);
            (next.qpns.prefix >> GENERATION_BITS == old.prefix >> GENERATION_BITS).then_some(next)
        })
        .expect("the slot is lent again");
    assert_ne!(next.qpns, old, "its numbers are others");
    assert_eq!(takes(&next, 0), 0, "what was sent to the one before is dropped");
    from.send_to(&packet(of(next.qpns)), (own[0], PORT)).unwrap();
    assert_eq!((takes(&next, 0), takes(&stays, 0)), (1, 0));
    drop((stays, next));
    agent.join().unwrap().expect("it ends");
}

#[test]
fn who_has_the_port_is_named_and_words_that_are_none_are_refused() {
    const PORT: u16 = 47_915;
    let own: IpAddr = "127.0.0.73".parse().unwrap();
    assert!(join(PORT, &[own]).unwrap().is_none(), "there is no agent");
    let agent = agent(PORT);
    serve(PORT, || panic!("a second agent")).expect("a second one leaves the port to the first");
    let other = UdpSocket::bind((own, PORT)).unwrap();
    let refused = join(PORT, &[own]).unwrap_err().to_string();
    assert!(refused.contains("127.0.0.73") && refused.contains("EADDRINUSE"), "{refused}");
    drop(other);
    drop(place(PORT, &[own]));
    let stranger = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&stranger, &name(PORT).unwrap()).unwrap();
    rustix::net::send(&stranger, b"raasnic\x00", rustix::net::SendFlags::empty()).unwrap();
    let mut words = [0; 256];
    let (len, _) = rustix::net::recv(&stranger, &mut words[..], rustix::net::RecvFlags::empty()).unwrap();
    assert!(String::from_utf8_lossy(&words[..len]).contains("another release"));
    assert!(matches!(join(PORT, &[own; 65]), Err(ShareError::TooMany(65))));
    drop(stranger);
    agent.join().unwrap().expect("it ends");
}

/// A NIC that has a place keeps it.
#[test]
fn the_place_is_the_nics_as_long_as_it_is_open() {
    const PORT: u16 = 47_916;
    let own = ["127.0.0.74".parse::<IpAddr>().unwrap()];
    let agent = agent(PORT);
    let open = || {
        let share = std::sync::Arc::new(place(PORT, &own));
        let qpns = share.qpns;
        let config = crate::SoftNicConfig { udp_port: PORT, share: Some(share), ..crate::SoftNicConfig::new(own[0]) };
        (crate::SoftNic::open(config).expect("a NIC"), qpns)
    };
    let nics: Vec<_> = (0..4).map(|_| open()).collect();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut slots: Vec<_> = nics.iter().map(|(_, qpns)| qpns.prefix >> GENERATION_BITS).collect();
    slots.push(place(PORT, &own).qpns.prefix >> GENERATION_BITS);
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 5, "a slot was lent twice");
    drop(nics);
    agent.join().unwrap().expect("it ends");
}

/// The name is anybody's to take: sockets of a stranger are no sockets of the port.
#[test]
fn an_agent_of_another_user_is_not_believed() {
    const PORT: u16 = 47_917;
    let own: IpAddr = "127.0.0.75".parse().unwrap();
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "only root can be two users");
        eprintln!("SKIP: only root can be two users");
        return;
    }
    let (ready, is_ready) = std::sync::mpsc::channel();
    let stranger = std::thread::spawn(move || {
        let uid = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        serve(PORT, move || ready.send(()).expect("the test waits"))
    });
    is_ready.recv().expect("it serves");
    let refused = join(PORT, &[own]).unwrap_err();
    assert!(matches!(refused, ShareError::OtherUser { agent: 65_534, own: 0 }), "{refused}");
    stranger.join().unwrap().expect("it ends");
}

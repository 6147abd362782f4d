//! Memory that an application gives back under the engine.

use std::net::SocketAddr;

use control::Reason;

use crate::world::{World, addr};

#[test]
fn an_application_whose_memory_faults_loses_its_session_alone() {
    shm::survive_faults().unwrap();
    let mut w = World::new(2, 60);
    let (polite, server) = (w.attach(0, 64), w.attach(1, 64));
    let (near, far) = w.pair(polite, server, 7, 8192);
    let to = SocketAddr::new(addr(1), 7);
    let before = shm::survived_faults();
    // Its rings have no pages, as after it punched holes where the system promises no more memory.
    w.hosts[0].chunks_without_pages = true;
    let other = w.attach(0, 64);
    let slot = w.connect_wait(0, other, to, 8192).unwrap();
    assert_eq!(w.hosts[0].engine.check_memory(), 0, "nothing has touched it");
    w.tell(0, other, slot, |c| c.to_send = 5000);
    w.settle();
    assert!(shm::survived_faults() > before);
    assert_eq!(w.hosts[0].engine.check_memory(), 1);
    assert_eq!(w.hosts[0].engine.check_memory(), 0, "once");
    w.settle();
    let (app, detail) = w.hosts[0].faults.pop().unwrap();
    assert!(app == other && detail.contains("gave pages back"), "{detail}");
    let resets: Vec<_> = w.app(1, server).conns.values().filter_map(|c| c.reset).collect();
    assert_eq!(resets, [Reason::PeerAppDied]);
    // Who shares the lane with it goes on.
    w.tell(0, polite, near, |c| c.to_send = 100_000);
    w.until("the rest", |w| w.app(1, server).conns[&far].received == 100_000);
}

//! What a policy does not give is refused, for each thing that it names, and a policy that changes takes nothing away.

use raas::{
    BindError, DatagramSocket, Listener, Reason, Region, RegionAccess, RegionError, RegionKey, RegionOptions,
    RegionRefusal, Session, Stream,
};

use crate::hosts::{Host, bounded, check_echo, eventually};

const KEY: RegionKey = RegionKey::new([9; 16]);

/// Writes the policy of all programs; the daemon reads it when it starts, or when it is told.
fn give(host: &Host, others: &str) {
    std::fs::write(host.dir.path().join("policy.toml"), format!("[others]\n{others}\n")).unwrap();
}

fn host(others: &str) -> Host {
    let mut host = Host::new();
    give(&host, others);
    host.config.policy = Some(host.dir.path().join("policy.toml"));
    host.start();
    host
}

fn reload(host: &Host) {
    host.daemon.as_ref().unwrap().reload();
}

fn connect(session: &Session, to: &Host, port: u16) -> Result<Stream, Option<Reason>> {
    Stream::connect_with(session, (to.address(), port)).map_err(|e| e.reason())
}

fn listen(session: &Session, host: &Host, port: u16) -> Result<Listener, Option<Reason>> {
    Listener::bind_with(session, (host.address(), port)).map_err(|e| match e {
        BindError::Refused { reason, .. } => Some(reason),
        _ => None,
    })
}

fn refusal(result: Result<Region, RegionError>) -> RegionRefusal {
    result.unwrap_err().refusal().unwrap().clone()
}

#[test]
fn a_program_listens_connects_and_sends_where_it_may() {
    bounded(|| {
        let far = Host::started();
        let near = host(&format!("listen = [7001]\nconnect = [\"{}\"]", far.address()));
        let (session, theirs) = (near.session(), far.session());
        let port = far.echo(&theirs);
        check_echo(connect(&session, &far, port).unwrap(), 1000, 1);
        let _listener = listen(&session, &near, 7001).unwrap();
        assert_eq!(listen(&session, &near, 7000).map(drop), Err(Some(Reason::Policy)));
        assert_eq!(listen(&session, &near, 0).map(drop), Err(Some(Reason::Policy)), "its port is taken");
        assert_eq!(connect(&session, &near, 7001).map(drop), Err(Some(Reason::Policy)), "this host is not named");
        let socket = DatagramSocket::bind_with(&session, ("0.0.0.0", 0)).unwrap();
        assert!(socket.max_payload((far.address(), 5000)).is_ok());
        // The other host has no policy, and may send to this one.
        check_other_direction(&near, &far, &socket);

        give(&near, "connect = []");
        reload(&near);
        eventually("the policy is in force", || connect(&session, &far, port).is_err());
        assert_eq!(connect(&session, &far, port).map(drop), Err(Some(Reason::Policy)));
        let refused = socket.max_payload((far.address(), 5000)).unwrap_err().to_string();
        assert!(refused.contains("configuration does not allow"), "{refused}");
        let drops = |near: &Host| near.stat().drops.iter().find(|d| d.0 == "datagram_policy").map_or(0, |d| d.1);
        let before = drops(&near);
        socket.send_to(b"lost", (far.address(), 5000)).unwrap();
        eventually("the datagram is dropped and counted", || drops(&near) == before + 1);
    });
}

fn check_other_direction(near: &Host, far: &Host, here: &DatagramSocket) {
    let theirs = far.session();
    let from = DatagramSocket::bind_with(&theirs, ("0.0.0.0", 0)).unwrap();
    let to = (near.address(), here.local_addr().unwrap().port());
    let mut buffer = [0; 16];
    from.send_to(b"hello", to).unwrap();
    let (bytes, _) = here.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"hello");
}

#[test]
fn a_policy_that_changes_takes_nothing_away_and_a_wrong_one_changes_nothing() {
    bounded(|| {
        let far = Host::started();
        let near = host("");
        let (session, theirs) = (near.session(), far.session());
        let port = far.echo(&theirs);
        let kept = connect(&session, &far, port).unwrap();
        let listener = listen(&session, &near, 7001).unwrap();
        give(&near, "listen = []\nconnect = []");
        reload(&near);
        eventually("the policy is in force", || listen(&session, &near, 7002).is_err());
        assert_eq!(connect(&session, &far, port).map(drop), Err(Some(Reason::Policy)));
        check_echo(kept, 100_000, 2);
        let into = connect(&theirs, &near, 7001).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        drop(into);

        give(&near, "connect = [\"nowhere\"]");
        reload(&near);
        give(&near, "listen = [7003]\nconnect = []");
        reload(&near);
        eventually("the next one is in force", || listen(&session, &near, 7003).is_ok());
        assert_eq!(connect(&session, &far, port).map(drop), Err(Some(Reason::Policy)));
    });
}

#[test]
fn a_rate_holds_a_program_back_until_the_policy_lifts_it() {
    bounded(|| {
        const BYTES: usize = 1 << 20;
        let far = Host::started();
        let near = host("weight = 2\nbytes_per_s = 2000000");
        let (session, theirs) = (near.session(), far.session());
        let port = far.echo(&theirs);
        let began = std::time::Instant::now();
        check_echo(connect(&session, &far, port).unwrap(), BYTES, 1);
        // What it need not wait for: the burst, and the last piece of a turn.
        let least = std::time::Duration::from_millis(400);
        assert!(began.elapsed() >= least, "{:?} for a mebibyte at 2 MB/s", began.elapsed());
        let stops = || near.counter("rate_stops");
        assert!(stops() > 0);
        let row = || raas::inspect::tenants(Some(&near.config.socket)).unwrap().remove(0);
        let row_now = row();
        assert_eq!((row_now.weight, row_now.bytes_per_s, row_now.operations_per_s), (2, Some(2_000_000), None));

        // At this rate the bytes take hours, which the test would not wait for.
        give(&near, "bytes_per_s = 100");
        reload(&near);
        eventually("the policy is in force", || row().bytes_per_s == Some(100));
        let stream = connect(&session, &far, port).unwrap();
        let before = stops();
        let all = std::thread::spawn(move || check_echo(stream, BYTES, 2));
        eventually("it is stopped", || stops() > before);
        give(&near, "");
        reload(&near);
        all.join().unwrap();
    });
}

#[test]
fn regions_are_made_and_opened_as_far_as_the_policy_says() {
    bounded(|| {
        let near = host("region_bytes_max = 8192");
        let session = near.session();
        let make = |name: &str, bytes| RegionOptions::new().key(KEY).create(&session, name, bytes);
        let first = make("a", 8000).unwrap();
        assert_eq!(refusal(make("b", 193)), RegionRefusal::Quota { asked: 193, used: 8000, max: 8192 });
        drop(first);
        let kept = make("b", 193).unwrap();
        let policy = RegionRefusal::Reason(Reason::Policy);
        give(&near, "regions = \"open\"");
        reload(&near);
        eventually("the policy is in force", || make("c", 8).is_err());
        assert_eq!(refusal(make("c", 8)), policy);
        let open = || Region::open(&session, near.address(), "b", KEY);
        open().unwrap();
        give(&near, "regions = \"none\"");
        reload(&near);
        eventually("the next one is in force", || open().is_err());
        assert_eq!(refusal(open()), policy);
        kept.write(0, b"still").unwrap();
    });
}

#[test]
fn lanes_are_leased_by_those_who_may() {
    bounded(|| {
        let owner = Host::started();
        let user = host("leased_lanes = false");
        let (theirs, session) = (owner.session(), user.session());
        let _region = RegionOptions::new().key(KEY).create(&theirs, "r", 4096).unwrap();
        let leased = Region::open_leased(&session, owner.address(), "r", KEY, RegionAccess::READ);
        assert_eq!(refusal(leased), RegionRefusal::Reason(Reason::Policy));
        Region::open(&session, owner.address(), "r", KEY).unwrap();
    });
}

#[test]
fn tenants_show_what_their_programs_have() {
    bounded(|| {
        let near = host("programs_max = 2\nlisteners_max = 1");
        let session = near.session();
        let _listener = listen(&session, &near, 7001).unwrap();
        assert_eq!(listen(&session, &near, 7002).map(drop), Err(Some(Reason::TenantLimit)));
        let _second = near.session();
        assert!(Session::connect(&near.config.socket).is_err(), "two programs are there");
        let rows = raas::inspect::tenants(Some(&near.config.socket)).unwrap();
        let [others] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((others.name.as_str(), others.programs, others.programs_max), ("others", 2, Some(2)));
        assert_eq!((others.listeners, others.listeners_max, others.connections_max), (1, Some(1), None));
        assert!(near.stat().apps.iter().all(|app| app.tenant == "others"));
    });
}

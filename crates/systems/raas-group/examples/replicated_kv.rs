//! A replicated key-value store: three hosts in one process, a writer, and the end of whoever leads.
//!
//! Owns nothing that a program of its own would not have: a machine, and a member for each host.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use raas::RegionKey;
use raas_group::{BadSnapshot, Group, GroupBuilder, Machine, Role};

/// The state: it is the same at all members, because all apply the same commands in the same order.
#[derive(Default)]
struct Store(BTreeMap<String, String>);

impl Machine for Store {
    /// `key=value` sets, `key` alone removes. The reply is what was there.
    fn apply(&mut self, _index: u64, command: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(command);
        let before = match text.split_once('=') {
            Some((key, value)) => self.0.insert(key.to_owned(), value.to_owned()),
            None => self.0.remove(&*text),
        };
        before.unwrap_or_default().into_bytes()
    }

    fn save(&self, into: &mut Vec<u8>) {
        for (key, value) in &self.0 {
            into.extend_from_slice(format!("{key}={value}\n").as_bytes());
        }
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadSnapshot)?;
        let pair = |line: &str| line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.0 = text.lines().map(pair).collect::<Option<_>>().ok_or(BadSnapshot)?;
        Ok(())
    }
}

const HOSTS: [(u8, [u8; 4]); 3] = [(1, [127, 0, 41, 1]), (2, [127, 0, 41, 2]), (3, [127, 0, 41, 3])];
const PATIENCE: Duration = Duration::from_secs(60);

/// Whoever leads.
fn leader(members: &[(u8, Group<Store>)]) -> Result<&(u8, Group<Store>), Box<dyn Error>> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Some(found) = members.iter().find(|(_, group)| matches!(group.role(), Role::Leader { .. })) {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("nobody leads".into())
}

/// Sets a key at whoever leads. Under one client and number it is one command, however often it is proposed.
fn set(members: &[(u8, Group<Store>)], number: u64, command: &str) -> Result<u8, Box<dyn Error>> {
    let begin = Instant::now();
    loop {
        let (id, group) = leader(members)?;
        match group.propose_as(1, number, command.as_bytes()) {
            Ok(_) => return Ok(*id),
            Err(error) if begin.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let hosts: Vec<(u8, IpAddr)> = HOSTS.iter().map(|(id, host)| (*id, IpAddr::from(*host))).collect();
    let start = |(_, host): &(u8, IpAddr)| raas_embedded::builder(*host).key(&[7; 32]).start();
    let daemons = hosts.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    // A program on each host would do this once. Here they do it at the same time, since a new group needs all of them.
    let key = RegionKey::new([9; 16]);
    let mut members = std::thread::scope(|scope| {
        let join = |((id, _), daemon): (&(u8, IpAddr), _)| {
            let builder = GroupBuilder::new("kv", key).members(&hosts).me(*id);
            let session = raas_embedded::Embedded::session(daemon);
            (*id, scope.spawn(move || builder.open(session, Store::default())))
        };
        let joins: Vec<_> = hosts.iter().zip(&daemons).map(join).collect();
        let joined =
            |(id, thread): (u8, std::thread::ScopedJoinHandle<'_, _>)| Ok((id, thread.join().map_err(|_| "a panic")??));
        joins.into_iter().map(joined).collect::<Result<Vec<_>, Box<dyn Error>>>()
    })?;
    let begin = Instant::now();
    for number in 1..=100 {
        set(&members, number, &format!("key{}={number}", number % 10))?;
    }
    println!("100 commands in {:?}", begin.elapsed());
    let (first, _) = leader(&members)?;
    let first = *first;
    // Its program ends. Its memory stays with its daemon.
    members.retain(|(id, _)| *id != first);
    let begin = Instant::now();
    let second = set(&members, 101, "key0=after")?;
    println!("member {first} ended; member {second} committed the next command {:?} later", begin.elapsed());
    let found = leader(&members)?.1.read(|store| store.0.clone())?;
    println!("key0 = {:?}, key9 = {:?}, of {} keys", found.get("key0"), found.get("key9"), found.len());
    Ok(())
}

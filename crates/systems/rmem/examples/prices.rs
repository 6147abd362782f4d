//! A map that two hosts share: `cargo run -p rmem --example prices`. Both hosts are in this process, each with a daemon
//! of its own; between them everything goes over the wire.

use std::net::IpAddr;

use raas::{Region, RegionOptions, Session};
use rmem::{ByKey, Client, LEASE, Map, Pool, Wait, format};

/// What a program of the second host does: it opens the pool by the keys of its regions, and the map by its name.
fn second_host(session: &Session, nodes: &[(IpAddr, raas::RegionKey)]) -> Result<(), Box<dyn std::error::Error>> {
    let open = |(host, key): &(IpAddr, raas::RegionKey)| Region::open(session, *host, "pool", *key);
    let mut client = Client::join(Pool::new(nodes.iter().map(open).collect::<Result<_, _>>()?)?).wait()?;
    let at = client.root("prices").wait()?.ok_or("nobody has made the map")?;
    let map = Map::open(&client, at, ByKey).wait()?;
    map.put(&mut client, 7, b"seven").wait()?;
    for _ in 0..10 {
        map.get(&mut client, 1).wait()?;
    }
    println!("the second host reads {:?}", map.get(&mut client, 1).wait()?.map(String::from_utf8));
    println!("its cache hit {:.0}% of its reads", 100.0 * client.stats().hit_rate());
    Ok(client.leave().wait()?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts = ["127.88.3.1".parse()?, "127.88.3.2".parse()?];
    let [first, second] = hosts.map(|address| raas_embedded::builder(address).key(&[7; 32]).start());
    let (first, second) = (first?, second?);
    // Each host gives a region, and formats it as its node.
    let own = RegionOptions::new().create(first.session(), "pool", 1 << 20)?;
    let far = RegionOptions::new().create(second.session(), "pool", 1 << 20)?;
    let nodes = [(hosts[0], own.key()), (hosts[1], far.key())];
    let of_second = Region::open(second.session(), hosts[0], "pool", own.key())?;
    format(&Pool::new(vec![own.clone()])?, 0, LEASE).wait()?;
    format(&Pool::new(vec![of_second, far.clone()])?, 1, LEASE).wait()?;

    let far = Region::open(first.session(), hosts[1], "pool", far.key())?;
    let mut client = Client::join(Pool::new(vec![own, far])?).wait()?;
    let map = Map::create(&mut client, 1024, ByKey).wait()?;
    client.set_root("prices", map.ptr()).wait()?.ok();
    map.put(&mut client, 1, b"one").wait()?;
    second_host(second.session(), &nodes)?;
    println!("the first host reads {:?}", map.get(&mut client, 7).wait()?.map(String::from_utf8));
    Ok(())
}

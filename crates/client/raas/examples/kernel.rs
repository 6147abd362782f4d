//! A lookup in a list that somebody else keeps: `cargo run -p raas --example kernel`, beside a daemon (`raas daemon`).
//! For simplicity one program is owner and user. A user on another host has the same lines, and one round trip.

use raas::kernels::Chain;
use raas::{Region, RegionAccess, RegionOptions, Session};

fn main() -> Result<(), raas::RegionError> {
    let session = Session::global()?;
    // The owner: a list of three nodes, each with the place of the next one, a key and a value. It lets others run
    // kernels, which takes its host's processor.
    let access = RegionAccess::ALL | RegionAccess::EXECUTE;
    let table = RegionOptions::new().access(access).create(&session, "kernel-example", 4096)?;
    let nodes = [(64, "ada", 1815u64), (128, "grace", 1906), (192, "edsger", 1930)];
    table.store(0, 64)?;
    for (at, (name, year)) in nodes.iter().map(|(at, name, year)| (*at, (name, year))) {
        table.store(at, if at < 192 { at + 64 } else { 0 })?;
        table.write(at + 8, format!("{name:8}").as_bytes())?;
        table.store(at + 16, *year)?;
    }

    // Another program, with the key. It needs the right to execute.
    let host = std::net::IpAddr::from([127, 0, 0, 1]);
    let other = Region::open_for(&session, host, "kernel-example", table.key(), access)?;
    let found = other.call(&Chain::list(0).equal(8, b"edsger  ").value(16, 8))?;
    let year = found.value.try_into().map(u64::from_ne_bytes);
    println!("edsger: {year:?}, after {} nodes", found.steps);

    // What does not end, ends with its fuel, and harms nobody.
    table.store(192, 64)?;
    match other.call(&Chain::list(0).equal(8, b"nobody  ")) {
        Ok(found) => println!("{found:?}"),
        Err(error) => println!("a list that is a ring: {error}"),
    }
    Ok(())
}

//! Counts in a region that several programs share: `cargo run -p raas --example region create NAME` makes one and waits,
//! `... region add HOST NAME KEY N` adds in another program, on the same host.

use raas::{Region, RegionOptions, Session};

fn main() -> Result<(), raas::Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let wrong = |e: &dyn std::fmt::Display| std::io::Error::new(std::io::ErrorKind::InvalidInput, e.to_string());
    let session = Session::global()?;
    match args[..] {
        ["create", name] => {
            let region = RegionOptions::new().create(&session, name, 4096)?;
            println!("region {name}, key {}", region.key());
            loop {
                let tag = region.recv_notification()?;
                println!("somebody added {tag}: the sum is {}", region.load(0)?);
            }
        }
        ["add", host, name, key, n] => {
            let host = host.parse().map_err(|e| wrong(&e))?;
            let (key, n) = (key.parse().map_err(|e| wrong(&e))?, n.parse::<u32>().map_err(|e| wrong(&e))?);
            let region = Region::open(&session, host, name, key)?;
            println!("the sum was {}", region.fetch_add(0, n.into())?);
            // No bytes, only the notification behind what was added.
            Ok(region.write_notify(0, &[], n)?)
        }
        _ => Err(wrong(&"usage: region create NAME | region add HOST NAME KEY N").into()),
    }
}

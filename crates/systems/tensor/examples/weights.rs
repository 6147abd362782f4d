//! A trainer that puts new weights again and again, and readers that each see one whole generation.
//!
//! `cargo run -p tensor --example weights`, with a daemon on this host. It ends by itself.

use std::error::Error;
use std::time::Duration;

use raas::Session;
use tensor::{DType, Draft, Layout, Pool, Reader};

const ROUNDS: u64 = 20;
const READERS: usize = 4;
const WEIGHTS: u64 = 1 << 18;

fn fill(draft: &Draft) -> Result<(), tensor::Error> {
    let generation = draft.generation();
    let bytes: Vec<u8> = (0..WEIGHTS).flat_map(|_| generation.to_le_bytes()).collect();
    draft.write(0, &bytes)
}

fn read(host: std::net::IpAddr, key: raas::RegionKey) -> Result<u64, tensor::Error> {
    let reader = Reader::open(&Session::global().map_err(raas::RegionError::from)?, host, "weights", key)?;
    let mut seen = 0;
    loop {
        let weights = reader.get("weights")?;
        let bytes = weights.to_vec()?;
        let generation = weights.generation().to_le_bytes();
        assert!(bytes.chunks_exact(8).all(|word| word == generation), "a mixture of generations");
        seen += 1;
        if weights.generation() >= ROUNDS {
            return Ok(seen);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let session = Session::global()?;
    let pool = Pool::create(&session, "weights", 64 << 20)?;
    let host = session.addresses().first().copied().ok_or("the daemon has no address")?;
    let put = || -> Result<u64, tensor::Error> {
        let draft = pool.make(Layout::new(DType::U64, &[WEIGHTS])?)?;
        fill(&draft)?;
        pool.put("weights", draft)
    };
    put()?;
    let key = pool.key();
    let readers: Vec<_> = (0..READERS).map(|_| std::thread::spawn(move || read(host, key))).collect();
    while put()? < ROUNDS {
        std::thread::sleep(Duration::from_millis(20));
    }
    for reader in readers {
        let seen = reader.join().map_err(|_| "a reader saw a mixture")??;
        println!("a reader looked {seen} times, each time at one generation");
    }
    Ok(())
}

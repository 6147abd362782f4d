//! Sends back what it gets: `cargo run -p raas --example echo_server [ADDR]`, default 0.0.0.0:7000.

use std::io::{Read, Write};

fn main() -> Result<(), raas::Error> {
    let addr = std::env::args().nth(1).unwrap_or_else(|| "0.0.0.0:7000".into());
    let listener = raas::Listener::bind(addr.as_str())?;
    println!("listening on {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let mut stream = stream?;
        std::thread::spawn(move || -> std::io::Result<()> {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let count = stream.read(&mut buffer)?;
                if count == 0 {
                    return Ok(());
                }
                stream.write_all(&buffer[..count])?;
            }
        });
    }
    Ok(())
}

//! Sends standard input to an echo server and prints the answer:
//! `echo hello | cargo run -p raas --example echo_client HOST:PORT`.

use std::io::{self, Write};

fn main() -> Result<(), raas::Error> {
    let addr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".into());
    let stream = raas::Stream::connect(addr.as_str())?;
    eprintln!("connected over {:?}: {}", stream.path(), stream.reason());
    let (mut reader, mut writer) = stream.split();
    let printing = std::thread::spawn(move || io::copy(&mut reader, &mut io::stdout().lock()));
    io::copy(&mut io::stdin().lock(), &mut writer)?;
    // The end of the question: the server answers what is left and closes.
    drop(writer);
    printing.join().expect("copying does not panic")?;
    Ok(io::stdout().flush()?)
}

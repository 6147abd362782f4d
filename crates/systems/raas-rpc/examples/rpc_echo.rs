//! Calls over each transport: `rpc_echo server 0.0.0.0:7100`, and on any host `rpc_echo client 10.0.0.2:7100`.

use std::error::Error;
use std::time::{Duration, Instant};

use raas_rpc::{CallInfo, Client, Server, Transport};

const CALLS: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", at] => {
            let upper = |_: &CallInfo, request: &[u8]| Ok::<_, String>(request.to_ascii_uppercase());
            let server = Server::serve(at, upper)?;
            println!("serving at {}", server.local_addr());
            loop {
                std::thread::sleep(Duration::from_secs(1));
                println!("{:?}", server.counters());
            }
        }
        ["client", to] => {
            use Transport::{Auto, Herd, Messages, Rfp, Scale};
            for transport in [Messages, Rfp, Herd, Scale, Auto] {
                let client = Client::builder().transport(transport).connect(to)?;
                let began = Instant::now();
                for _ in 0..CALLS {
                    assert_eq!(client.call(b"hello")?, b"HELLO");
                }
                println!("{transport}: {:?} a call ({})", began.elapsed() / CALLS, client.choice());
            }
            Ok(())
        }
        _ => Err("usage: rpc_echo server ADDRESS:PORT | rpc_echo client ADDRESS:PORT".into()),
    }
}

//! A key-value store over calls: `kv server 0.0.0.0:7200`, and on any host `kv client 10.0.0.2:7200 put 5 hello` and
//! `kv client 10.0.0.2:7200 get 5`.

mod store;

use std::error::Error;

use raas::{RegionKey, Session};
use raas_rpc::{Client, Server, Transport};
use store::Store;

/// The store's region is opened by programs of the server's user, so this need not be a secret.
const KEY: RegionKey = RegionKey::new(*b"raas-rpc kv demo");

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let connect = |to: &str| Client::builder().transport(Transport::Herd).connect(to);
    match arguments[..] {
        ["server", at] => {
            let store = Store::open(&Session::global()?, "raas-rpc-kv", KEY)?;
            let server = Server::serve(at, store)?;
            println!("serving at {}", server.local_addr());
            loop {
                std::thread::park();
            }
        }
        ["client", to, "get", key] => {
            println!("{}", String::from_utf8_lossy(&store::get(&connect(to)?, key.parse()?)?));
            Ok(())
        }
        ["client", to, "put", key, value] => Ok(store::put(&connect(to)?, key.parse()?, value.as_bytes())?),
        _ => Err("usage: kv server ADDRESS:PORT | kv client ADDRESS:PORT get KEY | put KEY VALUE".into()),
    }
}

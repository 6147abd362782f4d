//! gRPC over RaaS: `echo server HOST:PORT`, and `echo client HOST:PORT WORDS`. Both need a daemon on their host
//! (`raas daemon`).

mod echo;

use std::error::Error;
use std::process::ExitCode;

use echo::{EchoClient, EchoRequest, EchoServer, EchoService};
use tonic::transport::{Endpoint, Server};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // tonic's own words are few: what went wrong stands in the causes.
            let mut words = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                words += &format!(": {error}");
                cause = error.source();
            }
            eprintln!("echo: {words}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", at] => {
            let listener = raas::aio::Listener::bind(at).await?;
            println!("listening on {}", listener.get_ref().local_addr()?);
            let incoming = raas_tonic::Incoming::new(listener);
            Server::builder().add_service(EchoServer::new(EchoService)).serve_with_incoming(incoming).await?;
            Err("no more connections come, which is for the server to decide".into())
        }
        ["client", to, words] => {
            let endpoint = Endpoint::from_shared(format!("http://{to}"))?;
            let channel = endpoint.connect_with_connector(raas_tonic::Connector::new(raas::Session::global()?)).await?;
            let mut client = EchoClient::new(channel);
            let reply = client.say(EchoRequest { words: words.into(), times: 1 }).await?.into_inner();
            println!("{} (over {})", String::from_utf8_lossy(&reply.words), reply.path);
            Ok(())
        }
        _ => Err("use: echo server HOST:PORT | echo client HOST:PORT WORDS".into()),
    }
}

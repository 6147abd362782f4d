//! gRPC over RaaS: unary and streaming calls, on one host and between two daemons.

#[path = "../examples/echo/echo.rs"]
mod echo;

use std::net::IpAddr;

use echo::{EchoClient, EchoRequest, EchoServer, EchoService};
use raas_embedded::Embedded;
use raas_tonic::{Connector, Incoming};
use tokio_stream::{StreamExt, iter};
use tonic::transport::{Channel, Endpoint, Server};

const KEY: [u8; 32] = [9; 32];
/// Longer than a ring and an HTTP/2 window.
const LONG_BYTES: usize = 3 << 20;

/// A host of its own: addresses of the loopback network that no other test process has.
fn host(last: u8) -> Embedded {
    let [.., b, c] = std::process::id().to_be_bytes();
    let address = IpAddr::from([127, 96 | (b & 31), c, last]);
    raas_embedded::builder(address).key(&KEY).start().unwrap()
}

async fn serve(host: &Embedded) -> String {
    let address = host.session().addresses()[0];
    let listener =
        raas::aio::Listener::bind_with(host.session(), (address, 0), raas::ListenOptions::new()).await.unwrap();
    let at = listener.get_ref().local_addr().unwrap();
    let server = Server::builder().add_service(EchoServer::new(EchoService));
    tokio::spawn(server.serve_with_incoming(Incoming::new(listener)));
    format!("http://{at}")
}

async fn client(host: &Embedded, to: String) -> EchoClient<Channel> {
    let endpoint = Endpoint::from_shared(to).unwrap();
    let connector = Connector::new(host.session().clone());
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    EchoClient::new(channel).max_decoding_message_size(2 * LONG_BYTES)
}

async fn calls(client: &mut EchoClient<Channel>, path: &str) {
    for round in 0..200u32 {
        let words = round.to_le_bytes().to_vec();
        let reply = client.say(EchoRequest { words: words.clone(), times: 1 }).await.unwrap().into_inner();
        assert_eq!((reply.words, reply.path.as_str()), (words, path));
    }
    let words = vec![7; 50_000];
    let request = EchoRequest { words: words.clone(), times: 100 };
    let mut replies = client.repeat(request).await.unwrap().into_inner();
    let mut count = 0;
    while let Some(reply) = replies.next().await {
        assert!(reply.unwrap().words == words);
        count += 1;
    }
    assert_eq!(count, 100);
    let said = (0..300u32).map(|i| EchoRequest { words: vec![i as u8; i as usize * 11], times: 0 });
    let mut replies = client.chat(iter(said.clone())).await.unwrap().into_inner();
    for expected in said {
        assert!(replies.next().await.unwrap().unwrap().words == expected.words);
    }
    assert!(replies.next().await.is_none());
}

/// Calls in many tasks at once on one channel, and one long message.
async fn together(client: EchoClient<Channel>) {
    let calls: Vec<_> = (0..32u8)
        .map(|i| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let words = vec![i; 10_000];
                let reply = client.say(EchoRequest { words: words.clone(), times: 1 }).await.unwrap().into_inner();
                assert!(reply.words == words);
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    let words: Vec<u8> = (0..LONG_BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut replies = client.clone().repeat(EchoRequest { words: words.clone(), times: 2 }).await.unwrap().into_inner();
    while let Some(reply) = replies.next().await {
        assert!(reply.unwrap().words == words);
    }
}

fn bounded(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let limit = std::time::Duration::from_secs(120);
    runtime.block_on(async { tokio::time::timeout(limit, test).await.expect("the test hangs") });
    runtime.shutdown_background();
}

#[test]
fn on_one_host() {
    bounded(async {
        let here = host(1);
        let mut client = client(&here, serve(&here).await).await;
        calls(&mut client, "shm").await;
        together(client).await;
    });
}

#[test]
fn between_two_daemons() {
    bounded(async {
        let (here, there) = (host(2), host(3));
        let mut client = client(&here, serve(&there).await).await;
        calls(&mut client, "lane").await;
        together(client).await;
    });
}

#[test]
fn a_refusal_names_its_reason() {
    bounded(async {
        let here = host(4);
        let address = here.session().addresses()[0];
        let endpoint = Endpoint::from_shared(format!("http://{address}:9")).unwrap();
        let error = endpoint.connect_with_connector(Connector::new(here.session().clone())).await.unwrap_err();
        let mut text = String::new();
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(e) = cause {
            text += &format!("{e}; ");
            cause = e.source();
        }
        assert!(text.contains("nobody listens"), "{text}");
    });
}

#[test]
fn server_and_channel_live_through_the_daemons_restart() {
    bounded(async {
        let directory = tempfile::tempdir().unwrap();
        let [.., b, c] = std::process::id().to_be_bytes();
        let mut config = raas_embedded::Config::new(IpAddr::from([127, 96 | (b & 31), c, 5]));
        config.socket = directory.path().join("raasd.sock");
        let daemon = raas_embedded::Daemon::start(config.clone()).unwrap();
        let attach = || raas::Session::connect(&config.socket).unwrap();
        let (server, caller) = (attach(), attach());
        let options = raas::ListenOptions::new();
        let listener = raas::aio::Listener::bind_with(&server, (config.listen, 0), options).await.unwrap();
        let at = listener.get_ref().local_addr().unwrap();
        let router = Server::builder().add_service(EchoServer::new(EchoService));
        let serving = tokio::spawn(router.serve_with_incoming(Incoming::new(listener)));
        let endpoint = Endpoint::from_shared(format!("http://{at}")).unwrap();
        let connector = Connector::new(caller);
        let channel = endpoint.connect_with_connector(connector.clone()).await.unwrap();
        let mut first = EchoClient::new(channel.clone());
        let request = || EchoRequest { words: b"hello".to_vec(), times: 1 };
        first.say(request()).await.unwrap();
        daemon.stop().unwrap();
        // The connection is one within this host, and goes on without it.
        first.say(request()).await.unwrap();
        let daemon = raas_embedded::Daemon::start(config.clone()).unwrap();
        // A channel that must connect again, by a connector of the lost session.
        let channel = loop {
            match endpoint.connect_with_connector(connector.clone()).await {
                Ok(channel) => break channel,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        };
        EchoClient::new(channel).say(request()).await.unwrap();
        assert!(!serving.is_finished(), "the server serves on");
        daemon.stop().unwrap();
    });
}

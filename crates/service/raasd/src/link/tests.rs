//! A link whose own side gets no processor, and one whose peer is silent; virtual time.

use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::{Pin, pin};

use tokio::net::TcpListener;

use super::*;

struct Rig {
    context: LinkContext,
    inputs: mpsc::Receiver<LinkInput>,
    wire: Wire,
    peer: Wire,
    patience: Duration,
}

async fn rig() -> Rig {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let mut config = Config::new(Ipv4Addr::LOCALHOST.into());
    config.heartbeat.misses = 5;
    let patience = config.heartbeat.patience();
    let (send, inputs) = mpsc::channel(64);
    let context = LinkContext {
        members: crate::cluster::Members::default(),
        config: Arc::new(config),
        keys: Mutex::new(ClusterKeys::one(plane::ClusterKey::new(vec![7; 32]))),
        instance: 1,
        started: Instant::now(),
        inputs: send,
        log: Mutex::new(LogQuota::new(10, std::time::Instant::now())),
        room: Notify::new(),
    };
    Rig { context, inputs, wire: Wire::new(near).unwrap(), peer: Wire::new(far).unwrap(), patience }
}

/// Lets the link look at everything that there is now. Its end, if it ended.
async fn look<F: Future>(mut carried: Pin<&mut F>) -> Option<F::Output> {
    // Longer than the kernel takes to carry bytes over loopback, in real time; virtual time stands.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(1));
        tokio::task::yield_now().await;
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(carried.as_mut().poll(cx))).await;
        if let std::task::Poll::Ready(end) = polled {
            return Some(end);
        }
    }
    None
}

#[tokio::test(start_paused = true)]
async fn time_in_which_this_side_did_not_run_is_not_the_peers_silence() {
    let Rig { context, inputs: _inputs, mut wire, peer: _peer, patience } = rig().await;
    let (_out, mut outgoing) = mpsc::channel(4);
    let mut carried = pin!(carry(&mut wire, &context, (LinkId(1), context.config.heartbeat), &mut outgoing));
    assert!(look(carried.as_mut()).await.is_none());
    for _ in 0..3 {
        // One step: nothing ran meanwhile.
        tokio::time::advance(3 * patience).await;
        assert!(look(carried.as_mut()).await.is_none(), "the peer was taken for dead");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_peer_said_meanwhile_is_heard_before_it_is_judged() {
    let Rig { context, mut inputs, mut wire, mut peer, patience } = rig().await;
    let (_out, mut outgoing) = mpsc::channel(4);
    let mut carried = pin!(carry(&mut wire, &context, (LinkId(1), context.config.heartbeat), &mut outgoing));
    assert!(look(carried.as_mut()).await.is_none());
    // So late that the time to judge has come exactly, which excuses nothing by itself.
    for _ in 0..context.config.heartbeat.misses {
        peer.send(&PeerMessage::Heartbeat).await.unwrap();
        tokio::time::advance(context.config.heartbeat.interval).await;
    }
    tokio::time::advance(patience - context.config.heartbeat.interval).await;
    peer.send(&PeerMessage::Heartbeat).await.unwrap();
    assert!(look(carried.as_mut()).await.is_none());
    let mut heard = 0;
    while let Ok(LinkInput::Message { message: PeerMessage::Heartbeat, .. }) = inputs.try_recv() {
        heard += 1;
    }
    assert_eq!(heard, context.config.heartbeat.misses + 1);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_while_this_side_runs_is_given_up() {
    let Rig { context, inputs: _inputs, mut wire, peer: _peer, patience } = rig().await;
    let (_out, mut outgoing) = mpsc::channel(4);
    let mut carried = pin!(carry(&mut wire, &context, (LinkId(1), context.config.heartbeat), &mut outgoing));
    let step = context.config.heartbeat.interval / 4;
    let mut passed = Duration::ZERO;
    let refusal = loop {
        if let Some(end) = look(carried.as_mut()).await {
            break end.unwrap_err();
        }
        tokio::time::advance(step).await;
        passed += step;
        assert!(passed < 2 * patience, "never given up");
    };
    assert_eq!(refusal.reason, Reason::PeerLost);
    assert!(passed >= patience, "given up after {passed:?}");
}

#[tokio::test(start_paused = true)]
async fn silence_is_told_until_the_peer_speaks_and_own_stillness_is_none() {
    let Rig { context, mut inputs, mut wire, mut peer, .. } = rig().await;
    let heartbeat = context.config.heartbeat;
    let (_out, mut outgoing) = mpsc::channel(4);
    let mut carried = pin!(carry(&mut wire, &context, (LinkId(1), context.config.heartbeat), &mut outgoing));
    let mut told = Vec::new();
    let mut step = async |by: Duration, told: &mut Vec<Duration>| {
        tokio::time::advance(by).await;
        assert!(look(carried.as_mut()).await.is_none(), "given up");
        while let Ok(input) = inputs.try_recv() {
            match input {
                LinkInput::Silent { silent, .. } => told.push(silent),
                LinkInput::Message { message: PeerMessage::Heartbeat, .. } => told.push(Duration::ZERO),
                other => panic!("{other:?}"),
            }
        }
    };
    // This side stands still for much longer than a peer may be silent.
    step(20 * heartbeat.patience(), &mut told).await;
    assert_eq!(told, []);
    for _ in 0..16 {
        step(heartbeat.interval / 4, &mut told).await;
    }
    let first = told.first().copied().unwrap();
    assert!(first >= heartbeat.stalled_after() && first < heartbeat.stalled_after() + heartbeat.interval, "{told:?}");
    assert!(told.len() >= 4 && told.is_sorted(), "{told:?}");
    told.clear();
    peer.send(&PeerMessage::Heartbeat).await.unwrap();
    step(Duration::ZERO, &mut told).await;
    for _ in 0..8 {
        step(heartbeat.interval / 4, &mut told).await;
    }
    assert_eq!(told, [Duration::ZERO], "told of a peer that spoke");
}

//! Which transport a client has, and why: the rule of [`Transport::Auto`].
//!
//! Owns the rule. It looks at what the client saw of its calls and its server, and at nothing else.

use std::fmt;
use std::time::{Duration, Instant};

use crate::hello::Transport;

/// Calls after which the rule looks again.
const CALLS_OF_LOOK: u32 = 32;
/// Looks in a row that must say the same before the transport is changed.
const LOOKS: u32 = 2;
/// A service that takes longer on average is slow. Back from there it has to take less than half of that, as with all
/// bounds here, so that a client on the edge does not go back and forth.
const SLOW: Duration = Duration::from_micros(500);
/// Calls that come further apart are rare: the server sleeps in between.
const RARE: Duration = Duration::from_millis(4);
/// More clients than these are many: a group of ScaleRPC.
const MANY: u32 = 40;
/// Time between two changes, at least the first time; each one doubles it, up to the other.
const HOLD: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Averages move by this part with each call.
const PART: u32 = 16;

/// How a client's requests travel, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// How they travel now.
    pub transport: Transport,
    /// Why not otherwise.
    pub reason: Reason,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.transport, self.reason)
    }
}

/// Why a client has its transport.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The program named it.
    Named,
    /// Too few calls were made to know.
    Unknown,
    /// The server's memory is not for this program.
    NoMemory {
        /// What refused.
        why: String,
    },
    /// The service takes long, so the way matters little; and with messages each client has a thread of the server.
    SlowService {
        /// How long, on average.
        takes: Duration,
    },
    /// Calls come rarely: the server sleeps in between, and a message wakes it best.
    Rare {
        /// Time from one call to the next, on average.
        apart: Duration,
    },
    /// The server has many clients.
    ManyClients {
        /// About how many.
        clients: u32,
    },
    /// On one host the server's memory is mapped, so looking for a response costs nothing.
    OneHost,
    /// Short calls of few clients of another host.
    FewClients {
        /// About how many.
        clients: u32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named => f.write_str("the program named it"),
            Self::Unknown => f.write_str("too few calls were made to know"),
            Self::NoMemory { why } => write!(f, "the server's memory is not for this program: {why}"),
            Self::SlowService { takes } => write!(f, "the service takes {takes:.1?}, so the way matters little"),
            Self::Rare { apart } => write!(f, "calls are {apart:.1?} apart, and the server sleeps in between"),
            Self::ManyClients { clients } => write!(f, "the server has about {clients} clients, which take turns"),
            Self::OneHost => f.write_str("short calls on one host, where looking for a response costs nothing"),
            Self::FewClients { clients } => write!(f, "short calls to another host that has about {clients} clients"),
        }
    }
}

/// What a client saw.
#[derive(Debug, Clone, Copy)]
struct Seen {
    is_one_host: bool,
    calls: u32,
    apart: Duration,
    takes: Duration,
    clients: u32,
}

/// The rule (docs/use/rpc.md). `now` is what the client has, whose bounds are wider.
fn rule(seen: &Seen, now: Transport) -> (Transport, Reason) {
    let Seen { is_one_host, calls, apart, takes, clients } = *seen;
    let wide = if now == Transport::Messages { 1 } else { 2 };
    if calls < CALLS_OF_LOOK {
        (Transport::Messages, Reason::Unknown)
    } else if takes > SLOW / 2 * wide {
        (Transport::Messages, Reason::SlowService { takes })
    } else if apart > RARE / 2 * wide {
        (Transport::Messages, Reason::Rare { apart })
    } else if clients > if now == Transport::Scale { MANY / 2 } else { MANY } {
        (Transport::Scale, Reason::ManyClients { clients })
    } else if is_one_host {
        (Transport::Rfp, Reason::OneHost)
    } else {
        (Transport::Herd, Reason::FewClients { clients })
    }
}

/// The choice of one client.
#[derive(Debug)]
pub(crate) struct Chooser {
    is_auto: bool,
    now: Choice,
    seen: Seen,
    last_call: Option<Instant>,
    wanted: Option<(Transport, u32)>,
    changed: Instant,
    hold: Duration,
}

fn average(of: Duration, with: Duration, calls: u32) -> Duration {
    // The first ones count for more, so that nothing is held to be zero for long.
    let part = PART.min(calls.max(1));
    (of * (part - 1) + with) / part
}

impl Chooser {
    pub(crate) fn new(asked: Transport, now: Instant) -> Self {
        let is_auto = asked == Transport::Auto;
        let (transport, reason) = if is_auto { (Transport::Messages, Reason::Unknown) } else { (asked, Reason::Named) };
        let seen = Seen { is_one_host: false, calls: 0, apart: Duration::ZERO, takes: Duration::ZERO, clients: 0 };
        let now_is = Choice { transport, reason };
        Self { is_auto, now: now_is, seen, last_call: None, wanted: None, changed: now, hold: HOLD.0 }
    }

    pub(crate) fn choice(&self) -> &Choice {
        &self.now
    }

    /// There is a connection.
    pub(crate) fn on_connected(&mut self, is_one_host: bool) {
        self.seen.is_one_host = is_one_host;
    }

    /// A call begins.
    pub(crate) fn on_call(&mut self, now: Instant) {
        self.seen.calls = self.seen.calls.saturating_add(1);
        if let Some(last) = self.last_call.replace(now) {
            self.seen.apart = average(self.seen.apart, now.saturating_duration_since(last), self.seen.calls - 1);
        }
    }

    /// A response came. Now and then the rule looks; if it has found another transport for a while it returns that.
    pub(crate) fn on_response(&mut self, takes: Duration, clients: u32, now: Instant) -> Option<Transport> {
        self.seen.takes = average(self.seen.takes, takes, self.seen.calls);
        self.seen.clients = clients;
        let is_look = self.seen.calls.is_multiple_of(CALLS_OF_LOOK);
        if !self.is_auto || !is_look || matches!(self.now.reason, Reason::NoMemory { .. }) {
            return None;
        }
        let (transport, reason) = rule(&self.seen, self.now.transport);
        if transport == self.now.transport {
            (self.now.reason, self.wanted) = (reason, None);
            return None;
        }
        let looks = self.wanted.filter(|(wanted, _)| *wanted == transport).map_or(0, |(_, looks)| looks) + 1;
        self.wanted = Some((transport, looks));
        (looks >= LOOKS && now.saturating_duration_since(self.changed) >= self.hold).then_some(transport)
    }

    /// The client has that transport now.
    pub(crate) fn on_changed(&mut self, to: Transport, now: Instant) {
        let (_, reason) = rule(&self.seen, to);
        self.now = Choice { transport: to, reason };
        self.wait(now);
    }

    /// It could not be had: later again.
    pub(crate) fn wait(&mut self, now: Instant) {
        (self.wanted, self.changed, self.hold) = (None, now, (2 * self.hold).min(HOLD.1));
    }

    /// The server's memory is not for this client: it has messages from now on.
    pub(crate) fn on_no_memory(&mut self, why: String) {
        self.now = Choice { transport: Transport::Messages, reason: Reason::NoMemory { why } };
        self.wanted = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const SEEN: Seen =
        Seen { is_one_host: false, calls: 1000, apart: Duration::from_micros(50), takes: US, clients: 8 };

    #[test]
    fn each_branch_of_the_rule() {
        let of = |seen: Seen| rule(&seen, Transport::Messages);
        assert_eq!(of(Seen { calls: 31, ..SEEN }), (Transport::Messages, Reason::Unknown));
        let takes = 501 * US;
        assert_eq!(of(Seen { takes, ..SEEN }), (Transport::Messages, Reason::SlowService { takes }));
        let apart = 4001 * US;
        assert_eq!(of(Seen { apart, ..SEEN }), (Transport::Messages, Reason::Rare { apart }));
        assert_eq!(of(Seen { clients: 44, ..SEEN }), (Transport::Scale, Reason::ManyClients { clients: 44 }));
        assert_eq!(of(Seen { is_one_host: true, ..SEEN }), (Transport::Rfp, Reason::OneHost));
        assert_eq!(of(SEEN), (Transport::Herd, Reason::FewClients { clients: 8 }));
    }

    #[test]
    fn between_two_bounds_nothing_is_changed() {
        let edges = [Seen { takes: 400 * US, ..SEEN }, Seen { apart: 3000 * US, ..SEEN }];
        for seen in edges {
            assert_eq!(rule(&seen, Transport::Messages).0, Transport::Messages);
            assert_eq!(rule(&seen, Transport::Herd).0, Transport::Herd);
        }
        let seen = Seen { clients: 30, ..SEEN };
        assert_eq!(rule(&seen, Transport::Herd).0, Transport::Herd);
        assert_eq!(rule(&seen, Transport::Scale).0, Transport::Scale);
    }

    /// Makes calls until the transport is to be changed; how many.
    fn until_changed(chooser: &mut Chooser, now: &mut Instant, apart: Duration, clients: u32) -> Option<Transport> {
        for _ in 0..100_000 {
            *now += apart;
            chooser.on_call(*now);
            if let Some(to) = chooser.on_response(US, clients, *now) {
                chooser.on_changed(to, *now);
                return Some(to);
            }
        }
        None
    }

    #[test]
    fn a_client_follows_its_load_ever_more_slowly_and_says_why() {
        let mut now = Instant::now();
        let mut chooser = Chooser::new(Transport::Auto, now);
        assert_eq!(*chooser.choice(), Choice { transport: Transport::Messages, reason: Reason::Unknown });
        let change = until_changed(&mut chooser, &mut now, 50 * US, 4);
        assert_eq!(change, Some(Transport::Herd));
        assert_eq!(chooser.choice().reason, Reason::FewClients { clients: 4 });
        assert_eq!(until_changed(&mut chooser, &mut now, 50 * US, 100), Some(Transport::Scale));
        assert_eq!(until_changed(&mut chooser, &mut now, 50 * US, 100), None, "it stays");
        let began = now;
        assert_eq!(until_changed(&mut chooser, &mut now, 10_000 * US, 100), Some(Transport::Messages));
        assert!(matches!(chooser.choice().reason, Reason::Rare { .. }));
        assert!(now - began > 4 * HOLD.0, "the third change waits longer than the first");
        chooser.on_no_memory("no".into());
        assert_eq!(until_changed(&mut chooser, &mut now, 50 * US, 4), None, "it is not tried again");
        assert_eq!(chooser.choice().reason, Reason::NoMemory { why: "no".into() });
    }

    #[test]
    fn a_named_transport_stays() {
        let mut now = Instant::now();
        let mut chooser = Chooser::new(Transport::Rfp, now);
        assert_eq!(until_changed(&mut chooser, &mut now, 50 * US, 100), None);
        assert_eq!(*chooser.choice(), Choice { transport: Transport::Rfp, reason: Reason::Named });
    }
}

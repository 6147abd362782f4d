//! What a program may ask of the service for a connection or a call: a transport, a verb, or neither.
//!
//! Owns which combinations exist (table I of the RaaS paper) and which the service carries. It must never take a wish
//! that is not fulfilled.

use std::fmt;
use std::io;

use bitflags::bitflags;
use control::{Kind, debug_says_the_words};
use shm::slot_verb;

bitflags! {
    /// What a program asks of the service: at most one transport and at most one verb (docs/proof/paper.md). Empty, the
    /// default, leaves both to the service. What does not exist or is not carried is refused with a [`FlagsError`] when
    /// the flags are used.
    ///
    /// On one host the bytes pass through shared memory and no verb carries them, whatever was asked for; docs/proof/paper.md
    /// names the cases in which kernel TCP carries them.
    ///
    /// ```
    /// use raas::{Flags, FlagsError, Transport, Verb};
    ///
    /// assert_eq!((Flags::RC | Flags::WRITE).check(Transport::Rc), Ok(()));
    /// let refused = (Flags::UC | Flags::READ).check(Transport::Rc);
    /// assert_eq!(refused, Err(FlagsError::NoSuchVerb { transport: Transport::Uc, verb: Verb::Read }));
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u32 {
        /// Reliable connection: streams and messages.
        const RC = 0x01;
        /// Unreliable connection: messages that may be lost (docs/use/unreliable.md).
        const UC = 0x02;
        /// Unreliable datagrams.
        const UD = 0x04;
        /// SEND, which takes a receive of the other side.
        const SEND = 0x10;
        /// WRITE, straight into the memory of the other side.
        const WRITE = 0x20;
        /// READ: on a connection the receiver's engine reads what is written out of the sender's ring.
        const READ = 0x40;
        /// Atomic operations on the memory of the other side.
        const ATOMIC = 0x80;
    }
}

/// How packets travel between two queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

/// What a work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// SEND.
    Send,
    /// WRITE, with or without an immediate.
    Write,
    /// READ.
    Read,
    /// Compare and swap, fetch and add.
    Atomic,
}

const TRANSPORTS: [(Flags, Transport); 3] =
    [(Flags::RC, Transport::Rc), (Flags::UC, Transport::Uc), (Flags::UD, Transport::Ud)];
const VERBS: [(Flags, Verb); 4] =
    [(Flags::SEND, Verb::Send), (Flags::WRITE, Verb::Write), (Flags::READ, Verb::Read), (Flags::ATOMIC, Verb::Atomic)];

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Atomic => "ATOMIC",
        })
    }
}

impl Transport {
    /// That of a connection of this kind.
    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Stream | Kind::Message => Self::Rc,
            Kind::Unreliable => Self::Uc,
        }
    }

    /// Whether the transport has the verb at all: table I of the paper, and IBTA 9.4 for atomics.
    pub fn has(self, verb: Verb) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => matches!(verb, Verb::Send | Verb::Write),
            Self::Ud => verb == Verb::Send,
        }
    }
}

/// Flags that cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlagsError {
    /// Bits that mean nothing. Kind: `InvalidInput`.
    #[error("the flags {flags:#x} have the bits {unknown:#x}, which mean nothing: leave them out")]
    Unknown {
        /// All that was given.
        flags: u32,
        /// What of it is unknown.
        unknown: u32,
    },
    /// Two transports. Kind: `InvalidInput`.
    #[error("the flags ask for {first} and for {second}: a connection has one transport, name one or none")]
    TwoTransports {
        /// One.
        first: Transport,
        /// The other.
        second: Transport,
    },
    /// Two verbs. Kind: `InvalidInput`.
    #[error("the flags ask for {first} and for {second}: name one verb or none")]
    TwoVerbs {
        /// One.
        first: Verb,
        /// The other.
        second: Verb,
    },
    /// The transport does not have the verb (table I of the paper). Kind: `InvalidInput`.
    #[error("{transport} has no {verb}: {}", instead(*.transport))]
    NoSuchVerb {
        /// The transport that was asked for, or that the socket has.
        transport: Transport,
        /// The verb that was asked for.
        verb: Verb,
    },
    /// The socket has another transport than the one that was asked for. Kind: `Unsupported`.
    #[error("{asked} was asked for where the transport is {has}: {}", socket_of(*.asked))]
    OtherTransport {
        /// What was asked for.
        asked: Transport,
        /// What the socket has.
        has: Transport,
    },
    /// The combination exists, and the service does not carry it for applications. Kind: `Unsupported`.
    #[error(
        "the service does not carry {transport}{} for applications: a stream has no word of the peer's that could be named; regions have atomic operations",
        with_verb(*.verb)
    )]
    NotCarried {
        /// The transport that was asked for, or that the socket has.
        transport: Transport,
        /// The verb that was asked for, if one was.
        verb: Option<Verb>,
    },
}

debug_says_the_words!(FlagsError);

fn instead(transport: Transport) -> &'static str {
    match transport {
        Transport::Uc => "it has SEND and WRITE; RC has all verbs",
        _ => "it has SEND alone; RC has all verbs",
    }
}

fn socket_of(asked: Transport) -> &'static str {
    match asked {
        Transport::Uc => {
            "UC is the transport of messages (`MessageStream`) whose both ends asked for it when they were made"
        }
        Transport::Ud => "UD is the transport of datagram sockets",
        _ => "RC is the transport of streams and messages, UD that of datagram sockets",
    }
}

fn with_verb(verb: Option<Verb>) -> String {
    verb.map(|verb| format!(" with {verb}")).unwrap_or_default()
}

impl Flags {
    /// The transport that was asked for, if it is one.
    pub fn transport(self) -> Result<Option<Transport>, FlagsError> {
        one(self, &TRANSPORTS).map_err(|(first, second)| FlagsError::TwoTransports { first, second })
    }

    /// The verb that was asked for, if it is one.
    pub fn verb(self) -> Result<Option<Verb>, FlagsError> {
        one(self, &VERBS).map_err(|(first, second)| FlagsError::TwoVerbs { first, second })
    }

    /// The kind of a connection of messages that is asked for with these.
    pub(crate) fn kind_of_messages(self) -> Kind {
        // Flags that cannot be are refused by `check` whatever the kind.
        if self.transport() == Ok(Some(Transport::Uc)) { Kind::Unreliable } else { Kind::Message }
    }

    /// The word by which the engine is asked for the verb; of flags that passed [`Self::check`].
    pub(crate) fn slot_verb(self) -> u32 {
        match self.verb() {
            Ok(Some(Verb::Send)) => slot_verb::SEND,
            Ok(Some(Verb::Write)) => slot_verb::WRITE,
            Ok(Some(Verb::Read)) => slot_verb::READ,
            _ => slot_verb::CHOOSE,
        }
    }

    /// Whether a socket whose transport is `has` can do what was asked for. Streams are [`Transport::Rc`], datagram
    /// sockets [`Transport::Ud`], and messages [`Transport::Rc`] unless they were made with [`Flags::UC`].
    pub fn check(self, has: Transport) -> Result<(), FlagsError> {
        let unknown = self.bits() & !Self::all().bits();
        if unknown != 0 {
            return Err(FlagsError::Unknown { flags: self.bits(), unknown });
        }
        let (asked, verb) = (self.transport()?, self.verb()?);
        let transport = asked.unwrap_or(has);
        if let Some(verb) = verb
            && !transport.has(verb)
        {
            return Err(FlagsError::NoSuchVerb { transport, verb });
        }
        match (transport, verb) {
            _ if transport != has => Err(FlagsError::OtherTransport { asked: transport, has }),
            (Transport::Rc, Some(Verb::Atomic)) => Err(FlagsError::NotCarried { transport, verb }),
            _ => Ok(()),
        }
    }
}

/// The only one of `all` that is set, or two that are.
fn one<T: Copy>(flags: Flags, all: &[(Flags, T)]) -> Result<Option<T>, (T, T)> {
    let mut set = all.iter().filter(|(bit, _)| flags.contains(*bit)).map(|(_, value)| *value);
    match (set.next(), set.next()) {
        (Some(first), Some(second)) => Err((first, second)),
        (first, _) => Ok(first),
    }
}

impl FlagsError {
    pub(crate) fn kind(self) -> io::ErrorKind {
        match self {
            Self::OtherTransport { .. } | Self::NotCarried { .. } => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidInput,
        }
    }
}

impl From<FlagsError> for io::Error {
    fn from(e: FlagsError) -> Self {
        Self::new(e.kind(), e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that can be asked for with one transport or none and one verb or none, at a socket of each transport.
    fn outcomes(has: Transport) -> Vec<(Flags, Result<(), FlagsError>)> {
        let transports = [Flags::empty(), Flags::RC, Flags::UC, Flags::UD];
        let verbs = [Flags::empty(), Flags::SEND, Flags::WRITE, Flags::READ, Flags::ATOMIC];
        let all = transports.iter().flat_map(|t| verbs.iter().map(|v| *t | *v));
        all.map(|flags| (flags, flags.check(has))).collect()
    }

    #[test]
    fn what_is_taken_is_what_the_service_does() {
        let taken = |has| outcomes(has).into_iter().filter(|(_, r)| r.is_ok()).map(|(f, _)| f).collect::<Vec<_>>();
        let verbs = [Flags::empty(), Flags::SEND, Flags::WRITE, Flags::READ];
        let all: Vec<_> = [Flags::empty(), Flags::RC].iter().flat_map(|t| verbs.iter().map(|v| *t | *v)).collect();
        assert_eq!(taken(Transport::Rc), all);
        let verbs = [Flags::empty(), Flags::SEND, Flags::WRITE];
        let all: Vec<_> = [Flags::empty(), Flags::UC].iter().flat_map(|t| verbs.iter().map(|v| *t | *v)).collect();
        assert_eq!(taken(Transport::Uc), all);
        assert_eq!(taken(Transport::Ud), [Flags::empty(), Flags::SEND, Flags::UD, Flags::UD | Flags::SEND]);
    }

    #[test]
    fn combinations_that_do_not_exist_are_refused_by_name() {
        let missing = [
            (Flags::UC | Flags::READ, Transport::Uc, Verb::Read),
            (Flags::UC | Flags::ATOMIC, Transport::Uc, Verb::Atomic),
            (Flags::UD | Flags::WRITE, Transport::Ud, Verb::Write),
            (Flags::UD | Flags::READ, Transport::Ud, Verb::Read),
            (Flags::UD | Flags::ATOMIC, Transport::Ud, Verb::Atomic),
        ];
        for has in [Transport::Rc, Transport::Uc, Transport::Ud] {
            for (flags, transport, verb) in missing {
                let refused = flags.check(has).unwrap_err();
                assert_eq!(refused, FlagsError::NoSuchVerb { transport, verb });
                let text = refused.to_string();
                assert!(text.contains(&transport.to_string()) && text.contains(&verb.to_string()), "{text}");
            }
        }
        let refused = Flags::READ.check(Transport::Ud);
        assert_eq!(refused, Err(FlagsError::NoSuchVerb { transport: Transport::Ud, verb: Verb::Read }));
    }

    #[test]
    fn an_error_has_both_values() {
        let refused = (Flags::RC | Flags::UD).check(Transport::Rc);
        assert_eq!(refused, Err(FlagsError::TwoTransports { first: Transport::Rc, second: Transport::Ud }));
        let refused = (Flags::READ | Flags::ATOMIC).check(Transport::Rc);
        assert_eq!(refused, Err(FlagsError::TwoVerbs { first: Verb::Read, second: Verb::Atomic }));
        let refused = Flags::from_bits_retain(0x4001).check(Transport::Rc);
        assert_eq!(refused, Err(FlagsError::Unknown { flags: 0x4001, unknown: 0x4000 }));
        let refused = Flags::UD.check(Transport::Rc);
        assert_eq!(refused, Err(FlagsError::OtherTransport { asked: Transport::Ud, has: Transport::Rc }));
        let refused = Flags::UC.check(Transport::Rc);
        assert_eq!(refused, Err(FlagsError::OtherTransport { asked: Transport::Uc, has: Transport::Rc }));
        let refused = Flags::ATOMIC.check(Transport::Rc);
        assert_eq!(refused, Err(FlagsError::NotCarried { transport: Transport::Rc, verb: Some(Verb::Atomic) }));
        let refused = (Flags::UC | Flags::WRITE).check(Transport::Rc);
        assert_eq!(refused, Err(FlagsError::OtherTransport { asked: Transport::Uc, has: Transport::Rc }));
        for (_, refused) in outcomes(Transport::Rc).into_iter().chain(outcomes(Transport::Uc)) {
            let Err(error) = refused else { continue };
            assert_ne!(io::Error::from(error).kind(), io::ErrorKind::Other);
        }
    }
}

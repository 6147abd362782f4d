//! What the suite needs to know of a provider under test.

use std::time::Duration;

use verbs::{Encrypt, Provider, Wire};

/// One of the two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that usually requests.
    A,
    /// The one that usually responds.
    B,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// A case in which a provider differs from the specification, or offers less.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// Name of the case.
    pub case: &'static str,
    /// Why, with the source.
    pub reason: &'static str,
    /// Whether it is seen depends on which of two threads of the provider is first: the case may pass or fail.
    pub sometimes: bool,
}

/// Two devices that can reach each other.
pub trait Rig {
    /// The device on the given side.
    fn device(&mut self, side: Side) -> &mut dyn Provider;

    /// Lets a little time pass on both sides: packets travel, timers fire. Real rigs sleep or yield for at most about a
    /// millisecond, simulated ones advance their clock.
    fn step(&mut self);

    /// Time passed since the rig was made, on the clock that timers of the devices follow.
    fn elapsed(&self) -> Duration;

    /// Whether the completion channel of a side is readable now; `None` where there is no descriptor (virtual time).
    fn notified(&mut self, side: Side) -> Option<bool>;

    /// Whether packets get lost. A responder goes to error with a fatal NAK and then answers nothing more (IBTA
    /// 9.9.3), so where that NAK is lost the requester's retries end instead.
    fn lossy(&self) -> bool;

    /// Cases in which this provider differs.
    fn differences(&self) -> &[Difference];

    /// The wire that connections are set up on by endpoints ([`Provider::offer`] and [`Provider::accept`]); `None`: they
    /// are set up by transitions, as RoCEv2 has them.
    fn wire(&self) -> Option<Wire> {
        None
    }

    /// Whether connections that are set up by endpoints are encrypted.
    fn encrypt(&self) -> Encrypt {
        Encrypt::Off
    }
}

impl<R: Rig + ?Sized> Rig for Box<R> {
    fn device(&mut self, side: Side) -> &mut dyn Provider {
        (**self).device(side)
    }

    fn step(&mut self) {
        (**self).step();
    }

    fn elapsed(&self) -> Duration {
        (**self).elapsed()
    }

    fn notified(&mut self, side: Side) -> Option<bool> {
        (**self).notified(side)
    }

    fn lossy(&self) -> bool {
        (**self).lossy()
    }

    fn differences(&self) -> &[Difference] {
        (**self).differences()
    }

    fn wire(&self) -> Option<Wire> {
        (**self).wire()
    }

    fn encrypt(&self) -> Encrypt {
        (**self).encrypt()
    }
}

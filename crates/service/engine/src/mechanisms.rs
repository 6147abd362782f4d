//! The list of mechanisms. Each is a line here: by what name, what it is, and what it keeps on each lane.

use verbs::MrId;

use crate::lane_part::LanePart;

/// What is about a lane itself.
#[derive(Debug)]
pub(crate) struct LaneItself;

/// Hands the list to a macro, in the order in which mechanisms are asked and write into a frame: offers of UC queue
/// pairs before the Opens that rely on them, and operations before connections, of which one more may always have
/// something to say.
macro_rules! mechanisms {
    ($make:ident $dollar:tt) => {
        $make! {
            $dollar
            #[cfg(test)] toy: crate::mechanisms::toy::Toy, crate::mechanisms::toy::ToyOnLane;
            datagrams: crate::datagram::Datagrams, Option<crate::datagram::peer::DatagramPeer>;
            unreliable: crate::unreliable::Unreliable, crate::unreliable::end::UnreliableEnd;
            operations: crate::operations::Operations, crate::operations::flight::Flight;
            connections: crate::vqp::table::Connections, crate::vqp::on_lane::ConnectionsOnLane;
            lane: crate::mechanisms::LaneItself, ();
        }
    };
}
pub(crate) use mechanisms;

/// The toy lies where the engine is seen.
#[cfg(test)]
pub(crate) use crate::engine::mechanisms::tests as toy;

/// Makes [`OnLane`], and the way to ask its parts until the answer is known.
macro_rules! on_lane {
    ($dollar:tt $($(#[$only:meta])? $name:ident: $mechanism:ty, $part:ty;)+) => {
        /// What mechanisms keep on a lane.
        #[derive(Debug, Default)]
        pub(crate) struct OnLane {
            $($(#[$only])? pub(crate) $name: $part,)+
        }

        macro_rules! chain {
            ($dollar start:literal $dollar and:tt $dollar on:ident.$dollar hook:ident()) => {{
                let mut found = $dollar start;
                $($(#[$only])? { found = found $dollar and $dollar on.$name.$dollar hook(); })+
                found
            }};
        }

        macro_rules! of_all {
            ($dollar on:ident.$dollar hook:ident()) => {
                [$($(#[$only])? $dollar on.$name.$dollar hook(),)+]
            };
        }
    };
}
mechanisms!(on_lane $);

impl OnLane {
    /// Whether a frame should leave for one of them, if it may.
    #[inline]
    pub(crate) fn wants_frame(&self) -> bool {
        chain!(false || self.wants_frame())
    }

    /// Whether none has anything to send, to answer or to wait for.
    pub(crate) fn is_quiet(&self) -> bool {
        chain!(true && self.is_quiet())
    }

    /// Whether somebody needs the lane for one of them.
    pub(crate) fn is_needed(&self) -> bool {
        chain!(false || self.is_needed())
    }

    /// Whether none has anything under way that a new queue pair would disturb.
    pub(crate) fn is_still(&self) -> bool {
        chain!(true && self.is_still())
    }

    /// Nothing new begins until the queue pair is another one.
    pub(crate) fn hold(&mut self) {
        of_all!(self.hold());
    }

    /// The queue pair is destroyed.
    pub(crate) fn forget_queue_pair(&mut self) {
        of_all!(self.forget_queue_pair());
    }

    /// Memory of which nothing is in use; the caller gives it up.
    pub(crate) fn take_idle_memory(&mut self) -> impl Iterator<Item = MrId> + use<> {
        of_all!(self.take_idle_memory()).into_iter().flatten()
    }
}

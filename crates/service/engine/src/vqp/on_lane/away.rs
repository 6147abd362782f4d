//! Connections without their other ends: what of the peer's there is nothing of here, and the look at this host's.

use std::collections::VecDeque;

use crate::frame::{FrameWriter, StreamRecord};
use crate::limits::GONE_MAX;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct AwayList {
    /// Connections of the peer, by its route ids, that came back and of which there is nothing here.
    gone: VecDeque<u32>,
    /// The timer that looks at connections of this host is running.
    has_timer: bool,
}

impl AwayList {
    /// The peer is to be told that there is nothing of a connection. One that is not told gives it up by itself.
    pub(crate) fn tell_gone(&mut self, route: u32) {
        if self.gone.len() < GONE_MAX {
            self.gone.push_back(route);
        }
    }

    /// Some of the lane's connections wait for their other ends. True: the timer that looks at them must be started.
    pub(crate) fn watch(&mut self) -> bool {
        !std::mem::replace(&mut self.has_timer, true)
    }

    /// That timer fired.
    pub(crate) fn on_timer(&mut self) {
        self.has_timer = false;
    }

    /// Whether the peer is to be told something.
    #[inline]
    pub(crate) fn wants_frame(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Says it. False: the frame is full.
    pub(crate) fn write(&mut self, frame: &mut FrameWriter<'_>) -> bool {
        while let Some(&route) = self.gone.front() {
            if !frame.push(&StreamRecord::Gone { route }) {
                return false;
            }
            self.gone.pop_front();
        }
        true
    }

    /// The queue pair is destroyed. The timer goes on.
    pub(crate) fn forget(&mut self) {
        self.gone.clear();
    }
}

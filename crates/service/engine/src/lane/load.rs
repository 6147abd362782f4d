//! How busy the two hosts of a lane are, as each tells the other.

use crate::choice::Load;
use crate::frame::{FrameWriter, LaneRecord};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    there: Load,
    /// What the peer was told of this host.
    told: Load,
}

impl Loads {
    /// The peer says how busy its host is.
    pub(crate) fn on_told(&mut self, load: Load) {
        self.there = load;
    }

    #[inline]
    pub(super) fn there(&self) -> Load {
        self.there
    }

    /// Says how busy this host is, if that is news.
    #[inline]
    pub(crate) fn write(&mut self, here: Load, frame: &mut FrameWriter<'_>) {
        if here.is_news_after(self.told) && frame.push(&LaneRecord::Load(here)) {
            self.told = here;
        }
    }
}

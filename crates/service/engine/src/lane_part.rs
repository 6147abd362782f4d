//! What a mechanism keeps on a lane, as the lane sees it.

/// See the module. Each answer that a mechanism leaves out is the one of nothing.
pub(crate) trait LanePart: std::fmt::Debug + Default {
    /// Whether a frame should leave for it, if it may.
    #[inline]
    fn wants_frame(&self) -> bool {
        false
    }

    /// Whether nothing is to be sent, answered or waited for.
    fn is_quiet(&self) -> bool {
        true
    }

    /// Whether somebody needs the lane, or may soon.
    fn is_needed(&self) -> bool {
        false
    }

    /// Whether nothing is under way that a new queue pair would disturb.
    fn is_still(&self) -> bool {
        true
    }

    /// Nothing new begins until the queue pair is another one.
    fn hold(&mut self) {}

    /// Forgets what belonged to the queue pair that is destroyed.
    fn forget_queue_pair(&mut self) {}

    /// Its memory, of which nothing is in use; the caller gives it up.
    fn take_idle_memory(&mut self) -> Option<verbs::MrId> {
        None
    }
}

/// Of a mechanism that keeps nothing on lanes.
impl LanePart for () {}

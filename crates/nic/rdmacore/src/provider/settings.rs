//! What an opened device is told beside verbs, and its protection domains by number.

use verbs::{PathMarks, PdId, VerbsError};

use super::RdmaCore;
use crate::abi::ibv_pd;

impl RdmaCore {
    /// How packets of connections that are set up by endpoints, and of datagrams, are marked from here on.
    pub fn set_path_marks(&mut self, marks: PathMarks) {
        self.marks = marks;
    }

    /// The device's own domain, or another one.
    pub(super) fn pd(&self, id: PdId) -> Result<*mut ibv_pd, VerbsError> {
        let own = (id == PdId::default()).then_some(self.pd);
        own.or_else(|| self.pds.get(&id).copied()).ok_or(VerbsError::NoSuch("protection domain"))
    }
}

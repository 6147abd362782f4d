//! Parts of the engine's tables, for the users who may see them.

use control::LaneRow;

/// Whose rows somebody may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Viewer {
    /// Everybody's: root, or the daemon's user.
    All,
    /// Those of this user.
    User(u32),
}

impl Viewer {
    /// Whether what belongs to a user may be seen.
    pub fn sees(self, uid: u32) -> bool {
        self == Self::All || self == Self::User(uid)
    }
}

/// Part of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// Rows, each with its place in the table.
    pub rows: Vec<(u32, T)>,
    /// The place after those that were looked at, if there are more.
    pub next: Option<u32>,
}

/// A lane as a viewer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneView {
    /// Its row.
    pub row: LaneRow,
    /// Whether the daemon dialed for this lane because of the viewer's programs, the last time that it dialed for them.
    pub is_dialed: bool,
}

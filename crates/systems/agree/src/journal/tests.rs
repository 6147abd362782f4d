//! Files that were cut.

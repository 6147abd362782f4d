//! How many records one key protects.
//!
//! A list of two numbers and their order. The reasons are in docs/operate/encryption.md, "How much under one key".

/// Most records under one key: 2^24.5, rounded down. With records of full length AES-GCM keeps its advantage below 2^-57 up
/// to there (RFC 8446, 5.5).
pub const RECORDS_PER_KEY: u64 = 23_726_566;
/// After so many records of a key the connection is worn: another one, with other keys, is to take its place. What is
/// left until [`RECORDS_PER_KEY`] lasts for seconds on the fastest networks.
pub const RECORDS_UNTIL_WORN: u64 = 1 << 24;

/// The two numbers for one direction of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLimit {
    until_worn: u64,
    most: u64,
}

impl Default for RecordLimit {
    fn default() -> Self {
        Self { until_worn: RECORDS_UNTIL_WORN, most: RECORDS_PER_KEY }
    }
}

impl RecordLimit {
    /// Lower ones than the default's, so that a test reaches them. What is higher is taken for the default's.
    pub fn lowered_to(until_worn: u64, most: u64) -> Self {
        let most = most.min(RECORDS_PER_KEY);
        Self { until_worn: until_worn.min(RECORDS_UNTIL_WORN).min(most), most }
    }

    /// After so many the connection is worn.
    pub fn until_worn(&self) -> u64 {
        self.until_worn
    }

    /// Record number `most` and those behind it are neither sealed nor opened.
    pub fn most(&self) -> u64 {
        self.most
    }
}

//! Log and state in memory.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Cursor;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, LogState, RaftLogStorage, RaftStateMachine, Snapshot};
use openraft::{
    BasicNode, Entry, EntryPayload, LogId, RaftLogReader, RaftSnapshotBuilder, SnapshotMeta, StorageError,
    StorageIOError, StoredMembership, Vote,
};
use serde::{Deserialize, Serialize};

use crate::Types;

type Result<T, E = StorageError<u64>> = std::result::Result<T, E>;

/// What is committed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Command(#[serde(with = "serde_bytes")] pub(crate) Vec<u8>);

#[derive(Debug, Default)]
struct Entries {
    entries: BTreeMap<u64, Entry<Types>>,
    purged: Option<LogId<u64>>,
    vote: Option<Vote<u64>>,
    committed: Option<LogId<u64>>,
}

/// The log. It is never slow, so nothing waits for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Entries>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<Types>>> {
        Ok(self.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>> {
        let log = self.lock();
        let last = log.entries.last_key_value().map(|(_, entry)| entry.log_id).or(log.purged);
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<()> {
        self.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>> {
        Ok(self.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<()> {
        self.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>> {
        Ok(self.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<()>
    where
        I: IntoIterator<Item = Entry<Types>> + Send,
        I::IntoIter: Send,
    {
        self.lock().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<()> {
        drop(self.lock().entries.split_off(&from.index));
        Ok(())
    }

    async fn purge(&mut self, to: LogId<u64>) -> Result<()> {
        let mut log = self.lock();
        log.purged = Some(to);
        log.entries = log.entries.split_off(&(to.index + 1));
        Ok(())
    }
}

/// The state: how many commands there were.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine {
    count: u64,
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
    snapshot: Arc<Mutex<Kept>>,
}

/// The last snapshot.
type Kept = Option<(SnapshotMeta<u64, BasicNode>, Vec<u8>)>;

impl Machine {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + Send,
        I::IntoIter: Send,
    {
        let apply = |entry: Entry<Types>| {
            self.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(command) => self.count += u64::from(!command.0.is_empty()),
                EntryPayload::Membership(members) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), members);
                }
            }
            self.count
        };
        Ok(entries.into_iter().map(apply).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<()> {
        let bytes = snapshot.into_inner();
        let count = bytes.first_chunk().ok_or_else(|| {
            StorageIOError::read_snapshot(Some(meta.signature()), &std::io::Error::other("a snapshot of 8 bytes"))
        })?;
        self.count = u64::from_le_bytes(*count);
        (self.applied, self.membership) = (meta.last_log_id, meta.last_membership.clone());
        *self.kept() = Some((meta.clone(), bytes));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        let snapshot = self.kept().clone();
        Ok(snapshot.map(|(meta, bytes)| Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }))
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        let snapshot_id = format!("{:?}", self.applied);
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone(), snapshot_id };
        let bytes = self.count.to_le_bytes().to_vec();
        *self.kept() = Some((meta.clone(), bytes.clone()));
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}

//! What is asked of the daemon about regions, and its answers as errors.

use std::sync::Arc;

use control::{RegionKey, Request};
use raas_core::{Answer, NewRegion, RequestId, Session};

use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::region::ask::ask;
use crate::region::error::RegionError;

pub(in crate::region) fn revoke(
    attachment: &Arc<Attachment>,
    name: &str,
    key: RegionKey,
    new_key: Option<RegionKey>,
) -> Result<u64, RegionError> {
    match ask(attachment, |session| session.revoke_region(name.to_owned(), key, new_key))? {
        Answer::Revoked(result) => result.map_err(|why| RegionError::refused(name, why)),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn ask_for_region(
    attachment: &Arc<Attachment>,
    name: &str,
    make: impl FnOnce(&mut Session) -> (RequestId, Request),
) -> Result<NewRegion, RegionError> {
    match ask(attachment, make)? {
        Answer::Region(Ok(new)) => Ok(*new),
        Answer::Region(Err(why)) => Err(RegionError::refused(name, why)),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn unexpected(answer: &Answer) -> RegionError {
    SessionError::Protocol(format!("an answer of another kind about a region: {answer:?}")).into()
}

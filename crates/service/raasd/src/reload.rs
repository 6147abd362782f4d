//! Reading the cluster keys again while the daemon runs: on SIGHUP, or when a test asks.
//!
//! Owns when that happens. It must never leave the daemon without keys: what cannot be read leaves those that it has.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use tokio::sync::Notify;

use crate::key;
use crate::link::LinkContext;
use crate::{Config, DaemonError};

/// Reads the keys each time that `asked` says so; never ends by itself.
pub(crate) async fn reload_keys(asked: Arc<Notify>, links: Arc<LinkContext>, directory: PathBuf) {
    loop {
        asked.notified().await;
        match read_again(&links.config, &directory) {
            Ok((config, keys)) => {
                tracing::info!("{}; links that are up stay up", key::words(&config, &keys));
                *links.keys.lock().unwrap_or_else(PoisonError::into_inner) = keys;
            }
            Err(error) => tracing::error!(%error, "the cluster keys are not read again: those of before stay"),
        }
    }
}

/// The keys as the configuration file names them by now.
fn read_again(config: &Config, directory: &Path) -> Result<(Config, plane::ClusterKeys), DaemonError> {
    let config = match &config.source {
        Some((file, flags)) => Config::load(Some(file), flags)?,
        None => config.clone(),
    };
    let keys = key::read_all(&config, directory)?;
    Ok((config, keys))
}

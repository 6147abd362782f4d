//! Reading the cluster keys and the policy again while the daemon runs: on SIGHUP, or when a test asks.
//!
//! Owns when that happens. It must never leave the daemon without keys, or with half a policy: what cannot be read
//! leaves what the daemon has.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use plane::Policy;
use tokio::sync::{Notify, mpsc};

use crate::key;
use crate::link::LinkContext;
use crate::policy_file::load_policy;
use crate::{Config, ConfigError};

/// Reads the files each time that `asked` says so; never ends by itself.
pub(crate) async fn reload_files(
    asked: Arc<Notify>,
    links: Arc<LinkContext>,
    directory: PathBuf,
    policies: mpsc::Sender<Policy>,
) {
    loop {
        asked.notified().await;
        let config = match read_config(&links.config) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(%error, "keys and policy are not read again: those of before stay");
                continue;
            }
        };
        match key::read_all(&config, &directory) {
            Ok(keys) => {
                tracing::info!("{}; links that are up stay up", key::words(&config, &keys));
                *links.keys.lock().unwrap_or_else(PoisonError::into_inner) = keys;
            }
            Err(error) => tracing::error!(%error, "the cluster keys are not read again: those of before stay"),
        }
        match config.policy.as_deref().map(load_policy).transpose() {
            Ok(policy) => {
                let policy = policy.unwrap_or_default();
                let tenants = policy.tenants().len();
                tracing::info!(tenants, "the policy is read again; what programs have they keep");
                let _ = policies.send(policy).await;
            }
            Err(error) => tracing::error!(%error, "the policy is not read again: that of before stays"),
        }
    }
}

/// The configuration file as it is by now.
fn read_config(config: &Config) -> Result<Config, ConfigError> {
    match &config.source {
        Some((file, flags)) => Config::load(Some(file), flags),
        None => Ok(config.clone()),
    }
}

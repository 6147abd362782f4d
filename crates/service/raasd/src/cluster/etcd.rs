//! Hosts by etcd: a host is a key under the prefix, which is bound to a lease. The lease is renewed as long as the daemon
//! lives. When it runs out etcd removes the key, and when the daemon ends in order it gives the lease back.
//!
//! Owns this host's lease, and the judgement of each entry. It must never take a host from an entry that no
//! configuration could hold.

mod gateway;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::directory_error::DirectoryError;
use super::{Directory, Told};
use crate::member::{EtcdConfig, Member, check_host_address};
use gateway::{Entry, Gateway, TIMEOUT};

/// Hosts that are asked for at most.
const HOSTS_MAX: usize = 65_536;
/// Names that all of them may have together.
const NAMES_MAX: usize = 262_144;
/// Bytes of the value of a host: all of its names, each as long as it may be, and the words around them.
const VALUE_BYTES_MAX: usize = 32 << 10;
/// A lease is renewed when this part of its time is over, so that two renewals may fail.
const RENEWALS: u32 = 3;
/// Longest lease that is believed.
const LEASE_SECONDS_MAX: u32 = 3600;
/// Longest pause after a failure where no lease asks for less.
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub(super) struct Etcd {
    gateway: Gateway,
    prefix: String,
    refresh: Duration,
    /// What the configuration asks for.
    lease_seconds: u32,
    lease: Option<Lease>,
}

/// What etcd granted.
struct Lease {
    id: i64,
    time: Duration,
    renewed: Instant,
    /// This host's key is bound to it.
    is_announced: bool,
}

impl Etcd {
    pub(super) fn new(config: &EtcdConfig, refresh: Duration) -> Self {
        let endpoints = config.endpoints.iter().map(|e| e.trim_end_matches('/').to_owned()).collect();
        Self {
            gateway: Gateway::new(endpoints, TIMEOUT),
            prefix: format!("{}/hosts/", config.prefix.trim_end_matches('/')),
            refresh,
            lease_seconds: config.lease_seconds,
            lease: None,
        }
    }

    fn renewal(&self) -> Duration {
        let asked_for = Duration::from_secs(self.lease_seconds.into());
        self.lease.as_ref().map_or(asked_for, |lease| lease.time) / RENEWALS
    }

    /// Has a lease, with this host's key bound to it.
    fn keep(&mut self, own: &Member) -> Result<(), DirectoryError> {
        if let Some(lease) = self.lease.take() {
            self.lease = self.renewed(lease)?;
        }
        if self.lease.is_none() {
            let asked = Instant::now();
            let granted = self.gateway.grant(self.lease_seconds)?;
            let seconds = granted.ttl_seconds.clamp(1, LEASE_SECONDS_MAX.into()).unsigned_abs();
            let time = Duration::from_secs(seconds);
            self.lease = Some(Lease { id: granted.id, time, renewed: asked, is_announced: false });
        }
        self.announce(own)
    }

    /// The lease with new time if it is time; none if etcd does not have it any more. If etcd cannot be asked it stays.
    fn renewed(&mut self, lease: Lease) -> Result<Option<Lease>, DirectoryError> {
        let asked = Instant::now();
        // The pauses are shorter than the renewal by up to a quarter.
        if asked.saturating_duration_since(lease.renewed) < lease.time / (RENEWALS + 1) {
            return Ok(Some(lease));
        }
        match self.gateway.renew(lease.id) {
            Ok(true) => Ok(Some(Lease { renewed: asked, ..lease })),
            Ok(false) => {
                tracing::warn!("etcd no longer has this host's lease; it gets a new one");
                Ok(None)
            }
            Err(error) => {
                self.lease = Some(lease);
                Err(error)
            }
        }
    }

    fn announce(&mut self, own: &Member) -> Result<(), DirectoryError> {
        let Some(lease) = self.lease.as_mut().filter(|lease| !lease.is_announced) else { return Ok(()) };
        let refused = |e: serde_json::Error| DirectoryError::Refused(e.to_string());
        let value = serde_json::to_string(own).map_err(refused)?;
        match self.gateway.put(&format!("{}{}", self.prefix, own.address), &value, lease.id) {
            Ok(()) => {
                lease.is_announced = true;
                Ok(())
            }
            Err(error) => {
                // A lease that etcd has forgotten is refused here.
                if !matches!(error, DirectoryError::Silent(_)) {
                    self.lease = None;
                }
                Err(error)
            }
        }
    }

    /// The hosts, and whether there are more.
    fn hosts(&mut self) -> Result<(Vec<Member>, bool), DirectoryError> {
        let range = self.gateway.range(&self.prefix, HOSTS_MAX)?;
        let (mut all, mut names) = (Vec::new(), 0);
        for entry in range.kvs.into_iter().take(HOSTS_MAX) {
            match member(&entry, &self.prefix) {
                Ok(member) => {
                    names += member.services.len();
                    if names > NAMES_MAX {
                        return Ok((all, true));
                    }
                    all.push(member);
                }
                Err(error) => tracing::debug!(%error, "an entry of etcd is no host"),
            }
        }
        Ok((all, range.more))
    }
}

impl Directory for Etcd {
    fn source(&self) -> &'static str {
        "etcd"
    }

    fn asked(&self) -> Vec<String> {
        self.gateway.endpoints().to_vec()
    }

    fn ask(&mut self, own: &Member) -> Told {
        let kept = self.keep(own);
        if let Err(error @ DirectoryError::Silent(_)) = kept {
            return Told::failed(error);
        }
        let (members, more) = match self.hosts() {
            Ok(hosts) => hosts,
            Err(error) => return Told::failed(error),
        };
        let mut error = kept.err();
        if !more
            && !members.iter().any(|member| member.address == own.address)
            && let Some(lease) = &mut self.lease
        {
            // Somebody removed it, or etcd lost it.
            lease.is_announced = false;
            error = error.or(self.announce(own).err());
        }
        if more {
            error = error.or(Some(DirectoryError::TooMany { kept: members.len() }));
        }
        Told { members: Some(members), error }
    }

    fn period(&self) -> Duration {
        self.refresh.min(self.renewal())
    }

    fn pause_max(&self) -> Duration {
        PAUSE_MAX.min(self.renewal())
    }

    fn leave(&mut self) {
        if let Some(lease) = self.lease.take()
            && let Err(error) = self.gateway.revoke(lease.id)
        {
            tracing::warn!(%error, "etcd forgets this host only when its lease runs out");
        }
    }
}

/// The host of an entry. Its key names the same address, so that no host speaks for another by mistake.
fn member(entry: &Entry, prefix: &str) -> Result<Member, String> {
    let key = std::str::from_utf8(&entry.key).map_err(|e| format!("a key: {e}"))?;
    if entry.value.len() > VALUE_BYTES_MAX {
        return Err(format!("{key:?}: a value of {} bytes, at most {VALUE_BYTES_MAX} are allowed", entry.value.len()));
    }
    let mut member: Member = serde_json::from_slice(&entry.value).map_err(|e| format!("{key:?}: {e}"))?;
    if key.strip_prefix(prefix) != Some(&*member.address.to_string()) {
        return Err(format!("{key:?} names another address than its value, {}", member.address));
    }
    member.address = member.address.to_canonical();
    check_host_address(member.address).and_then(|()| member.check()).map_err(|e| format!("{key:?}: {e}"))?;
    Ok(member)
}

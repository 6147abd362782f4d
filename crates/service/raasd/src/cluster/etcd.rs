//! Hosts by etcd, through its HTTP gateway (`/v3`, JSON): a host is a key under the prefix, which is bound to a lease.
//! The lease is renewed as long as the daemon lives, and etcd removes the key when it runs out.
//!
//! What etcd answers is read with bounds, and each host is judged before it is taken.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::Directory;
use crate::member::{EtcdConfig, Member};

/// Time for one answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of one answer at most.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Hosts that are asked for at most.
const HOSTS_MAX: u64 = 65_536;

pub(super) struct Etcd {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// The one that answered last.
    current: usize,
    prefix: String,
    lease_seconds: u32,
    lease: Option<Lease>,
}

/// What etcd promised.
struct Lease {
    id: String,
    own: Member,
    renewed: Instant,
}

impl Etcd {
    pub(super) fn new(config: &EtcdConfig) -> Self {
        let settings = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).proxy(None).build();
        let prefix = format!("{}/hosts/", config.prefix.trim_end_matches('/'));
        Self {
            agent: settings.into(),
            endpoints: config.endpoints.iter().map(|e| e.trim_end_matches('/').to_owned()).collect(),
            current: 0,
            prefix,
            lease_seconds: config.lease_seconds,
            lease: None,
        }
    }

    /// Asks the endpoints in turn, from the one that answered last.
    fn ask(&mut self, path: &str, question: &Value) -> Result<Value, String> {
        let body = question.to_string();
        let mut failures = Vec::new();
        for turn in 0..self.endpoints.len() {
            let number = (self.current + turn) % self.endpoints.len();
            let endpoint = &self.endpoints[number];
            let sent = self.agent.post(format!("{endpoint}/v3/{path}")).content_type("application/json").send(&body);
            let read =
                sent.and_then(|mut answer| answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string());
            match read {
                Ok(text) => {
                    self.current = number;
                    return serde_json::from_str(&text).map_err(|e| format!("{endpoint}/v3/{path}: {e}"));
                }
                Err(error) => failures.push(format!("{endpoint}/v3/{path}: {error}")),
            }
        }
        Err(failures.join("; "))
    }

    /// Renews the lease; false if etcd does not know it any more.
    fn renew(&mut self, id: &str) -> Result<bool, String> {
        let answer = self.ask("lease/keepalive", &json!({ "ID": id }))?;
        Ok(number(&answer["result"]["TTL"]).is_some_and(|seconds| seconds > 0))
    }

    fn announce(&mut self, own: &Member) -> Result<(), String> {
        let granted = self.ask("lease/grant", &json!({ "TTL": self.lease_seconds }))?;
        let id = granted["ID"].as_str().ok_or_else(|| format!("lease/grant: no ID in {granted}"))?.to_owned();
        let value = serde_json::to_string(own).map_err(|e| e.to_string())?;
        let key = format!("{}{}", self.prefix, own.address);
        self.ask("kv/put", &json!({ "key": BASE64.encode(key), "value": BASE64.encode(value), "lease": id }))?;
        self.lease = Some(Lease { id, own: own.clone(), renewed: Instant::now() });
        Ok(())
    }
}

impl Directory for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn keep(&mut self, own: &Member) -> Result<(), String> {
        let third = Duration::from_secs(u64::from(self.lease_seconds)) / 3;
        if let Some(lease) = self.lease.take_if(|lease| lease.own == *own) {
            if lease.renewed.elapsed() < third {
                self.lease = Some(lease);
                return Ok(());
            }
            match self.renew(&lease.id) {
                Ok(true) => {
                    self.lease = Some(Lease { renewed: Instant::now(), ..lease });
                    return Ok(());
                }
                Ok(false) => tracing::warn!("etcd no longer has this host's lease; it gets a new one"),
                Err(error) => {
                    self.lease = Some(lease);
                    return Err(error);
                }
            }
        }
        self.announce(own)
    }

    fn members(&mut self) -> Result<Vec<Member>, String> {
        let end = after(&self.prefix);
        let question = json!({ "key": BASE64.encode(&self.prefix), "range_end": BASE64.encode(end), "limit": HOSTS_MAX.to_string() });
        let answer = self.ask("kv/range", &question)?;
        let mut all = Vec::new();
        for entry in answer["kvs"].as_array().map_or(&[][..], Vec::as_slice) {
            match member(entry, &self.prefix) {
                Ok(member) => all.push(member),
                Err(error) => tracing::debug!(%error, "an entry of etcd is no host"),
            }
        }
        Ok(all)
    }

    fn leave(&mut self) {
        if let Some(lease) = self.lease.take()
            && let Err(error) = self.ask("lease/revoke", &json!({ "ID": lease.id }))
        {
            tracing::debug!(%error, "etcd forgets this host when its lease runs out");
        }
    }
}

/// Numbers of 64 bits are texts in this gateway.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// The first key behind all that begin with `prefix`, which ends with a slash.
fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The host of an entry. Its key names the same address, so that no host speaks for another by mistake.
fn member(entry: &Value, prefix: &str) -> Result<Member, String> {
    let text = |name: &str| -> Result<String, String> {
        let encoded = entry[name].as_str().ok_or_else(|| format!("no {name}"))?;
        let bytes = BASE64.decode(encoded).map_err(|e| format!("{name}: {e}"))?;
        String::from_utf8(bytes).map_err(|e| format!("{name}: {e}"))
    };
    let (key, value) = (text("key")?, text("value")?);
    let member: Member = serde_json::from_str(&value).map_err(|e| format!("{key}: {e}"))?;
    if key.strip_prefix(prefix) != Some(&*member.address.to_string()) {
        return Err(format!("{key} names another address than its value, {}", member.address));
    }
    member.check().map_err(|e| format!("{key}: {e}"))?;
    Ok(member)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Value {
        json!({ "key": BASE64.encode(key), "value": BASE64.encode(value) })
    }

    #[test]
    fn an_entry_that_is_no_host_is_refused() {
        let prefix = "/raas/hosts/";
        let good = entry("/raas/hosts/10.0.0.1", r#"{"address":"10.0.0.1","services":["store"]}"#);
        assert_eq!(member(&good, prefix).unwrap().services, ["store"]);
        for (key, value) in [
            ("/raas/hosts/10.0.0.2", r#"{"address":"10.0.0.1"}"#),
            ("/raas/hosts/10.0.0.1", r#"{"address":"10.0.0.1","services":["a b"]}"#),
            ("/raas/hosts/10.0.0.1", r#"{"services":[]}"#),
            ("/raas/hosts/10.0.0.1", "nothing"),
        ] {
            assert!(member(&entry(key, value), prefix).is_err(), "{value}");
        }
        assert!(member(&json!({}), prefix).is_err());
        assert_eq!(after(prefix), b"/raas/hosts0");
    }

    #[test]
    fn an_etcd_that_is_not_there_is_named_with_each_endpoint() {
        let endpoints = vec!["http://127.0.0.1:1".into(), "http://127.0.0.1:2/".into()];
        let mut etcd = Etcd::new(&EtcdConfig { endpoints, prefix: "/raas/".into(), lease_seconds: 3 });
        let error = etcd.members().unwrap_err();
        assert!(error.contains("127.0.0.1:1/v3") && error.contains("127.0.0.1:2/v3"), "{error}");
        assert_eq!(etcd.prefix, "/raas/hosts/");
    }
}

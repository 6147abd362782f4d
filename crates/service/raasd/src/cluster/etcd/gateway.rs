//! Questions to an etcd through its HTTP gateway (`/v3`, JSON; etcd 3.4 and later).
//!
//! Owns what is believed of an answer: its time, its bytes, its form. Nobody is sent on to another server.

use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::cluster::directory_error::{DirectoryError, plain};

/// Time for one answer of one server, from the look-up of its name to the last byte.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of one answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Bytes of an answer that says no.
const REFUSAL_BYTES_MAX: u64 = 4096;
/// Bytes of the head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The servers of an etcd.
pub(super) struct Gateway {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// The one that answered last.
    current: usize,
}

/// A key, and what it holds.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Entry {
    #[serde(deserialize_with = "decoded")]
    pub(super) key: Vec<u8>,
    #[serde(deserialize_with = "decoded", default)]
    pub(super) value: Vec<u8>,
}

/// The keys with a prefix.
#[derive(Debug, Deserialize)]
pub(super) struct Range {
    /// Each answer of an etcd has one: an answer of something else must not be taken for an etcd without keys.
    #[serde(rename = "header")]
    _header: Header,
    #[serde(default)]
    pub(super) kvs: Vec<Entry>,
    /// There are more than were asked for.
    #[serde(default)]
    pub(super) more: bool,
}

#[derive(Debug, Deserialize)]
struct Header {
    #[serde(rename = "cluster_id", deserialize_with = "number")]
    _cluster_id: u64,
}

/// A lease as it was granted.
#[derive(Debug, Deserialize)]
pub(super) struct Granted {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(super) id: i64,
    #[serde(rename = "TTL", deserialize_with = "number", default)]
    pub(super) ttl_seconds: i64,
}

#[derive(Debug, Deserialize)]
struct Renewed {
    result: Remaining,
}

#[derive(Debug, Deserialize)]
struct Remaining {
    /// Absent where etcd does not have the lease any more.
    #[serde(rename = "TTL", deserialize_with = "number", default)]
    ttl_seconds: i64,
}

/// An answer of which nothing is needed.
#[derive(Debug, Deserialize)]
struct Done {}

/// Numbers of 64 bits are texts in this gateway.
fn number<'de, D: Deserializer<'de>, N: DeserializeOwned + FromStr>(from: D) -> Result<N, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form<N> {
        Number(N),
        Text(String),
    }
    match Form::deserialize(from)? {
        Form::Number(number) => Ok(number),
        Form::Text(text) => text.parse().map_err(|_| serde::de::Error::custom("a number is wanted")),
    }
}

fn decoded<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    BASE64.decode(text).map_err(|_| serde::de::Error::custom("base64 is wanted"))
}

impl Gateway {
    /// Of servers as the configuration names them, one at least, with a time for one answer of each.
    pub(super) fn new(endpoints: Vec<String>, timeout: Duration) -> Self {
        let settings = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .max_response_header_size(HEAD_BYTES_MAX)
            // A connection that was kept would fail once after each restart of etcd.
            .max_idle_connections(0);
        Self { agent: settings.build().into(), endpoints, current: 0 }
    }

    pub(super) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The first `limit` keys that begin with `prefix`, whose last byte is below 255.
    pub(super) fn range(&mut self, prefix: &str, limit: usize) -> Result<Range, DirectoryError> {
        let end = after(prefix);
        let question =
            json!({ "key": BASE64.encode(prefix), "range_end": BASE64.encode(end), "limit": limit.to_string() });
        self.ask("kv/range", &question)
    }

    pub(super) fn grant(&mut self, seconds: u32) -> Result<Granted, DirectoryError> {
        self.ask("lease/grant", &json!({ "TTL": seconds.to_string() }))
    }

    /// Renews a lease; false if etcd does not have it any more.
    pub(super) fn renew(&mut self, lease: i64) -> Result<bool, DirectoryError> {
        let renewed: Renewed = self.ask("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        Ok(renewed.result.ttl_seconds > 0)
    }

    pub(super) fn put(&mut self, key: &str, value: &str, lease: i64) -> Result<(), DirectoryError> {
        let question = json!({ "key": BASE64.encode(key), "value": BASE64.encode(value), "lease": lease.to_string() });
        self.ask::<Done>("kv/put", &question).map(drop)
    }

    /// Gives a lease back, at the server that answered last: there is no time for others.
    pub(super) fn revoke(&mut self, lease: i64) -> Result<(), DirectoryError> {
        let question = json!({ "ID": lease.to_string() });
        self.ask_one::<Done>(self.current, "lease/revoke", &question.to_string()).map(drop)
    }

    /// Asks the servers in turn, from the one that answered last.
    fn ask<T: DeserializeOwned>(&mut self, path: &str, question: &Value) -> Result<T, DirectoryError> {
        let body = question.to_string();
        let (mut failures, mut is_silent) = (Vec::new(), true);
        for turn in 0..self.endpoints.len() {
            let number = (self.current + turn) % self.endpoints.len();
            match self.ask_one(number, path, &body) {
                Ok(answer) => {
                    self.current = number;
                    return Ok(answer);
                }
                Err(error) => {
                    is_silent &= matches!(error, DirectoryError::Silent(_));
                    failures.push(error.to_string());
                }
            }
        }
        let words = plain(&failures.join("; "));
        Err(if is_silent { DirectoryError::Silent(words) } else { DirectoryError::Refused(words) })
    }

    fn ask_one<T: DeserializeOwned>(&self, number: usize, path: &str, body: &str) -> Result<T, DirectoryError> {
        let Some(endpoint) = self.endpoints.get(number) else {
            return Err(DirectoryError::Silent("no endpoint is configured".into()));
        };
        let silent = |e: ureq::Error| DirectoryError::Silent(plain(&format!("{endpoint} does not answer: {e}")));
        let refused = |what: &dyn std::fmt::Display| {
            DirectoryError::Refused(plain(&format!("{endpoint}/v3/{path} answered {what}")))
        };
        let sent = self.agent.post(format!("{endpoint}/v3/{path}")).content_type("application/json").send(body);
        let mut answer = sent.map_err(silent)?;
        let status = answer.status();
        let limit = if status == 200 { ANSWER_BYTES_MAX } else { REFUSAL_BYTES_MAX };
        let read = answer.body_mut().with_config().limit(limit).read_to_vec();
        if status != 200 {
            let words = String::from_utf8_lossy(&read.unwrap_or_default()).into_owned();
            return Err(refused(&format!("{status}: {}", words.trim())));
        }
        let bytes = read.map_err(|e| match e {
            ureq::Error::BodyExceedsLimit(bytes) => refused(&format!("with more than {bytes} bytes")),
            other => silent(other),
        })?;
        serde_json::from_slice(&bytes).map_err(|e| refused(&format!("what is no answer: {e}")))
    }
}

/// The first key behind all that begin with `prefix`.
fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_texts_or_numbers() {
        for (text, id) in [(r#"{"ID":"-7","TTL":3}"#, Some(-7)), (r#"{"ID":7}"#, Some(7)), (r#"{"ID":"x"}"#, None)] {
            assert_eq!(serde_json::from_str::<Granted>(text).ok().map(|granted| granted.id), id, "{text}");
        }
        assert!(serde_json::from_str::<Renewed>(r#"{"result":{"ID":"7"}}"#).unwrap().result.ttl_seconds == 0);
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_of_its_keys() {
        assert_eq!(after("/raas/hosts/"), b"/raas/hosts0");
        assert_eq!(after(""), b"");
    }
}

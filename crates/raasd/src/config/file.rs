//! The configuration file: keys, types, ranges, and errors that name the line.
//!
//! Owns the table of keys. It must never accept a key that it does not know: a misspelt limit would silently not hold.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use engine::IpNet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use verbs::PathMtu;

use super::{Config, PeerConfig};

type Setter = fn(&mut Config, &Value<'_>) -> Result<(), String>;

const KEYS: &[(&str, Setter)] = &[
    ("listen", |c, v| v.host_address().map(|a| c.listen = a)),
    ("addresses", |c, v| v.host_addresses().map(|a| c.addresses = a)),
    ("socket", |c, v| v.path().map(|p| c.socket = p)),
    ("socket_mode", |c, v| v.mode().map(|m| c.socket_mode = m)),
    ("peer_port", |c, v| v.integer(1, 65_535).map(|p| c.peer_port = p)),
    ("device", |c, v| v.text()?.parse().map(|d| c.device = d)),
    ("udp_port", |c, v| v.integer(1, 65_535).map(|p| c.udp_port = p)),
    ("mtu", |c, v| v.mtu().map(|m| c.mtu = Some(m))),
    ("key_file", |c, v| v.path().map(|p| c.key_file = Some(p))),
    ("pcap", |c, v| v.path().map(|p| c.pcap = Some(p))),
    ("log", |c, v| v.text().map(|t| c.log = t.to_string())),
    ("ring_bytes", |c, v| v.ring_bytes().map(|b| c.ring_bytes = Some(b))),
    ("local_ring_bytes", |c, v| v.ring_bytes().map(|b| c.local_ring_bytes = Some(b))),
    ("connect_to", |c, v| v.networks().map(|n| c.connect_to = Some(n))),
    ("heartbeat_ms", |c, v| v.integer(10, 3_600_000).map(|ms| c.heartbeat.interval = Duration::from_millis(ms))),
    ("heartbeat_misses", |c, v| v.integer(1, 1000).map(|n| c.heartbeat.misses = n)),
];

/// Keys that hold a table or tables.
const TABLES: &[&str] = &["limits", "peer"];

type PeerSetter = fn(&mut PeerConfig, &Value<'_>) -> Result<(), String>;

const PEER_KEYS: &[(&str, PeerSetter)] = &[
    ("address", |p, v| v.host_address().map(|a| p.address = a)),
    ("port", |p, v| v.integer(1, 65_535).map(|n| p.port = Some(n))),
    ("sources", |p, v| v.host_addresses().map(|a| p.sources = a)),
];

/// Every key outside of tables, for the documentation's test.
#[cfg(test)]
pub(super) fn top_level_keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|k| k.0)
}

/// Reads `text` into `config`; problems are `LINE: message`.
pub(super) fn apply(config: &mut Config, text: &str) -> Result<(), Vec<String>> {
    let mut reader = Reader { text, problems: Vec::new() };
    match DeTable::parse(text) {
        Ok(table) => reader.top(config, table.get_ref()),
        Err(e) => {
            let at = e.span().map_or(0, |s| s.start);
            let message = e.message().trim().replace('\n', ", ");
            reader.problem(at, &message);
        }
    }
    if reader.problems.is_empty() { Ok(()) } else { Err(reader.problems) }
}

struct Reader<'t> {
    text: &'t str,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn problem(&mut self, at: usize, message: &str) {
        let before = self.text.get(..at.min(self.text.len())).unwrap_or(self.text);
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        self.problems.push(format!("{line}: {message}"));
    }

    fn top(&mut self, config: &mut Config, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let result = match name {
                "limits" => {
                    self.limits(config, value);
                    Ok(())
                }
                "peer" => {
                    self.peers(config, value);
                    Ok(())
                }
                _ => match KEYS.iter().find(|k| k.0 == name) {
                    Some((_, set)) => set(config, &Value { key: name, value: value.get_ref() }),
                    None => {
                        let known = KEYS.iter().map(|k| k.0).chain(TABLES.iter().copied());
                        self.problem(key.span().start, &unknown(name, known));
                        Ok(())
                    }
                },
            };
            if let Err(message) = result {
                self.problem(value.span().start, &message);
            }
        }
    }

    fn limits(&mut self, config: &mut Config, value: &Spanned<DeValue<'_>>) {
        let Some(table) = value.get_ref().as_table() else {
            self.problem(value.span().start, "`limits` must be a table: write [limits]");
            return;
        };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let number = Value { key: name, value: value.get_ref() }.integer(0, u64::MAX);
            if let Err(message) = number.and_then(|n| config.set_limit(name, n)) {
                self.problem(key.span().start, &message);
            }
        }
        if let Err(message) = config.check_limits() {
            self.problem(value.span().start, &message);
        }
    }

    fn peers(&mut self, config: &mut Config, value: &Spanned<DeValue<'_>>) {
        let Some(list) = value.get_ref().as_array() else {
            self.problem(value.span().start, "`peer` must be a list of tables: write [[peer]]");
            return;
        };
        for entry in list {
            let Some(table) = entry.get_ref().as_table() else {
                self.problem(entry.span().start, "`peer` must be a list of tables: write [[peer]]");
                continue;
            };
            let unset = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
            let mut peer = PeerConfig { address: unset, port: None, sources: Vec::new() };
            for (key, value) in table {
                let name = key.get_ref().as_ref();
                match PEER_KEYS.iter().find(|k| k.0 == name) {
                    Some((_, set)) => {
                        if let Err(message) = set(&mut peer, &Value { key: name, value: value.get_ref() }) {
                            self.problem(value.span().start, &message);
                        }
                    }
                    None => self.problem(key.span().start, &unknown(name, PEER_KEYS.iter().map(|k| k.0))),
                }
            }
            if !table.iter().any(|(key, _)| key.get_ref() == "address") {
                self.problem(entry.span().start, "[[peer]] needs `address`");
            }
            config.peers.push(peer);
        }
    }
}

/// A value with the key's name for messages.
struct Value<'a> {
    key: &'a str,
    value: &'a DeValue<'a>,
}

impl Value<'_> {
    fn text(&self) -> Result<&str, String> {
        self.value.as_str().ok_or_else(|| format!("`{}` must be a text in quotes", self.key))
    }

    fn path(&self) -> Result<PathBuf, String> {
        match self.text()? {
            "" => Err(format!("`{}` is empty", self.key)),
            path => Ok(path.into()),
        }
    }

    fn integer<T: TryFrom<u64>>(&self, min: u64, max: u64) -> Result<T, String> {
        let Some(integer) = self.value.as_integer() else {
            return Err(format!("`{}` must be a whole number", self.key));
        };
        let value = i128::from_str_radix(integer.as_str(), integer.radix())
            .map_err(|_| format!("`{}` is {integer}, allowed are {min}..={max}", self.key))?;
        let fits = u64::try_from(value).ok().filter(|v| (min..=max).contains(v));
        fits.and_then(|v| T::try_from(v).ok())
            .ok_or_else(|| format!("`{}` is {value}, allowed are {min}..={max}", self.key))
    }

    fn host_address(&self) -> Result<IpAddr, String> {
        address(self.key, self.text()?)
    }

    fn host_addresses(&self) -> Result<Vec<IpAddr>, String> {
        let wrong = || format!("`{}` must be a list of addresses in quotes", self.key);
        let list = self.value.as_array().ok_or_else(wrong)?;
        list.iter().map(|v| address(self.key, v.get_ref().as_str().ok_or_else(wrong)?)).collect()
    }

    fn networks(&self) -> Result<Vec<IpNet>, String> {
        let wrong = || format!("`{}` must be a list of networks in quotes, such as [\"10.1.0.0/16\"]", self.key);
        let list = self.value.as_array().ok_or_else(wrong)?;
        list.iter().map(|v| network(self.key, v.get_ref().as_str().ok_or_else(wrong)?)).collect()
    }

    fn mode(&self) -> Result<u32, String> {
        let text = self.text()?;
        u32::from_str_radix(text, 8)
            .ok()
            .filter(|m| *m <= 0o777 && m & 0o600 == 0o600)
            .ok_or_else(|| format!("`{}` is \"{text}\", allowed are octal modes from \"0600\" to \"0777\"", self.key))
    }

    fn mtu(&self) -> Result<PathMtu, String> {
        let bytes: usize = self.integer(0, 1 << 20)?;
        PathMtu::from_bytes(bytes)
            .ok_or_else(|| format!("`{}` is {bytes}, allowed are 256, 512, 1024, 2048, 4096", self.key))
    }

    fn ring_bytes(&self) -> Result<u32, String> {
        let bytes: u32 = self.integer(4 << 10, 8 << 20)?;
        if bytes.is_power_of_two() {
            Ok(bytes)
        } else {
            Err(format!("`{}` is {bytes}, it must be a power of two", self.key))
        }
    }
}

fn address(key: &str, text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| format!("`{key}`: \"{text}\" is no IP address"))?;
    check_host_address(address).map_err(|e| format!("`{key}`: {e}"))?;
    Ok(address.to_canonical())
}

/// `ADDRESS/BITS`, or one host's address.
fn network(key: &str, text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address.to_canonical()));
    }
    let no_network = |_| format!("`{key}`: \"{text}\" is no network; write ADDRESS/BITS, such as 10.1.0.0/16");
    let network: IpNet = text.parse().map_err(no_network)?;
    match network.trunc() {
        whole if whole == network => Ok(network),
        whole => Err(format!("`{key}`: {network} has bits behind its prefix; the network is {whole}")),
    }
}

/// An address that names one host.
pub(super) fn check_host_address(address: IpAddr) -> Result<(), String> {
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!("{address} names no host; use the address by which other hosts reach this one"));
    }
    Ok(())
}

pub(super) fn check_range(key: &str, value: u64, min: u64, max: u64) -> Result<(), String> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(format!("`{key}` is {value}, allowed are {min}..={max}")) }
}

/// The message for an unknown key, with the known one that looks most like it.
pub(super) fn unknown<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> String {
    let nearest = known.map(|k| (edit_distance(key, k), k)).min();
    match nearest {
        Some((distance, k)) if distance <= 2.max(key.len() / 3) => format!("unknown key `{key}`; did you mean `{k}`?"),
        _ => format!("unknown key `{key}`; see docs/configuration.md"),
    }
}

/// Insertions, removals and replacements that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

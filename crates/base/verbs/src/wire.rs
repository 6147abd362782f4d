//! What carries a connection between two devices, and who may choose it.

use std::fmt;
use std::str::FromStr;

/// A transport of reliable connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Wire {
    /// RoCEv2: packets over UDP (IBTA annex A17).
    #[default]
    Roce,
    /// iWARP: a stream over TCP (RFC 5040, 5041, 5044).
    Iwarp,
}

impl Wire {
    /// Its name in configurations and in what `raas` shows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which wires a device offers for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WirePolicy {
    /// All that the device has; both ends' devices agree on the one that suits them.
    #[default]
    Auto,
    /// This one alone. A peer without it cannot be connected.
    Only(Wire),
}

impl WirePolicy {
    /// Whether a connection may use that wire.
    pub fn allows(self, wire: Wire) -> bool {
        self == Self::Auto || self == Self::Only(wire)
    }

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Only(wire) => wire.name(),
        }
    }
}

impl fmt::Display for WirePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WirePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Auto, Self::Only(Wire::Roce), Self::Only(Wire::Iwarp)];
        all.into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| format!("\"{text}\" is no wire; \"auto\", \"roce\" and \"iwarp\" are"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_a_policy_allows_what_it_names() {
        for policy in [WirePolicy::Auto, WirePolicy::Only(Wire::Roce), WirePolicy::Only(Wire::Iwarp)] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("tcp".parse::<WirePolicy>().unwrap_err().contains("\"tcp\" is no wire"));
        assert!(WirePolicy::Auto.allows(Wire::Roce) && WirePolicy::Auto.allows(Wire::Iwarp));
        let tcp = WirePolicy::Only(Wire::Iwarp);
        assert!(tcp.allows(Wire::Iwarp) && !tcp.allows(Wire::Roce));
    }
}

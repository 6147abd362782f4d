//! Whether what two devices send to each other is encrypted.

use std::fmt;
use std::str::FromStr;

/// What a consumer wants of the encryption of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encrypt {
    /// None.
    #[default]
    Off,
    /// Where both ends can and want; else the connection is in the clear.
    Preferred,
    /// A connection that cannot be encrypted is refused.
    Required,
}

impl Encrypt {
    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Preferred => "preferred",
            Self::Required => "required",
        }
    }
}

impl fmt::Display for Encrypt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Encrypt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Off, Self::Preferred, Self::Required]
            .into_iter()
            .find(|encrypt| encrypt.name() == text)
            .ok_or_else(|| format!("\"{text}\" is not allowed; use \"off\", \"preferred\" or \"required\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for encrypt in [Encrypt::Off, Encrypt::Preferred, Encrypt::Required] {
            assert_eq!(encrypt.to_string().parse(), Ok(encrypt));
        }
        assert!("on".parse::<Encrypt>().unwrap_err().contains("\"required\""));
    }
}

//! What `raas calibrate` measured on this machine: a file that the daemon reads, and a person may edit.
//!
//! Owns the file's keys and their ranges. It must never accept a key that it does not know: a threshold that does not
//! hold would be believed to.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use engine::Thresholds;
use serde::{Deserialize, Serialize};

use crate::config_error::ConfigError;
use crate::limits::check_range;

/// The values; see docs/inside/lanes.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The device on which they were measured, as in `raas device`.
    pub device: String,
    /// As the limit of that name.
    pub choice_send_bytes: u32,
    /// As the limit of that name.
    pub choice_read_bytes: u32,
    /// As the limit of that name.
    pub choice_register_bytes: u32,
}

impl Calibration {
    /// Reads a file. A problem names it and the line: `FILE:LINE: message`.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let at = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::one(format!("{at}: {e}; `raas calibrate --output {at}` writes it")))?;
        Self::parse(&text).map_err(|(line, what)| {
            ConfigError::one(format!("{at}:{line}: {what}; `raas calibrate --output {at}` writes it anew"))
        })
    }

    /// The values of a file's text, or the line that is wrong, and why.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let read: Self = toml::from_str(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            (line_of(text, at), e.message().trim().replace('\n', ", "))
        })?;
        for (key, value, allowed) in read.values() {
            check_range(value, (*allowed.start()).into(), (*allowed.end()).into()).map_err(|e| {
                let line = text.lines().position(|line| line.trim_start().starts_with(key)).unwrap_or(0);
                (line + 1, format!("`{key}`: {e}"))
            })?;
        }
        Ok(read)
    }

    /// By key, with what is allowed.
    fn values(&self) -> [(&'static str, u32, RangeInclusive<u32>); 3] {
        [
            ("choice_send_bytes", self.choice_send_bytes, 0..=engine::FRAME_BYTES_MAX),
            ("choice_read_bytes", self.choice_read_bytes, 1..=u32::MAX),
            ("choice_register_bytes", self.choice_register_bytes, 1..=u32::MAX),
        ]
    }

    pub(crate) fn apply(&self, at: &mut Thresholds) {
        at.send_bytes_max = self.choice_send_bytes;
        at.read_bytes_min = self.choice_read_bytes;
        at.register_bytes_min = self.choice_register_bytes;
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Written by `raas calibrate`; docs/inside/lanes.md has the meaning of the keys.")?;
        f.write_str(&toml::to_string(self).map_err(|_| fmt::Error)?)
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.get(..at.min(text.len())).unwrap_or(text).bytes().filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Calibration {
        Calibration {
            device: "softnic".into(),
            choice_send_bytes: 256,
            choice_read_bytes: 65_536,
            choice_register_bytes: 4096,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = measured().to_string();
        assert_eq!(Calibration::parse(&text), Ok(measured()), "{text}");
        let mut at = Thresholds::default();
        measured().apply(&mut at);
        assert_eq!((at.send_bytes_max, at.read_bytes_min, at.register_bytes_min), (256, 65_536, 4096));
    }

    #[test]
    fn each_mistake_is_named_with_file_and_line() {
        let good = measured().to_string();
        let cases = [
            (good.replace("choice_send_bytes = 256", "choice_send_bytes = 70000"), "3: `choice_send_bytes`: 70000"),
            (good.replace("choice_read_bytes = 65536", "choice_read_bytes = 0"), "4: `choice_read_bytes`: 0 is not"),
            (good.replace("choice_read_bytes", "choice_reed_bytes"), "4: unknown field `choice_reed_bytes`"),
            (good.replace("256", "\"256\""), "3: invalid type: string"),
            (good.replace("choice_register_bytes = 4096\n", ""), "1: missing field `choice_register_bytes`"),
            (good.replace("= 4096", "= "), "5: "),
        ];
        for (text, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("calibration.toml");
            std::fs::write(&path, &text).unwrap();
            let told = Calibration::load(&path).unwrap_err().to_string();
            let expected = format!("{}:{expected}", path.display());
            assert!(told.starts_with(&expected) && told.contains("raas calibrate"), "{told}\nfor {text}");
        }
        let told = Calibration::load(Path::new("/nonexistent/c.toml")).unwrap_err().to_string();
        assert!(told.starts_with("/nonexistent/c.toml: ") && told.contains("raas calibrate"), "{told}");
    }
}

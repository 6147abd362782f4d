//! Values of options that need more than a type: sizes with units, times, lists of addresses, HOST:PORT. It must never
//! take a value outside of its limits.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::perf::SIZE_BYTES_MAX;
use raas::LookupError;
use terminal::Failure;
use transport::session_failure;

pub(super) fn two_addresses(text: &str) -> Result<[IpAddr; 2], String> {
    let parsed: Result<Vec<IpAddr>, _> = text.split(',').map(|part| part.trim().parse::<IpAddr>()).collect();
    let addresses = parsed.map_err(|e| e.to_string())?;
    addresses.try_into().map_err(|_| "two addresses with a comma between them, such as 127.0.1.1,127.0.1.2".into())
}

pub(super) fn size_bytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let value = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    value.filter(|n| (1..=SIZE_BYTES_MAX).contains(n)).ok_or_else(|| "1 to 16M bytes".into())
}

pub(super) fn region_bytes(text: &str) -> Result<u64, String> {
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit = units.iter().find(|(unit, _)| text.ends_with([*unit, unit.to_ascii_lowercase()]));
    let (digits, shift) = unit.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], *shift));
    let value = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    value.filter(|n| (1..=control::REGION_BYTES_MAX).contains(n)).ok_or_else(|| "1 to 1T bytes, not 0".into())
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| (0.01..=86_400.0).contains(s));
    value.ok_or_else(|| "0.01 to 86400 seconds".into())
}

pub(super) fn period(text: &str) -> Result<Duration, String> {
    seconds(text).map(Duration::from_secs_f64)
}

/// The addresses that a user's HOST:PORT or SERVICE:PORT means, to be tried in turn; one at least.
pub(crate) fn resolve(text: &str, socket: Option<&Path>) -> Result<Vec<SocketAddr>, Failure> {
    raas::resolve(socket, text).map_err(|e| {
        let told = e.to_string();
        match e {
            LookupError::Form(_) => Failure::Usage(told),
            LookupError::Session { error, .. } => match session_failure(error) {
                Failure::Refused(_) => Failure::Refused(told),
                Failure::NoDaemon(_) => Failure::NoDaemon(told),
                _ => Failure::Failed(told),
            },
            // It is a name, and nobody has it.
            _ => Failure::Failed(told),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_limits() {
        assert_eq!(size_bytes("64"), Ok(64));
        assert_eq!(size_bytes("256K"), Ok(256 << 10));
        assert_eq!(size_bytes("16M"), Ok(16 << 20));
        for bad in ["0", "17M", "4096M", "-1", "x", "", "K"] {
            assert!(size_bytes(bad).is_err(), "{bad}");
        }
        assert_eq!((region_bytes("7"), region_bytes("2g"), region_bytes("1T")), (Ok(7), Ok(2 << 30), Ok(1 << 40)));
        for bad in ["0", "2T", "18446744073709551616", "99999999999T", "", "K", "1KK", "ä"] {
            assert!(region_bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["0", "nan", "inf", "-1", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn demo_hosts_are_two_addresses() {
        assert_eq!(two_addresses("127.0.0.1, ::1").unwrap()[1].to_string(), "::1");
        assert!(two_addresses("127.0.0.1").is_err());
        assert!(two_addresses("a,b").is_err());
    }

    #[test]
    fn addresses_are_resolved() {
        assert_eq!(resolve("127.0.0.5:80", None).unwrap(), ["127.0.0.5:80".parse().unwrap()]);
        assert!(matches!(resolve("nothing", None), Err(Failure::Usage(_))));
    }
}

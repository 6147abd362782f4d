//! Addresses and times as Python has them: a pair of host and port, seconds as a float.
//!
//! Owns the conversions. Names were looked up before, by the standard library's `getaddrinfo`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A host's address and a port.
pub(crate) type Pair = (String, u16);

pub(crate) fn address((host, port): &Pair) -> PyResult<SocketAddr> {
    let ip: IpAddr = host
        .parse()
        .map_err(|_| PyValueError::new_err(format!("`{host}` is no address: look the name up with getaddrinfo")))?;
    Ok(SocketAddr::new(ip, *port))
}

pub(crate) fn pair(address: SocketAddr) -> Pair {
    (address.ip().to_string(), address.port())
}

/// Seconds of a wait; none: without end.
pub(crate) fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    timeout
        .map(|seconds| Duration::try_from_secs_f64(seconds).map_err(|e| PyValueError::new_err(e.to_string())))
        .transpose()
}

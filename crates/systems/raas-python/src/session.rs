//! Sessions with this host's daemon.
//!
//! Owns the choice between the process-wide session and one of the program's.

use pyo3::prelude::*;

use crate::failure::OrRaise;
use crate::shown::Shown;

/// A session with a daemon; without one of its own a call uses the process-wide session.
#[pyclass(frozen, module = "raas")]
#[derive(Debug)]
pub(crate) struct Session(raas::Session);

#[pymethods]
impl Session {
    /// Attaches to the daemon that serves `socket` (default: as `raas` finds it).
    #[new]
    #[pyo3(signature = (socket=None, *, name=None))]
    fn new(py: Python<'_>, socket: Option<std::path::PathBuf>, name: Option<String>) -> PyResult<Self> {
        let mut builder = raas::Session::builder();
        if let Some(socket) = socket {
            builder = builder.socket(socket);
        }
        if let Some(name) = name {
            builder = builder.name(name);
        }
        py.detach(|| builder.connect()).or_raise(py).map(Self)
    }

    fn __repr__(&self) -> String {
        let shown = Shown::of("raas.Session").fact("socket", format_args!("{:?}", self.0.socket()));
        shown.word(if self.0.is_usable() { "usable" } else { "lost" }).end()
    }

    /// The addresses that name this host, as the daemon says.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.0.addresses().iter().map(ToString::to_string).collect()
    }

    /// Whether new connections can be made.
    #[getter]
    fn is_usable(&self) -> bool {
        self.0.is_usable()
    }
}

/// That session, or the process-wide one.
pub(crate) fn session_of(py: Python<'_>, session: Option<&Session>) -> PyResult<raas::Session> {
    match session {
        Some(session) => Ok(session.0.clone()),
        None => py.detach(raas::Session::global).or_raise(py),
    }
}

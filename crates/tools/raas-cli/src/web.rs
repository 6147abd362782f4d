//! `raas web`: a page about this host's daemon, served to this host until the command is ended. It shows what the user
//! who started it may see.

use std::net::SocketAddr;
use std::path::Path;

use monitor::{PageError, Sample, Web};
use terminal::{Failure, out, signals};
use tokio::sync::oneshot;
use transport::session_failure;

/// Serves the page at `listen` until a signal.
pub(crate) fn run(socket: Option<&Path>, listen: SocketAddr) -> Result<(), Failure> {
    // A daemon that is not there is told here, and not only to who opens the page.
    Sample::ask_stat(socket).map_err(session_failure)?;
    let web = Web::bind(listen, socket.map(Path::to_path_buf)).map_err(failure)?;
    let (told, ended) = oneshot::channel();
    signals::watch(move |_| _ = told.send(())).map_err(|e| Failure::failed("signals", e))?;
    out::line(web.url())?;
    web.run(async { _ = ended.await }).map_err(failure)
}

fn failure(e: PageError) -> Failure {
    match e {
        PageError::NotLoopback(_) => Failure::Usage(e.to_string()),
        e => Failure::Failed(e.to_string()),
    }
}

//! Ctrl-C, SIGTERM and SIGHUP as a call, in a thread of its own.

use tokio::signal::unix::{SignalKind, signal};

/// Calls `on_signal` once, with the signal's name, when the process is asked to end. The default action of these
/// signals is off from then on.
pub fn watch(on_signal: impl FnOnce(&'static str) + Send + 'static) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(entered);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let name = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
                _ = hangup.recv() => "SIGHUP",
            }
        });
        on_signal(name);
    })?;
    Ok(())
}

//! `raas daemon --replace`: tells the daemon that serves the socket to make way for this one (docs/operate/restart.md).
//!
//! Owns the order: nothing is asked of the old daemon before this one has seen that it could serve. The old one judges
//! whether its programs and peers could go on with this one.

use std::time::Duration;

use raas::inspect::{HandOverRefusal, Successor};
use raas::{Reason, SessionError};
use raasd::Config;
use terminal::Failure;
use transport::session_failure;

/// How long the old daemon may take to end after it said that it does.
const END_MAX: Duration = Duration::from_secs(10);

/// Has the daemon at the configuration's socket make way. For how long its end may be waited for.
pub(super) fn make_way(config: &Config) -> Result<Duration, Failure> {
    let socket = config.socket.display();
    if config.given_socket.is_some() {
        return Err(Failure::Usage(words(&HandOverRefusal::ServiceManager, None)));
    }
    let successor = raasd::successor(config).map_err(super::failure)?;
    match raas::inspect::hand_over(Some(&config.socket), successor) {
        Ok(Ok(())) => tracing::info!(%socket, "the daemon before this one makes way"),
        Ok(Err(refusal)) => return Err(Failure::Usage(words(&refusal, Some(&successor)))),
        // It ended before it had answered, so there is nothing to wait for but its place.
        Err(SessionError::Lost { reason: Reason::DaemonLost }) => {
            tracing::warn!(%socket, "the daemon before this one ended without an answer");
        }
        Err(error) => return Err(failed(config, error)),
    }
    Ok(END_MAX)
}

/// What the old daemon said against it, and what to do.
fn words(refusal: &HandOverRefusal, own: Option<&Successor>) -> String {
    let goes_on = "the daemon that serves the socket goes on";
    let stop = "or stop that daemon, which ends its connections, and start this one without --replace";
    match refusal {
        HandOverRefusal::Sessions { slots, engines } => {
            let own = own.map(|own| format!(" ({} slots, {} engines)", own.slots, own.engines)).unwrap_or_default();
            format!(
                "{goes_on}: its programs have sessions with {slots} slots for {engines} engines, and could not go on with \
                 this configuration{own}: give limits.connections_per_app_max and `engines` their old values, {stop}"
            )
        }
        HandOverRefusal::PeerAddress(address) => {
            let own = own.map(|own| format!(", not at {}", own.peer_address)).unwrap_or_default();
            format!(
                "{goes_on}: its peers look for it at {address}{own}: give `listen` and `peer_port` their old values, {stop}"
            )
        }
        HandOverRefusal::ServiceManager => format!(
            "{goes_on}: its socket is the service manager's, which alone can give it to another daemon: use \
             `systemctl restart` in place of --replace"
        ),
    }
}

fn failed(config: &Config, error: SessionError) -> Failure {
    let socket = config.socket.display();
    match error {
        SessionError::NoDaemon { cause, .. } => Failure::NoDaemon(format!(
            "there is no daemon at {socket} to replace ({cause}): start this one without --replace"
        )),
        SessionError::Lost { reason: Reason::Policy } => Failure::Refused(format!(
            "the daemon at {socket} goes on: only root and that daemon's own user may replace it"
        )),
        other => session_failure(other),
    }
}

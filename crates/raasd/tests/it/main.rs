//! Whole daemons in this process, on loopback addresses of their own, with applications, strangers and liars.

mod control_socket;
mod hosts;
mod life;
mod peer_port;
mod same_host;
mod two_hosts;

//! Scenarios of simulated hosts, and that the simulator finds what it is for.

mod control_plane;
mod crowd;
mod determinism;
mod directs;
mod engines;
mod incast;
mod keys;
mod paths;
mod restarts;
mod scale;
mod traps;
mod wires;

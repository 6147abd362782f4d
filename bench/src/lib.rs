//! What the measuring programs share: the bare ring, which is the limit beside which paths over shared memory are
//! measured; the star of bare relays, beside which a daemon with many peers is; the control connection of two sides;
//! processor time; round trips; counting calls; a gRPC service; and choices that look random and come again.
#![forbid(unsafe_code)]

pub mod bare;
pub mod choice;
pub mod control;
pub mod cpu;
pub mod grpc_echo;
pub mod load;
pub mod pattern;
pub mod star;
pub mod trips;

//! Shared memory as its users see it: regions, rings, doorbells, wakes, and what one process sees of another.

mod cross_process;
mod doorbell;
mod fault;
mod life;
mod program_memory;
mod region;
mod region_memory;
mod rest;
mod ring;
mod segment;
mod wake;

//! The bounds of kernels, by name. What an operator may change is a key of the daemon's configuration.

/// Bytes of a kernel's name at most.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of a request at most: the name, its length, and the arguments. A request travels in one control frame.
pub const REQUEST_BYTES_MAX: usize = shm::KERNEL_BYTES_MAX as usize;
/// Bytes of an answer at most, for the same reason.
pub const ANSWER_BYTES_MAX: usize = shm::KERNEL_BYTES_MAX as usize;
/// Regions that one run may name beside its own.
pub const REGIONS_MAX: usize = shm::KERNEL_REGIONS_MAX as usize;
/// Fuel of one slice: about 10 us. A run that takes no more is answered in the round in which it came.
pub const SLICE_FUEL: u64 = 4096;
/// Fuel of one run, unless the operator says otherwise: about 50 ms.
pub const FUEL_MAX: u64 = 10_000_000;
/// What it costs to touch a place in memory, which may be in no cache.
pub const TOUCH_FUEL: u64 = 16;
/// Bytes that one unit of fuel copies or looks at.
pub const BYTES_PER_FUEL: u64 = 8;
/// Bytes of the WebAssembly module of a user kernel at most.
pub const MODULE_BYTES_MAX: usize = 48 << 10;
/// Bytes of the memory that a run of a user kernel has of its own, at most.
pub const MEMORY_BYTES_MAX: usize = 256 << 10;
/// Parts of a user kernel at most: functions, globals, imports, exports, segments and places of tables. A run begins
/// with all of them, in one step.
pub const PARTS_MAX: u64 = 1024;
/// What each of them costs a run at its begin.
pub const PART_FUEL: u64 = 32;
/// Locals of all functions of a user kernel at most.
pub const LOCALS_MAX: u64 = 1 << 16;
/// Values of a frame that a call pays for as an instruction.
pub const FRAME_VALUES_FREE: u64 = 32;
/// Values of a frame beyond those that cost as much as an instruction.
pub const FRAME_VALUES_PER_FUEL: u64 = 16;
/// User kernels of one region at most.
pub const USER_KERNELS_MAX: usize = 16;
/// Bytes of the words of a failure at most.
pub const WORDS_BYTES_MAX: usize = 200;

//! User kernels: WebAssembly modules that a region's owner installed.
//!
//! Owns the sandbox. A module has its own memory, of a bounded size, and nothing else of the machine: its only imports
//! are the functions below, which reach the run's regions with checked bounds, and its request and answer. Every
//! instruction pays fuel, and a slice may end between any two.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shm::AtomicOp;
use wasmi::{
    Caller, CompilationMode, Config, EnforcedLimits, Engine, Error, Extern, Linker, Memory, Module, ResumableCall,
    ResumableCallOutOfFuel, Store, StoreLimits, StoreLimitsBuilder,
};

use crate::failure::{Failure, cut};
use crate::frames::{Price, TooDear};
use crate::fuel::Fuel;
use crate::limits::{
    ANSWER_BYTES_MAX, BYTES_PER_FUEL, FRAME_VALUES_PER_FUEL, LOCALS_MAX, MEMORY_BYTES_MAX, MODULE_BYTES_MAX, PART_FUEL,
    PARTS_MAX, TOUCH_FUEL, WORDS_BYTES_MAX,
};
use crate::program::{Program, Step};
use crate::view::{self, View};

/// Module of the imports.
const MODULE: &str = "region";
/// The function that is called: without parameters and results.
const ENTRY: &str = "run";
/// The memory that the imports read and write.
const MEMORY: &str = "memory";
/// Depth of calls within a module.
const DEPTH_MAX: usize = 256;
/// Values of its stack: 8 bytes each.
const STACK_VALUES_MAX: usize = 16 << 10;
/// What a translated module takes, whatever it is, and for each of its bytes; `tests/memory.rs` looks for modules that
/// take more.
const HELD_BYTES_LEAST: u64 = 16 << 10;
const HELD_BYTES_PER_BYTE: u64 = 144;
/// Places of its tables.
const TABLE_ELEMENTS_MAX: usize = 1024;

/// A module that was checked, and can be run any number of times.
#[derive(Clone)]
pub struct UserKernel {
    module: Arc<Module>,
    linker: Arc<Linker<Host>>,
    price: Price,
    /// Dropped with the last that has the module.
    _charge: Option<Arc<dyn Any + Send + Sync>>,
}

/// Bytes are no kernel.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAKernel {
    /// The module is too long.
    #[error("the module has {bytes} bytes, and {max} can be")]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// How many there may be.
        max: usize,
    },
    /// It is no WebAssembly, or breaks a limit of the sandbox.
    #[error("no WebAssembly module that can run here: {words}")]
    Module {
        /// What is wrong.
        words: String,
    },
    /// An instance of it has too many parts, or its functions too many locals.
    #[error("the module has {count} {what}, and {max} can be")]
    TooDear {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u64,
        /// How many there may be.
        max: u64,
    },
    /// It imports what there is not.
    #[error("the module imports `{import}`: a kernel has only the functions of module `region`")]
    Import {
        /// What it imports.
        import: String,
    },
    /// It does not export what a kernel needs.
    #[error("the module must export a function `run` without parameters and results, and a memory `memory`")]
    Exports,
}

control::debug_says_the_words!(NotAKernel);

/// What the imports of one run reach.
struct Host {
    limits: StoreLimits,
    views: Vec<View>,
    args: Vec<u8>,
    answer: Vec<u8>,
    /// What imports cost beyond the fuel that was left.
    owed: u64,
}

/// A failure of an import, on its way through the interpreter.
#[derive(Debug)]
struct Stopped(Failure);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl wasmi::errors::HostError for Stopped {}

fn stop(failure: Failure) -> Error {
    Error::host(Stopped(failure))
}

fn price(wasm: &[u8]) -> Result<Price, NotAKernel> {
    Price::of(wasm, ENTRY).map_err(|why| match why {
        TooDear::Parser(error) => NotAKernel::Module { words: cut(&error.to_string(), WORDS_BYTES_MAX) },
        TooDear::Locals(count) => NotAKernel::TooDear { what: "locals", count, max: LOCALS_MAX },
        TooDear::Parts(count) => NotAKernel::TooDear { what: "parts", count, max: PARTS_MAX },
    })
}

/// A panic of the parser ends the module and not the daemon: wasmi 1.1.0 divides by the number of functions, which a
/// code section may say to be zero.
fn parsed(engine: &Engine, wasm: &[u8]) -> Result<Module, NotAKernel> {
    match catch_unwind(AssertUnwindSafe(|| Module::new(engine, wasm))) {
        Ok(module) => module.map_err(|e| module_words(&e)),
        Err(_) => Err(NotAKernel::Module { words: "the parser failed on it".to_owned() }),
    }
}

fn module_words(error: &Error) -> NotAKernel {
    NotAKernel::Module { words: cut(&error.to_string(), WORDS_BYTES_MAX) }
}

impl UserKernel {
    /// Checks and translates a module. It takes milliseconds for a long one.
    pub fn new(wasm: &[u8]) -> Result<Self, NotAKernel> {
        if wasm.len() > MODULE_BYTES_MAX {
            return Err(NotAKernel::TooLong { bytes: wasm.len(), max: MODULE_BYTES_MAX });
        }
        let price = price(wasm)?;
        let mut config = Config::default();
        config
            .consume_fuel(true)
            .compilation_mode(CompilationMode::Eager)
            .enforced_limits(EnforcedLimits::strict())
            .set_max_recursion_depth(DEPTH_MAX)
            .set_max_stack_height(STACK_VALUES_MAX)
            // One that was kept would be kept as long as the module.
            .set_max_cached_stacks(0)
            .ignore_custom_sections(true)
            .wasm_multi_memory(false)
            .wasm_memory64(false)
            .wasm_custom_page_sizes(false);
        let engine = Engine::new(&config);
        let module = parsed(&engine, wasm)?;
        let linker = linker(&engine).map_err(|e| module_words(&e))?;
        for import in module.imports() {
            let known = import.module() == MODULE && IMPORTS.contains(&import.name());
            if !known || !matches!(import.ty(), wasmi::ExternType::Func(_)) {
                let import = format!("{}.{}", import.module(), import.name());
                return Err(NotAKernel::Import { import: cut(&import, WORDS_BYTES_MAX) });
            }
        }
        let is_entry = matches!(module.get_export(ENTRY), Some(wasmi::ExternType::Func(ty))
            if ty.params().is_empty() && ty.results().is_empty());
        if !is_entry || !matches!(module.get_export(MEMORY), Some(wasmi::ExternType::Memory(_))) {
            return Err(NotAKernel::Exports);
        }
        Ok(Self { module: Arc::new(module), linker: Arc::new(linker), price, _charge: None })
    }

    /// Bytes of memory that a module of this length takes at most, translated. By far the most is taken by calls that
    /// have many results; common modules take a tenth of it.
    pub const fn held_bytes(module_bytes: usize) -> u64 {
        HELD_BYTES_LEAST + module_bytes as u64 * HELD_BYTES_PER_BYTE
    }

    /// The same, and something that is dropped when nobody has the module any more: neither a region nor a run that began
    /// before it was replaced.
    #[must_use]
    pub fn charged(self, charge: impl Send + Sync + 'static) -> Self {
        Self { _charge: Some(Arc::new(charge)), ..self }
    }

    /// A run that has not begun.
    pub(crate) fn program(&self, args: &[u8]) -> Box<dyn Program> {
        Box::new(Run { kernel: self.clone(), args: args.to_vec(), state: State::New })
    }
}

impl fmt::Debug for UserKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserKernel").finish_non_exhaustive()
    }
}

enum State {
    New,
    /// It goes on when it has so much fuel.
    Going(Box<(Store<Host>, ResumableCallOutOfFuel)>),
    Over,
}

/// A run of a module.
struct Run {
    kernel: UserKernel,
    args: Vec<u8>,
    state: State,
}

/// Why the interpreter stopped.
fn failure(error: &Error) -> Failure {
    match error.downcast_ref::<Stopped>() {
        Some(Stopped(failure)) => failure.clone(),
        None => Failure::Trap { words: cut(&error.to_string(), WORDS_BYTES_MAX) },
    }
}

impl Run {
    fn begin(&mut self, views: &[View], slice: u64, fuel: &mut Fuel) -> Result<(Store<Host>, ResumableCall), Failure> {
        let price = self.kernel.price;
        let limits = StoreLimitsBuilder::new()
            .memory_size(MEMORY_BYTES_MAX)
            .table_elements(TABLE_ELEMENTS_MAX)
            .memories(1)
            .tables(1)
            .instances(1)
            .build();
        let host =
            Host { limits, views: views.to_vec(), args: std::mem::take(&mut self.args), answer: Vec::new(), owed: 0 };
        let mut store = Store::new(self.kernel.module.engine(), host);
        store.limiter(|host| &mut host.limits);
        // Memory that is made and filled costs what a copy of it does.
        fuel.touch(price.memory_bytes.min(MEMORY_BYTES_MAX as u64));
        fuel.spend(price.parts * PART_FUEL + price.entry_values / FRAME_VALUES_PER_FUEL);
        let words = |e: Error| failure(&e);
        store.set_fuel(slice).map_err(words)?;
        let instance = self.kernel.linker.instantiate_and_start(&mut store, &self.kernel.module).map_err(words)?;
        let run = instance.get_func(&store, ENTRY).ok_or_else(|| Failure::bad("no entry"))?;
        let call = run.call_resumable(&mut store, &[], &mut []).map_err(words)?;
        Ok((store, call))
    }
}

impl Program for Run {
    fn run(&mut self, views: &[View], fuel: &mut Fuel) -> Result<Step, Failure> {
        let price = self.kernel.price.unit;
        let (slice, mut given) = ((fuel.left() / price).max(1), 0);
        let (mut store, call) = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => return Err(Failure::bad("the run is over")),
            State::New => {
                given += slice;
                self.begin(views, slice, fuel)?
            }
            State::Going(going) => {
                let (mut store, call) = *going;
                // A single step, such as filling memory, may need more than a slice: the next slices pay for it.
                given += slice.max(call.required_fuel());
                store.data_mut().views = views.to_vec();
                let refueled = store.set_fuel(given).and_then(|()| call.resume(&mut store, &mut []));
                let call = refueled.map_err(|e| failure(&e))?;
                (store, call)
            }
        };
        let owed = std::mem::take(&mut store.data_mut().owed);
        fuel.spend(given.saturating_sub(store.get_fuel().unwrap_or(0)).saturating_add(owed).saturating_mul(price));
        // Between two slices a run holds no memory of regions.
        store.data_mut().views.clear();
        match call {
            ResumableCall::Finished => Ok(Step::Done(std::mem::take(&mut store.data_mut().answer))),
            ResumableCall::HostTrap(trap) => Err(failure(trap.host_error())),
            ResumableCall::OutOfFuel(call) => {
                // What is left is less than the next step needs, and is lost.
                self.state = State::Going(Box::new((store, call)));
                fuel.spend(fuel.left());
                Ok(Step::More)
            }
        }
    }
}

// ---- imports

/// Names of the imports.
const IMPORTS: [&str; 9] = ["bytes", "read", "write", "load", "store", "compare_swap", "fetch_add", "args", "answer"];

/// Takes the price of an access out of the run's fuel. What does not fit the module's memory is not copied, and costs no
/// more than all of it: a run must not spend what nobody gave it.
fn pay(caller: &mut Caller<'_, Host>, bytes: u64) -> Result<(), Error> {
    let (left, cost) = (caller.get_fuel()?, TOUCH_FUEL + bytes.min(MEMORY_BYTES_MAX as u64) / BYTES_PER_FUEL);
    let host = caller.data_mut();
    host.owed = host.owed.saturating_add(cost.saturating_sub(left));
    caller.set_fuel(left.saturating_sub(cost))
}

fn memory(caller: &Caller<'_, Host>) -> Result<Memory, Error> {
    let found = caller.get_export(MEMORY).and_then(Extern::into_memory);
    found.ok_or_else(|| stop(Failure::Trap { words: "no memory".into() }))
}

/// Bytes `at` and following of the module's memory, and what its imports reach.
fn own<'a>(caller: &'a mut Caller<'_, Host>, at: i32, len: i32) -> Result<(&'a mut [u8], &'a mut Host), Error> {
    let memory = memory(caller)?;
    let (bytes, host) = memory.data_and_store_mut(caller);
    // Both are numbers without a sign.
    let (at, len, all) = (at as u32 as usize, len as u32 as usize, bytes.len());
    let outside = || stop(Failure::Trap { words: format!("{len} bytes at {at} of a memory of {all}") });
    let end = at.checked_add(len).ok_or_else(outside)?;
    Ok((bytes.get_mut(at..end).ok_or_else(outside)?, host))
}

fn atomic(caller: &mut Caller<'_, Host>, region: i32, offset: i64, op: AtomicOp) -> Result<i64, Error> {
    pay(caller, 8)?;
    let view = view::of(&caller.data().views, region as u32).map_err(stop)?;
    Ok(view.atomic(offset as u64, op).map_err(stop)? as i64)
}

/// The functions that a module may import. Offsets, lengths and values are numbers without a sign; `region` is 0 for the
/// region that the run is about, 1 for the first of those that it names beside it, and so on.
fn linker(engine: &Engine) -> Result<Linker<Host>, Error> {
    let mut linker = Linker::new(engine);
    link_copies(&mut linker)?;
    link_words(&mut linker)?;
    link_request(&mut linker)?;
    Ok(linker)
}

fn link_copies(linker: &mut Linker<Host>) -> Result<(), Error> {
    // bytes(region: i32) -> i64: its size.
    linker.func_wrap(MODULE, "bytes", |mut caller: Caller<'_, Host>, region: i32| -> Result<i64, Error> {
        pay(&mut caller, 0)?;
        Ok(view::of(&caller.data().views, region as u32).map_err(stop)?.bytes() as i64)
    })?;
    // read(region: i32, offset: i64, to: i32, len: i32): copies out of a region.
    linker.func_wrap(
        MODULE,
        "read",
        |mut caller: Caller<'_, Host>, region: i32, offset: i64, to: i32, len: i32| -> Result<(), Error> {
            pay(&mut caller, u64::from(len as u32))?;
            let (to, host) = own(&mut caller, to, len)?;
            let view = view::of(&host.views, region as u32).map_err(stop)?;
            view.read(offset as u64, to, &mut Fuel::new(0)).map_err(stop)
        },
    )?;
    // write(region: i32, offset: i64, from: i32, len: i32): copies into a region.
    linker.func_wrap(
        MODULE,
        "write",
        |mut caller: Caller<'_, Host>, region: i32, offset: i64, from: i32, len: i32| -> Result<(), Error> {
            pay(&mut caller, u64::from(len as u32))?;
            let (from, host) = own(&mut caller, from, len)?;
            let view = view::of(&host.views, region as u32).map_err(stop)?;
            view.write(offset as u64, from, &mut Fuel::new(0)).map_err(stop)
        },
    )?;
    Ok(())
}

fn link_words(linker: &mut Linker<Host>) -> Result<(), Error> {
    // load(region: i32, offset: i64) -> i64: 8 bytes, never torn at a multiple of 8.
    linker.func_wrap(
        MODULE,
        "load",
        |mut caller: Caller<'_, Host>, region: i32, offset: i64| -> Result<i64, Error> {
            pay(&mut caller, 8)?;
            let view = view::of(&caller.data().views, region as u32).map_err(stop)?;
            Ok(view.word(offset as u64, &mut Fuel::new(0)).map_err(stop)? as i64)
        },
    )?;
    // store(region: i32, offset: i64, value: i64).
    linker.func_wrap(
        MODULE,
        "store",
        |mut caller: Caller<'_, Host>, region: i32, offset: i64, value: i64| -> Result<(), Error> {
            pay(&mut caller, 8)?;
            let view = view::of(&caller.data().views, region as u32).map_err(stop)?;
            view.write(offset as u64, &value.to_ne_bytes(), &mut Fuel::new(0)).map_err(stop)
        },
    )?;
    // compare_swap(region: i32, offset: i64, expected: i64, new: i64) -> i64: what was there.
    linker.func_wrap(
        MODULE,
        "compare_swap",
        |mut caller: Caller<'_, Host>, region: i32, offset: i64, expected: i64, new: i64| -> Result<i64, Error> {
            let op = AtomicOp::CompareSwap { expected: expected as u64, new: new as u64 };
            atomic(&mut caller, region, offset, op)
        },
    )?;
    // fetch_add(region: i32, offset: i64, value: i64) -> i64: what was there.
    linker.func_wrap(
        MODULE,
        "fetch_add",
        |mut caller: Caller<'_, Host>, region: i32, offset: i64, value: i64| -> Result<i64, Error> {
            atomic(&mut caller, region, offset, AtomicOp::Add(value as u64))
        },
    )?;
    Ok(())
}

fn link_request(linker: &mut Linker<Host>) -> Result<(), Error> {
    // args(to: i32, len: i32) -> i32: copies at most `len` bytes of the arguments; how many there are.
    linker.func_wrap(MODULE, "args", |mut caller: Caller<'_, Host>, to: i32, len: i32| -> Result<i32, Error> {
        let all = caller.data().args.len();
        let len = (len as u32).min(u32::try_from(all).unwrap_or(u32::MAX));
        pay(&mut caller, len.into())?;
        let (to, host) = own(&mut caller, to, len as i32)?;
        to.copy_from_slice(&host.args[..to.len()]);
        Ok(i32::try_from(all).unwrap_or(i32::MAX))
    })?;
    // answer(from: i32, len: i32): adds bytes to the answer.
    linker.func_wrap(MODULE, "answer", |mut caller: Caller<'_, Host>, from: i32, len: i32| -> Result<(), Error> {
        pay(&mut caller, u64::from(len as u32))?;
        let (from, host) = own(&mut caller, from, len)?;
        let bytes = host.answer.len() + from.len();
        if bytes > ANSWER_BYTES_MAX {
            return Err(stop(Failure::AnswerTooLong { bytes: bytes as u64, max: ANSWER_BYTES_MAX as u64 }));
        }
        host.answer.extend_from_slice(from);
        Ok(())
    })?;
    Ok(())
}

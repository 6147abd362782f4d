//! User kernels: what a module can do, what it cannot, and that it keeps to its slices.
#![cfg(feature = "wasm")]

use kernels::{
    ANSWER_BYTES_MAX, FRAME_VALUES_PER_FUEL, FUEL_MAX, Failure, Job, Library, MODULE_BYTES_MAX, NotAKernel, PART_FUEL,
    Progress, Request, SLICE_FUEL, USER_KERNELS_MAX, UserKernel, View,
};
use shm::Region;

const BYTES: usize = 4096;

fn wasm(body: &str) -> Vec<u8> {
    let imports = r#"
        (import "region" "bytes" (func $bytes (param i32) (result i64)))
        (import "region" "read" (func $read (param i32 i64 i32 i32)))
        (import "region" "write" (func $write (param i32 i64 i32 i32)))
        (import "region" "load" (func $load (param i32 i64) (result i64)))
        (import "region" "store" (func $store (param i32 i64 i64)))
        (import "region" "compare_swap" (func $cas (param i32 i64 i64 i64) (result i64)))
        (import "region" "fetch_add" (func $add (param i32 i64 i64) (result i64)))
        (import "region" "args" (func $args (param i32 i32) (result i32)))
        (import "region" "answer" (func $answer (param i32 i32)))
        (memory (export "memory") 1)"#;
    wat::parse_str(format!("(module {imports} {body})")).unwrap()
}

fn kernel(body: &str) -> UserKernel {
    UserKernel::new(&wasm(body)).unwrap()
}

fn job(body: &str, args: &[u8]) -> Job {
    job_of(body, args, FUEL_MAX)
}

fn job_of(body: &str, args: &[u8], fuel: u64) -> Job {
    let mut library = Library::new();
    assert!(library.install("mine", kernel(body)));
    let request = Request { name: "mine", args }.to_bytes().unwrap();
    Job::begin(&request, &library, fuel, ANSWER_BYTES_MAX).unwrap()
}

fn run(body: &str, args: &[u8], region: &Region) -> Result<Vec<u8>, Failure> {
    job(body, args).finish(&[View::new(region.clone(), true, true)])
}

fn region() -> Region {
    Region::anonymous(BYTES).unwrap()
}

#[test]
fn a_module_reads_changes_and_answers() {
    let region = region();
    region.write(64, &5u64.to_ne_bytes()).unwrap();
    let body = r#"(func (export "run")
        (drop (call $args (i32.const 0) (i32.const 8)))
        (i64.store (i32.const 8) (call $add (i32.const 0) (i64.const 64) (i64.load (i32.const 0))))
        (i64.store (i32.const 16) (call $cas (i32.const 0) (i64.const 64) (i64.const 12) (i64.const 99)))
        (i64.store (i32.const 24) (call $load (i32.const 0) (i64.const 64)))
        (i64.store (i32.const 32) (call $bytes (i32.const 0)))
        (call $store (i32.const 0) (i64.const 72) (i64.const 1))
        (call $write (i32.const 0) (i64.const 80) (i32.const 8) (i32.const 8))
        (call $read (i32.const 0) (i64.const 72) (i32.const 40) (i32.const 16))
        (call $answer (i32.const 8) (i32.const 24))
        (call $answer (i32.const 32) (i32.const 24)))"#;
    let answer = run(body, &7u64.to_ne_bytes(), &region).unwrap();
    let words: Vec<u64> = answer.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
    assert_eq!(words, [5, 12, 99, BYTES as u64, 1, 5]);
}

#[test]
fn a_loop_ends_with_its_fuel_and_keeps_to_its_slices() {
    let views = [View::new(region(), true, true)];
    let mut job = job(r#"(func (export "run") (loop $l (br $l)))"#, &[]);
    let (mut slices, mut total) = (0, 0);
    let failure = loop {
        let (progress, spent) = job.run(&views, SLICE_FUEL);
        // The first pays for the memory of the run too.
        assert!(spent <= if slices == 0 { 40_000 } else { SLICE_FUEL + 64 }, "{spent}");
        (slices, total) = (slices + 1, total + spent);
        match progress {
            Progress::More => {}
            Progress::Failed(failure) => break failure,
            Progress::Done(answer) => panic!("{answer:?}"),
        }
    };
    assert_eq!(failure, Failure::OutOfFuel { limit: FUEL_MAX });
    assert!(slices > 2000 && total <= FUEL_MAX + SLICE_FUEL, "{slices} slices, {total}");
}

#[test]
fn a_long_computation_goes_on_over_slices() {
    let region = region();
    let body = r#"(func (export "run") (local $i i64) (local $sum i64)
        (loop $l
            (local.set $sum (i64.add (local.get $sum) (local.get $i)))
            (local.set $i (i64.add (local.get $i) (i64.const 1)))
            (br_if $l (i64.lt_u (local.get $i) (i64.const 10000))))
        (call $store (i32.const 0) (i64.const 0) (local.get $sum))
        (i64.store (i32.const 0) (local.get $sum))
        (call $answer (i32.const 0) (i32.const 8)))"#;
    let views = [View::new(region.clone(), true, true)];
    let mut job = job(body, &[]);
    let mut slices = 0;
    let answer = loop {
        slices += 1;
        match job.run(&views, SLICE_FUEL).0 {
            Progress::More => {}
            Progress::Done(answer) => break answer,
            Progress::Failed(failure) => panic!("{failure}"),
        }
    };
    assert!(slices > 3, "{slices}");
    assert_eq!(answer, 49_995_000u64.to_ne_bytes());
}

#[test]
fn what_a_module_may_not_do_ends_it() {
    let region = region();
    let failure = |body: &str| run(&format!("(func (export \"run\") {body})"), &[], &region).unwrap_err();
    let outside = |offset, len| Failure::OutOfBounds { offset, len, bytes: BYTES as u64 };
    assert_eq!(failure("(drop (call $load (i32.const 0) (i64.const 4092)))"), outside(4092, 8));
    assert_eq!(failure("(call $store (i32.const 0) (i64.const -8) (i64.const 1))"), outside(u64::MAX - 7, 8));
    let read = "(call $read (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 4097))";
    assert_eq!(failure(read), outside(0, 4097));
    for trap in [
        "unreachable",
        "(drop (i32.load (i32.const 65536)))",
        "(drop (i32.div_u (i32.const 1) (i32.const 0)))",
        "(call $read (i32.const 0) (i64.const 0) (i32.const 65530) (i32.const 8))",
        "(call $answer (i32.const 0) (i32.const -1))",
    ] {
        assert!(matches!(failure(trap), Failure::Trap { .. }), "{trap}: {:?}", failure(trap));
    }
    assert!(matches!(failure("(drop (call $bytes (i32.const 1)))"), Failure::BadArguments { .. }));
    assert!(matches!(
        failure("(drop (call $add (i32.const 0) (i64.const 4) (i64.const 1)))"),
        Failure::BadArguments { .. }
    ));
    let long = Failure::AnswerTooLong { bytes: 897, max: 896 };
    assert_eq!(failure("(call $answer (i32.const 0) (i32.const 897))"), long);
    let deep = r#"(func $f (call $f)) (func (export "run") (call $f))"#;
    assert!(matches!(run(deep, &[], &region), Err(Failure::Trap { .. })));
    let blind = [View::new(region.clone(), true, false)];
    let writes = r#"(func (export "run") (call $store (i32.const 0) (i64.const 0) (i64.const 1)))"#;
    assert_eq!(job(writes, &[]).finish(&blind), Err(Failure::NoRight { right: "write".into() }));
}

#[test]
fn memory_is_bounded() {
    let region = region();
    let grows = r#"(func (export "run")
        (i32.store (i32.const 0) (memory.grow (i32.const 3)))
        (i32.store (i32.const 4) (memory.grow (i32.const 1)))
        (call $answer (i32.const 0) (i32.const 8)))"#;
    let answer = run(grows, &[], &region).unwrap();
    assert_eq!(answer, [1i32.to_le_bytes(), (-1i32).to_le_bytes()].concat(), "4 pages and no more");
    let large = wat::parse_str(r#"(module (memory (export "memory") 5) (func (export "run")))"#).unwrap();
    let mut library = Library::new();
    library.install("large", UserKernel::new(&large).unwrap());
    let request = Request { name: "large", args: &[] }.to_bytes().unwrap();
    let job = Job::begin(&request, &library, FUEL_MAX, ANSWER_BYTES_MAX).unwrap();
    assert!(matches!(job.finish(&[View::new(region, true, true)]), Err(Failure::Trap { .. })));
}

#[test]
fn what_is_no_kernel_is_refused_with_its_reason() {
    let refused = |text: &str| UserKernel::new(&wat::parse_str(text).unwrap()).unwrap_err();
    assert!(matches!(UserKernel::new(b"no wasm"), Err(NotAKernel::Module { .. })));
    assert!(matches!(UserKernel::new(&[]), Err(NotAKernel::Module { .. })));
    // A code section of a thousand bytes that says to have no function, on which the parser panics.
    let mut no_function = b"\0asm\x01\0\0\0\x0a\xe9\x07".to_vec();
    no_function.resize(no_function.len() + 1001, 0);
    assert!(matches!(UserKernel::new(&no_function), Err(NotAKernel::Module { .. })));
    let long = vec![0; MODULE_BYTES_MAX + 1];
    let bytes = long.len();
    assert_eq!(UserKernel::new(&long).unwrap_err(), NotAKernel::TooLong { bytes, max: MODULE_BYTES_MAX });
    assert_eq!(refused("(module)"), NotAKernel::Exports);
    assert_eq!(refused(r#"(module (memory (export "memory") 1))"#), NotAKernel::Exports);
    assert_eq!(refused(r#"(module (func (export "run")))"#), NotAKernel::Exports);
    let run = r#"(memory (export "memory") 1) (func (export "run") (param i32))"#;
    assert_eq!(refused(&format!("(module {run})")), NotAKernel::Exports);
    let foreign = r#"(module (import "wasi" "fd_write" (func)) (memory (export "memory") 1) (func (export "run")))"#;
    assert_eq!(refused(foreign), NotAKernel::Import { import: "wasi.fd_write".into() });
    let memory = r#"(module (import "region" "read" (memory 1)) (func (export "run")))"#;
    assert_eq!(refused(memory), NotAKernel::Import { import: "region.read".into() });
}

#[test]
fn a_library_is_bounded_and_keeps_its_built_in_names() {
    let mut library = Library::new();
    let nothing = kernel(r#"(func (export "run"))"#);
    assert!(!library.install("chain", nothing.clone()));
    for i in 0..USER_KERNELS_MAX {
        assert!(library.install(&format!("k{i}"), nothing.clone()));
    }
    assert!(!library.install("one more", nothing.clone()));
    assert!(library.install("k0", nothing), "one is replaced");
}

const ROUNDS_FUEL: u64 = 1_000_000;

/// How often a module came by, in word 0 of the region, until its fuel was spent.
fn rounds(body: &str) -> u64 {
    let region = region();
    let mut job = job_of(body, &[], ROUNDS_FUEL);
    let views = [View::new(region.clone(), true, true)];
    loop {
        match job.run(&views, SLICE_FUEL).0 {
            Progress::More => {}
            Progress::Failed(Failure::OutOfFuel { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    let mut word = [0; 8];
    region.read(0, &mut word).unwrap();
    u64::from_ne_bytes(word)
}

/// A loop that counts in word 0, with `work` in each round.
fn counting(functions: &str, work: &str) -> String {
    format!(
        r#"{functions} (func (export "run") (loop $l
            (drop (call $add (i32.const 0) (i64.const 0) (i64.const 1))) {work} (br $l)))"#
    )
}

#[test]
fn a_call_pays_for_the_frame_of_the_callee() {
    // Whichever way the frame gets its values, each is written in each call.
    let locals = |n: usize| format!("(func $f (local {}))", "i64 ".repeat(n));
    let constants = |n: usize| {
        let sums = (0..n).map(|i| format!("(i64.xor (i64.const {})) ", (1_u64 << 40) + i as u64)).collect::<String>();
        format!("(func $f (result i64) (i64.const 7) {sums})")
    };
    let deep = |n: usize| {
        let (pushes, pops) = ("memory.size ".repeat(n), "drop ".repeat(n));
        format!("(func $f {pushes} {pops})")
    };
    let table = "(table 1 funcref) (elem (i32.const 0) $f) (type $none (func))";
    for (what, values, functions, call) in [
        ("locals", 15_000, locals(15_000), "(call $f)"),
        ("locals, by a table", 15_000, locals(15_000) + table, "(call_indirect (type $none) (i32.const 0))"),
        ("constants", 3_000, constants(3_000), "(drop (call $f))"),
        ("a deep stack", 500, deep(500), "(call $f)"),
    ] {
        let calls = rounds(&counting(&functions, call));
        let written = calls * values;
        assert!(written <= ROUNDS_FUEL * FRAME_VALUES_PER_FUEL, "{what}: {calls} calls wrote {written} values");
        assert!(calls > 10, "{what}: {calls} calls");
    }
    // What is small costs nothing beside its instructions, and neither does the frame of the entry, which is one.
    let few = rounds(&counting(&locals(20), "(call $f)"));
    assert!(few > ROUNDS_FUEL / 100, "{few} calls");
    let entry = format!(
        r#"(func (export "run") (local {}) (loop $l
            (drop (call $add (i32.const 0) (i64.const 0) (i64.const 1))) (br $l)))"#,
        "i64 ".repeat(10_000)
    );
    let (with, without) = (rounds(&entry), rounds(&counting("", "")));
    assert!(with * 100 > without * 98, "{with} rounds beside {without}");
}

#[test]
fn a_run_pays_for_the_parts_of_its_instance() {
    let spent = |parts: &str| {
        let mut job = job(&format!(r#"{parts} (func (export "run") (loop $l (br $l)))"#), &[]);
        job.run(&[View::new(region(), true, true)], SLICE_FUEL).1
    };
    let bare = spent("");
    for (what, one) in [
        ("globals", "(global i64 (i64.const 1))"),
        (
            "functions",
            "(func (local i64) (local.set 0 (i64.add (i64.const 111111111) (i64.mul (i64.const 1111111111111)
            (i64.add (i64.const 111111111111111) (i64.mul (i64.const 11111111111111) (i64.const 1111111111111)))))))",
        ),
        ("data", r#"(data (i32.const 0) "x")"#),
    ] {
        let more = spent(&one.repeat(500));
        assert!(more >= bare + 500 * PART_FUEL, "{what}: {more} beside {bare}");
    }
}

#[test]
fn a_module_that_takes_long_to_begin_or_to_read_is_refused() {
    let run = r#"(func $run (export "run"))"#;
    let exports: String = (0..2_000).map(|i| format!(r#"(export "{i}" (func $run))"#)).collect();
    let places = format!("(table 1000 funcref) (elem func {})", "$run ".repeat(2_000));
    for (what, parts) in [("exports", exports), ("places", places)] {
        let words = UserKernel::new(&wasm(&format!("{run} {parts}"))).unwrap_err().to_string();
        assert!(words.contains("parts, and 1024 can be"), "{what}: {words}");
    }
    // Each function says in a few bytes how many it has.
    let locals = "(func (local ".to_owned() + &"i64 ".repeat(2_000) + "))";
    let words = UserKernel::new(&wasm(&format!("{run} {}", locals.repeat(40)))).unwrap_err().to_string();
    assert!(words.contains("locals, and 65536 can be"), "{words}");
}

#[test]
fn a_copy_that_is_longer_than_what_is_left_is_paid() {
    // 64 KiB in each round: 16 + 8,192 units.
    let region = Region::anonymous(64 << 10).unwrap();
    let body = r#"(func (export "run") (loop $l
        (call $read (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 65536)) (br $l)))"#;
    let mut job = job_of(body, &[], ROUNDS_FUEL);
    let views = [View::new(region, true, true)];
    let mut slices = 0;
    while let Progress::More = job.run(&views, SLICE_FUEL).0 {
        slices += 1;
    }
    assert!(slices <= ROUNDS_FUEL / 8_192, "{slices} slices, each with a copy at least");
}

//! Speed of copies, rings and doorbells on one core, beside plain slices:
//! `cargo run --release -p shm --example shm_speed`.
use std::hint::black_box;
use std::time::Instant;

use shm::{Doorbell, Region, RingMemory, RingReader, RingWriter, Segment, Sharing};

const ROUNDS: u32 = 20_000;
const RING_BYTES: u64 = 1 << 18;

/// Nanoseconds of one call, best of five runs.
fn ns(mut action: impl FnMut()) -> f64 {
    let run = |action: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| action());
        start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    };
    (0..5).map(|_| run(&mut action)).fold(f64::INFINITY, f64::min)
}

fn main() {
    println!("{:>8} {:>12} {:>12} {:>12} {:>16}", "bytes", "slice ns", "write ns", "read ns", "ring w+r ns");
    let region = Segment::create("shm-speed", 4096 + RING_BYTES, Sharing::ReadWrite).expect("memfd").into_region();
    for len in [8, 64, 512, 4096, 16384, 65536] {
        copies(&region, len);
    }
    let region = Region::anonymous(Doorbell::bytes(65536) as usize).expect("memory");
    let mut doorbell = Doorbell::new(&region, 0, 65536).expect("it fits");
    let flag = Region::anonymous(4).and_then(|flag| flag.word32(0).map_err(std::io::Error::other)).expect("memory");
    let mut slots = Vec::with_capacity(64);
    println!("ring: {:.1} ns", ns(|| doorbell.ring(black_box(77))));
    println!("must_wake: {:.1} ns", ns(|| assert!(!doorbell.must_wake(&flag))));
    println!("empty take of 65536 slots: {:.1} ns", {
        doorbell.take(&mut slots, 64);
        ns(|| assert_eq!(doorbell.take(&mut slots, 64), 0))
    });
    println!(
        "ring and take: {:.1} ns",
        ns(|| {
            slots.clear();
            doorbell.ring(black_box(40_000));
            assert_eq!(doorbell.take(&mut slots, 64), 1);
        })
    );
}

fn copies(region: &Region, len: usize) {
    let (src, mut dst) = (vec![1; len], vec![0; len]);
    let slice = ns(|| black_box(&mut dst[..]).copy_from_slice(black_box(&src)));
    let write = ns(|| region.write(4096, black_box(&src)).expect("it fits"));
    let read = ns(|| region.read(4096, black_box(&mut dst)).expect("it fits"));
    let words = || (region.word64(0).expect("it fits"), region.word64(128).expect("it fits"));
    let memory = RingMemory { region: region.clone(), offset: 4096, bytes: RING_BYTES };
    let ((tail, head), (tail_too, head_too)) = (words(), words());
    head.store(0, std::sync::atomic::Ordering::Relaxed);
    let mut writer = RingWriter::new(memory.clone(), tail, head, 0).expect("it fits");
    let mut reader = RingReader::new(memory, tail_too, head_too, 0).expect("it fits");
    let ring = ns(|| {
        writer.write(black_box(&src)).expect("an honest reader");
        reader.read(black_box(&mut dst)).expect("an honest writer");
    });
    println!("{len:>8} {slice:>12.1} {write:>12.1} {read:>12.1} {ring:>16.1}");
}

//! The model of docs/proof/paper.md of a hardware NIC's caches: `cargo run --release -p sim --example rnic_caches`.

use netmodel::rnic::{ReadLoad, RnicShape, reads};

const QUEUE_PAIRS: [u32; 8] = [1, 10, 100, 400, 600, 1000, 2000, 4000];
/// Figure 6: random blocks of so many bytes, out of a region of so many.
const BLOCK_BYTES: u32 = 64 << 10;
const REGION_BYTES: u64 = 64 << 20;

fn main() {
    println!(
        "| queue pairs | contexts fetched per packet | translations | Gbit/s, one fetch at a time | Gbit/s, 16 at once |"
    );
    println!("|---|---|---|---|---|");
    for queue_pairs in QUEUE_PAIRS {
        let load = ReadLoad { queue_pairs, bytes: BLOCK_BYTES, memory_bytes: REGION_BYTES };
        let [one, many] = [1, RnicShape::CONNECTX_6_FETCHES].map(|n| reads(&RnicShape::connectx_3(n), &load, 1));
        println!(
            "| {queue_pairs} | {:.2} | {:.2} | {:.1} | {:.1} |",
            one.contexts, one.translations, one.gbit_per_s, many.gbit_per_s
        );
    }
}

//! The search of `list.rs` by a kernel at the memory: one round trip for each node of the pool that the list comes by,
//! however long it is.
//!
//! Owns what makes its answer as good as that of READs. The kernel runs for this client, between two looks at the
//! client's lease. So nothing that the kernel came by was used again, if nobody can have taken the client for dead when
//! the answer is there; and the owner of the memory has nothing to announce. A kernel that runs later reads, and changes
//! nothing.

use raas::RegionError;
use raas::kernels::{Begin, Bits, Failure, Links, Pointer, Sorted, Sought};

use crate::client::{Client, Tried};
use crate::error::Error;
use crate::list::{LIFE_AT, MARK};
use crate::memory::Memory;
use crate::ptr::{Address, EPOCH_AT, EPOCH_BITS, NODE_AT, OFFSET_AT, OFFSET_BITS, Ptr, TAG_BITS};

/// Bytes of a value that comes with the answer: with more the answer might not fit into a frame.
const WITH_ANSWER_BYTES: u32 = 864;
/// Times that a list goes over to another node, at most.
const HOPS_MAX: u32 = 1 << 20;

const fn bits(shift: u32, bits: u32) -> Bits {
    Bits { shift: shift as u8, bits: bits as u8 }
}

const LINKS: Links = Links {
    pointer: Pointer { shift: OFFSET_AT as u8, bits: OFFSET_BITS as u8, scale: 3 },
    region: bits(NODE_AT, u64::BITS - NODE_AT),
    life: bits(EPOCH_AT, EPOCH_BITS),
    own_life: bits(LIFE_AT, EPOCH_BITS),
    mark: bits(MARK.trailing_zeros(), 1),
    words: bits(0, TAG_BITS),
};

/// What stands under a key.
#[derive(Debug)]
pub(crate) enum Under {
    Nothing,
    /// The words of its value.
    Value(Vec<u64>),
    /// Where its value is.
    At(Ptr<()>),
}

/// Looks for a key in the list that begins with the link at `head`.
pub(crate) async fn seek<M: Memory>(client: &mut Client<M>, head: Address, key: u64) -> Result<Tried<Under>, Error> {
    let (mut node, mut begin, mut value_bytes_max) = (head.node, Begin::At(head.offset), WITH_ANSWER_BYTES);
    for _ in 0..HOPS_MAX {
        client.touch().await?;
        let search = Sorted { begin, key, region: node.into(), value_bytes_max, links: LINKS };
        let sought = match client.memory().seek(node, &search).await {
            Err(error) => match kernel_failure(&error) {
                // The way to that host has short frames: the value comes by a READ.
                Some(Failure::AnswerTooLong { .. }) if value_bytes_max > 0 => {
                    value_bytes_max = 0;
                    continue;
                }
                Some(Failure::QueueFull { .. }) => return Ok(Tried::Again),
                _ => return Err(error),
            },
            Ok(sought) => sought,
        };
        let under = match sought {
            Sought::Elsewhere { link } => {
                (node, begin) = (Ptr::<()>::from_bits(link).address().node, Begin::With(link));
                continue;
            }
            Sought::Changed => {
                // Only a client that was taken for dead meets a block of another life.
                client.sure().await?;
                return Ok(Tried::Again);
            }
            Sought::Absent => Under::Nothing,
            Sought::There { pointer, value } if value.is_empty() => Under::At(Ptr::from_bits(pointer)),
            Sought::There { value, .. } => Under::Value(words_of(&value)),
        };
        client.sure().await?;
        return Ok(Tried::Done(under));
    }
    Err(Error::Contended { what: "searching a list", attempts: HOPS_MAX })
}

fn words_of(value: &[u8]) -> Vec<u64> {
    let word = |word: &[u8]| u64::from_ne_bytes(word.try_into().unwrap_or_default());
    value.chunks_exact(8).map(word).collect()
}

fn kernel_failure(error: &Error) -> Option<&Failure> {
    match error {
        Error::Region { cause: RegionError::Kernel { failure, .. }, .. } => Some(failure),
        _ => None,
    }
}

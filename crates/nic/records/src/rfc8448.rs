//! The records of "Example Handshake Traces for TLS 1.3" (RFC 8448, section 3): its keys, and bytes of its own.

use crate::{Opener, RECORD_HEAD_BYTES, RECORD_TAIL_BYTES, RecordError, RecordKey, Sealer};

const CLIENT: (&str, &str) = ("17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9");
const SERVER: (&str, &str) = ("9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984");
/// The client's first record: 50 bytes of data.
const CLIENT_DATA: &str = concat!(
    "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2",
    "977014bd1e3deae63aeebb21694915e4",
);
/// Its second one: the alert by which it says that it will send no more.
const CLIENT_ALERT: &str = "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3";
/// The server's second record: the same 50 bytes.
const SERVER_DATA: &str = concat!(
    "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4bf2e5f0a2",
    "1c0047c2abf332540dd032e167c2955d",
);

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn key((key, iv): (&str, &str)) -> RecordKey {
    RecordKey { key: bytes(key).try_into().unwrap(), iv: bytes(iv).try_into().unwrap() }
}

fn data() -> Vec<u8> {
    (0..50).collect()
}

fn fill(opener: &mut Opener, bytes: &[u8]) {
    opener.room()[..bytes.len()].copy_from_slice(bytes);
    opener.fill(bytes.len());
}

#[test]
fn what_is_sealed_is_what_the_rfc_has() {
    for (of, before, expected) in [(CLIENT, 0, CLIENT_DATA), (SERVER, 1, SERVER_DATA)] {
        let mut sealer = Sealer::new(key(of));
        for number in 0..=before {
            let mut record = [vec![0; RECORD_HEAD_BYTES], data(), vec![0; RECORD_TAIL_BYTES]].concat();
            sealer.seal(&mut record).unwrap();
            assert_eq!(record == bytes(expected), number == before);
        }
    }
}

#[test]
fn data_of_the_rfc_is_opened_and_its_alert_ends_the_stream() {
    let mut opener = Opener::new(key(CLIENT));
    fill(&mut opener, &[bytes(CLIENT_DATA), bytes(CLIENT_ALERT)].concat());
    assert_eq!(opener.open(), Ok(true));
    assert_eq!(opener.bytes(), data());
    opener.consume(50);
    assert_eq!(opener.open(), Err(RecordError::Content { number: 1, found: 21 }));
}

/// What only a peer with the keys can send, and no release does.
#[test]
fn padding_and_content_without_bytes_are_refused() {
    for (content, told) in [
        (vec![7, 23, 0], RecordError::Content { number: 0, found: 0 }),
        (vec![7, 22], RecordError::Content { number: 0, found: 22 }),
        (vec![0, 0, 0], RecordError::Content { number: 0, found: 0 }),
        (vec![23], RecordError::Length { number: 0, bytes: 17 }),
    ] {
        let key = key(CLIENT);
        let head = [23, 3, 3, 0, content.len() as u8 + 16];
        let mut body = content;
        let tag = key.cipher().seal(key.nonce(0), &head, &mut body).unwrap();
        let mut opener = Opener::new(key);
        fill(&mut opener, &[&head[..], &body, &tag].concat());
        assert_eq!(opener.open(), Err(told));
        assert!(opener.bytes().is_empty());
    }
}

//! Frames of the control link on a plain socket, and the messages of its handshake.

use std::io::{Read, Write};
use std::net::TcpStream;

use control::{PeerMessage, decode, encode, frame_length, with_length};

/// One frame from a connection; none at its end.
pub(crate) fn read_frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).ok()?;
    let mut frame = vec![0; frame_length(prefix).ok()?];
    stream.read_exact(&mut frame).ok()?;
    Some(frame)
}

/// Whether it could be written: the side that closed does not want it any more.
pub(crate) fn write_frame(stream: &mut TcpStream, frame: &[u8]) -> bool {
    stream.write_all(&with_length(frame)).is_ok()
}

/// One message of a handshake from a connection; none at its end.
pub(crate) fn read_message(stream: &mut TcpStream) -> Option<PeerMessage> {
    Some(decode(&read_frame(stream)?).unwrap())
}

pub(crate) fn write_message(stream: &mut TcpStream, message: &PeerMessage) {
    write_frame(stream, &encode(message).unwrap());
}

#!/usr/bin/python3
"""Checks every MPA frame and FPDU of the iWARP connections in classic pcap files of Ethernet frames, IPv4 and IPv6.

Independent of the project's code: TCP is put together, MPA, DDP and RDMAP headers are read and the CRC32C is computed here
(RFC 5044, 6581, 5041, 5040). Prints `PASS file` or `FAIL file: ...` per file, with --opcodes a PASS or FAIL for each that must
be there, and with --terminates the same for the first four bytes of Terminate messages.
--active FROM-TO and --passive FROM-TO name the listening ports (TO excluded) at which that end must pad with zeros.
--spoiled PORT: the connections to that port hold a CRC that was spoiled on purpose.
--counts OUT writes the number of FPDUs of each opcode.
--vectors OUT writes the start frames and the shortest FPDU of each kind as hexadecimal lines, for tests of codecs.
"""
import collections
import struct
import sys

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)

REQUEST, REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
MARKERS, CRC, REJECT, ENHANCED = 0x8000, 0x4000, 0x2000, 0x1000
NAMES = {0: "write", 1: "read-request", 2: "read-response", 3: "send", 4: "send-invalidate", 5: "send-solicited",
         6: "send-solicited-invalidate", 7: "terminate", 8: "immediate", 9: "immediate-solicited", 10: "atomic-request",
         11: "atomic-response"}
TAGGED = {0, 2}
QUEUES = {1: 1, 7: 2, 10: 1, 11: 3}
UNTAGGED_HEADER, TAGGED_HEADER = 18, 14  # DDP, without the two bytes of the length


class Bad(Exception):
    pass


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def frames(data):
    if struct.unpack("<I", data[:4])[0] != 0xA1B2C3D4:
        raise ValueError("not a little-endian classic pcap file")
    at = 24
    while at + 16 <= len(data):
        captured, whole = struct.unpack("<II", data[at + 8 : at + 16])
        if captured != whole:
            raise ValueError(f"a frame of {whole} bytes was captured with {captured}")
        yield data[at + 16 : at + 16 + captured]
        at += 16 + captured


def segment(frame):
    """((source, destination), sequence, flags, payload) of a TCP segment; None if the frame is none."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and frame[23] == 6:
        ip, end = (frame[14] & 15) * 4 + 14, 14 + struct.unpack(">H", frame[16:18])[0]
        ends = (frame[26:30], frame[30:34])
    elif kind == b"\x86\xdd" and frame[20] == 6:
        ip, end = 54, 54 + struct.unpack(">H", frame[18:20])[0]
        ends = (frame[22:38], frame[38:54])
    else:
        return None
    source, destination, sequence = struct.unpack(">HHI", frame[ip : ip + 8])
    start = ip + (frame[ip + 12] >> 4) * 4
    return ((ends[0], source), (ends[1], destination)), sequence, frame[ip + 13], frame[start:end]


def streams(data):
    """The bytes of each direction of each connection, in the order in which the connections began."""
    found = {}
    latest = {}
    for frame in frames(data):
        parts = segment(frame)
        if parts is None:
            continue
        way, sequence, flags, payload = parts
        if flags & 2:  # SYN: a port may be used again
            count = latest.get(way, (None, 0))[1] + 1
            latest[way] = (sequence, count)
            found[way, count] = {}
        if way not in latest or not payload:
            continue
        first, count = latest[way]
        found[way, count].setdefault(sequence - first - 1 & 0xFFFFFFFF, []).append(payload)
    return {key: assembled(pieces) for key, pieces in found.items()}


def assembled(pieces):
    whole = bytearray()
    for at in sorted(pieces):
        for payload in pieces[at]:
            if at > len(whole):
                raise Bad(f"{at - len(whole)} bytes at {len(whole)} are missing in the capture")
            whole += payload[len(whole) - at :]
    return bytes(whole)


def start_frame(data, key):
    if data[:16] != key:
        return None
    flags, length = struct.unpack(">HH", data[16:20])
    if len(data) < 20 + length:
        raise Bad(f"a start frame of {20 + length} bytes ends after {len(data)}")
    revision = flags & 0xFF
    if revision not in (1, 2) or (flags & ENHANCED and (revision != 2 or length < 4)) or flags & 0x0700:
        raise Bad(f"start frame with flags {flags:#06x} and {length} bytes of private data")
    return flags, data[20 : 20 + length], data[20 + length :]


class Way:
    """One direction of a connection after its start frames."""

    def __init__(self, seen, crc, strict, spoiled):
        self.seen, self.crc, self.strict, self.spoiled = seen, crc, strict, spoiled
        self.messages = collections.Counter()
        self.offset = {}
        self.open = {}

    def fpdu(self, data):
        """Judges the first FPDU of `data` and returns its length; 0 if the capture ends within it."""
        if len(data) < 2:
            return 0
        length = struct.unpack(">H", data[:2])[0]
        padded = (2 + length + 3) & ~3
        if len(data) < padded + 4:
            return 0
        if length < TAGGED_HEADER:
            raise Bad(f"ULPDU of {length} bytes")
        control, rdmap = data[2], data[3]
        opcode = rdmap & 15
        name = NAMES.get(opcode)
        if control & 3 != 1 or rdmap >> 6 != 1 or control & 0x3C or rdmap & 0x30 or name is None:
            raise Bad(f"control bytes {data[2:4].hex()}")
        if bool(control & 0x80) != (opcode in TAGGED):
            raise Bad(f"{name} in the wrong buffer model")
        if data[2 + length : padded].strip(b"\0"):
            # RFC 5044 4.1 wants zeros; siw sends what it has in its buffer, and receivers look past it.
            if self.strict:
                raise Bad(f"padding of {name} is {data[2 + length:padded].hex()}")
            self.seen.odd_padding += 1
        wanted = crc32c(data[:padded]) if self.crc else bytes(4)
        if data[padded : padded + 4] != wanted:
            if not self.spoiled:
                raise Bad(f"CRC of {name} is {data[padded:padded + 4].hex()}, not {wanted.hex()}")
            self.seen.spoiled += 1
        if control & 0x80:
            self.tagged(name, control, data, length - TAGGED_HEADER)
        else:
            self.untagged(name, opcode, control, data, length - UNTAGGED_HEADER)
        self.seen.take(name, self.crc, data[: padded + 4])
        return padded + 4

    def tagged(self, name, control, data, payload):
        place = struct.unpack(">IQ", data[4:16])
        if self.open.get("tagged", (name, place)) != (name, place):
            raise Bad(f"{name} at {place} goes on {self.open['tagged']}")
        if control & 0x40:
            self.open.pop("tagged", None)
        else:
            self.open["tagged"] = (name, (place[0], place[1] + payload))

    def untagged(self, name, opcode, control, data, payload):
        if payload < 0:
            raise Bad(f"{name} with half a header")
        queue, number, offset = struct.unpack(">III", data[8:20])
        wanted = QUEUES.get(opcode, 0)
        if queue != wanted or number != self.messages[queue] + 1 or offset != self.offset.get(queue, 0):
            raise Bad(f"{name} on queue {queue} with message {number} offset {offset}")
        if control & 0x40:
            self.messages[queue] += 1
            self.offset[queue] = 0
        else:
            self.offset[queue] = offset + payload
        if opcode == 1 and payload != 28:
            raise Bad(f"read request with {payload} bytes")
        if opcode == 7:
            self.seen.terminates[data[20:24].hex()] += 1


class Seen:
    """What a capture showed."""

    def __init__(self):
        self.opcodes = collections.Counter()
        self.terminates = collections.Counter()
        self.starts = collections.Counter()
        self.vectors = {}
        self.cut = self.odd_padding = self.spoiled = 0

    def take(self, name, crc, data):
        self.opcodes[name] += 1
        code = f"-{data[20:24].hex()}" if name == "terminate" else ""
        self.vector(f"{name}{code}{'-crc' if crc else ''}", data)

    def vector(self, name, data):
        if name not in self.vectors or len(data) < len(self.vectors[name]):
            self.vectors[name] = data

    def start(self, name, flags, data):
        kind = f"{name}-rev{flags & 255}"
        for bit, text in ((MARKERS, "markers"), (CRC, "crc"), (REJECT, "reject"), (ENHANCED, "enhanced")):
            kind += f"-{text}" if flags & bit else ""
        if flags & ENHANCED and data[20] & 0x80:
            kind += "-p2p"
        self.starts[kind] += 1
        self.vector(kind, data)


def check(path, seen, strict, spoiled_port):
    with open(path, "rb") as file:
        found = streams(file.read())
    for (way, count), data in found.items():
        request = start_frame(data, REQUEST)
        if request is None:
            continue
        flags, private, rest = request
        seen.start("request", flags, data[: 20 + len(private)])
        answers = found.get((way[::-1], count), b"")
        reply = start_frame(answers, REPLY)
        if reply is None:
            if rest or answers:
                raise Bad(f"{len(rest)} bytes after a request that has no reply but {answers[:20].hex()}")
            continue
        reply_flags, reply_private, reply_rest = reply
        seen.start("reply", reply_flags, answers[: 20 + len(reply_private)])
        if reply_flags & REJECT:
            continue
        crc = bool((flags | reply_flags) & CRC)
        for side, bytes_left in (("active", rest), ("passive", reply_rest)):
            judge = Way(seen, crc, way[1][1] in strict.get(side, ()), side == "active" and way[1][1] == spoiled_port)
            while True:
                try:
                    taken = judge.fpdu(bytes_left)
                except Bad as error:
                    raise Bad(f"{side} end of port {way[1][1]}: {error}") from error
                if taken == 0:
                    break
                bytes_left = bytes_left[taken:]
            # A connection that is broken off may end within an FPDU.
            seen.cut += bool(bytes_left)


def main():
    arguments = sys.argv[1:]
    options, strict = {}, {}
    while arguments[0].startswith("--"):
        options[arguments[0]] = arguments[1]
        arguments = arguments[2:]
    for side in ("active", "passive"):
        if f"--{side}" in options:
            strict[side] = range(*map(int, options[f"--{side}"].split("-")))
    spoiled_port = int(options.get("--spoiled", 0))
    every = Seen()
    bad = 0
    for path in arguments:
        seen, name = Seen(), path.rsplit("/", 1)[-1]
        try:
            check(path, seen, strict, spoiled_port)
            if not seen.opcodes:
                raise Bad("no FPDU")
            if spoiled_port and not seen.spoiled:
                raise Bad(f"no wrong CRC toward port {spoiled_port}")
        except (Bad, ValueError, struct.error, IndexError) as error:
            print(f"FAIL fpdu/{name}: {error}")
            bad = 1
            continue
        text = " ".join(f"{kind}:{n}" for kind, n in sorted((seen.opcodes + seen.starts).items()))
        ends = " ".join(f"{code}:{n}" for code, n in sorted(seen.terminates.items()))
        print(f"PASS fpdu/{name} ({text}; terminates {ends or 'none'}; {seen.cut} streams end within an FPDU; "
              f"{seen.odd_padding} with padding that is not zero)")
        every.opcodes += seen.opcodes
        every.terminates += seen.terminates
        for kind, data in seen.vectors.items():
            every.vector(kind, data)
    for kind in options["--opcodes"].split(",") if "--opcodes" in options else ():
        if every.opcodes[kind]:
            print(f"PASS fpdu/{kind} ({every.opcodes[kind]})")
        else:
            print(f"FAIL fpdu/{kind}: never seen")
            bad = 1
    for code in options["--terminates"].split(",") if "--terminates" in options else ():
        if every.terminates[code]:
            print(f"PASS fpdu/terminate-{code} ({every.terminates[code]})")
        else:
            print(f"FAIL fpdu/terminate-{code}: never seen, but {dict(every.terminates)}")
            bad = 1
    if "--counts" in options:
        with open(options["--counts"], "w") as file:
            file.writelines(f"{opcode:#04x} {every.opcodes[kind]}\n" for opcode, kind in NAMES.items() if every.opcodes[kind])
    if "--vectors" in options:
        with open(options["--vectors"], "w") as file:
            file.writelines(f"{kind} {data.hex()}\n" for kind, data in sorted(every.vectors.items()))
    sys.exit(bad)


if __name__ == "__main__":
    main()

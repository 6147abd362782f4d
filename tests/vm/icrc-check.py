#!/usr/bin/python3
"""Checks the ICRC of every RoCEv2 packet in classic pcap files of Ethernet frames, IPv4 and IPv6.

Independent of the project's code: what IBTA annex A17.3.3 masks is masked here, and zlib computes the CRC.
Prints `PASS file` or `FAIL file: ...` per file.
"""
import collections
import struct
import sys
import zlib


def frames(data):
    if struct.unpack("<I", data[:4])[0] != 0xA1B2C3D4:
        raise ValueError("not a little-endian classic pcap file")
    at = 24
    while at + 16 <= len(data):
        captured = struct.unpack("<I", data[at + 8 : at + 12])[0]
        yield data[at + 16 : at + 16 + captured]
        at += 16 + captured


def masked(frame):
    """The bytes that the ICRC covers, and the ICRC; None if the frame is no RoCEv2 packet."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and frame[23] == 17:
        ip = bytearray(frame[14 : 14 + struct.unpack(">H", frame[16:18])[0]])
        udp = (ip[0] & 15) * 4
        ip[1] = ip[8] = ip[10] = ip[11] = 0xFF  # type of service, time to live, header checksum
    elif kind == b"\x86\xdd" and frame[20] == 17:
        ip = bytearray(frame[14 : 54 + struct.unpack(">H", frame[18:20])[0]])
        udp = 40
        ip[0] |= 0x0F  # traffic class, flow label
        ip[1] = ip[2] = ip[3] = ip[7] = 0xFF  # and hop limit
    else:
        return None
    if struct.unpack(">H", ip[udp + 2 : udp + 4])[0] != 4791:
        return None
    ip[udp + 6] = ip[udp + 7] = 0xFF  # UDP checksum
    ip[udp + 8 + 4] = 0xFF  # FECN, BECN and reserved bits of the BTH
    return b"\xff" * 8 + bytes(ip[:-4]), bytes(ip[-4:]), ip[udp + 8]


def check(path):
    good, bad, opcodes = 0, 0, collections.Counter()
    with open(path, "rb") as file:
        for frame in frames(file.read()):
            parts = masked(frame)
            if parts is None:
                continue
            covered, icrc, opcode = parts
            if struct.pack("<I", zlib.crc32(covered)) == icrc:
                good += 1
                opcodes[opcode] += 1
            else:
                bad += 1
    seen = " ".join(f"{op:#04x}:{n}" for op, n in sorted(opcodes.items()))
    if bad or not good:
        print(f"FAIL icrc/{path.rsplit('/', 1)[-1]}: {bad} wrong and {good} right ICRCs ({seen})")
        return False
    print(f"PASS icrc/{path.rsplit('/', 1)[-1]} ({good} packets, opcodes {seen})")
    return True


if __name__ == "__main__":
    sys.exit(0 if all([check(path) for path in sys.argv[1:]]) and len(sys.argv) > 1 else 1)

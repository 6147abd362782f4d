"""Hears all packets of the loopback interface; for each line of stdin it says whether they had these bytes so far."""
import select
import socket
import sys

tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
tap.bind(("lo", 0))
heard = bytearray()
print("listens", flush=True)
while True:
    for ready in select.select([tap, sys.stdin], [], [])[0]:
        if ready is tap:
            heard += tap.recv(1 << 17)
            continue
        while select.select([tap], [], [], 0.2)[0]:
            heard += tap.recv(1 << 17)
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        print(line.strip(), "heard" if line.strip().encode() in heard else "silent", flush=True)

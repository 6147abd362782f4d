"""As echo_client.py without waiting for a stream: from an address and port of its own, until its stdin ends."""
import ctypes
import random
import select
import socket
import sys

host, port, own, own_port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
path = getattr(ctypes.CDLL(None), "raas_run_path", None)
connection = socket.create_connection((host, port), source_address=(own, own_port))
random.seed(1)
rounds = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    sent = random.randbytes(random.choice([1, 64, 1000, 4096]))
    connection.sendall(sent)
    got = bytearray()
    while len(got) < len(sent):
        part = connection.recv(len(sent) - len(got))
        assert part, "the end came too early"
        got += part
    assert bytes(got) == sent, "other bytes came back"
    rounds += 1
    if rounds == 1000:
        print("rounds", flush=True)
print("path", path(connection.fileno()) if path else 1, flush=True)

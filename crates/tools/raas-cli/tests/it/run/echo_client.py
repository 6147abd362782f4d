"""Sends pieces of many sizes, and checks that they come back. It waits for a line of stdin before it closes."""
import ctypes
import random
import socket
import sys
import threading

host, port, rounds, want = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
path = getattr(ctypes.CDLL(None), "raas_run_path", None)
connection = socket.create_connection((host, port))
random.seed(1)


def exchange(sent):
    """Writing and reading at once, as a piece may be longer than all buffers."""
    writer = threading.Thread(target=connection.sendall, args=(sent,))
    writer.start()
    got = bytearray()
    while len(got) < len(sent):
        part = connection.recv(len(sent) - len(got))
        assert part, "the end came too early"
        got += part
    writer.join()
    assert bytes(got) == sent, "other bytes came back"


reached = 0
for round in range(rounds):
    exchange(random.randbytes(random.choice([1, 2, 64, 1000, 4096, 70_000, 300_000])))
# The upgrade happens while the connection is used.
while path and want and (reached := path(connection.fileno())) != want:
    exchange(b"once more")
for round in range(rounds):
    exchange(random.randbytes(random.choice([1, 2, 64, 1000, 4096, 70_000, 1_000_000])))
reached = path(connection.fileno()) if path else 1
print("path", reached, connection.getsockname()[1], flush=True)
sys.stdin.readline()
exchange(b"last words")
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b"", "the end"
print("done", flush=True)

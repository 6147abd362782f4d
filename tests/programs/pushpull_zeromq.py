"""ZeroMQ push and pull: workers take pairs and push them on. Usage:
pushpull_zeromq.py server HOST PORT STREAMS | client HOST PORT STREAMS PAIRS ROUNDS

Each of STREAMS streams has two ports, PORT + 2n for pairs and PORT + 2n + 1 for answers."""

import sys
import threading
import time

import zmq

role, host, port, streams = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
context = zmq.Context(2)


def serve(number):
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind(f"tcp://{host}:{port + 2 * number}")
    push.bind(f"tcp://{host}:{port + 2 * number + 1}")
    while True:
        key, value = pull.recv_multipart()
        push.send_multipart([key, value[::-1]])


failures = []


def exchange(number, pairs, rounds):
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    push.connect(f"tcp://{host}:{port + 2 * number}")
    pull.connect(f"tcp://{host}:{port + 2 * number + 1}")
    pull.setsockopt(zmq.RCVTIMEO, 60_000)
    for turn in range(rounds):
        sent = {b"%d" % key: b"%d-%d-%d" % (number, turn, key) for key in range(pairs)}
        for key, value in sent.items():
            push.send_multipart([key, value])
        for _ in range(pairs):
            key, value = pull.recv_multipart()
            if sent.pop(key)[::-1] != value:
                failures.append((turn, key, value))
    push.close()
    pull.close()


if role == "server":
    threads = [threading.Thread(target=serve, args=(number,)) for number in range(streams)]
else:
    pairs, rounds = int(sys.argv[5]), int(sys.argv[6])
    threads = [threading.Thread(target=exchange, args=(number, pairs, rounds)) for number in range(streams)]
begin = time.monotonic()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures[:3]
print(f"speed {streams * pairs * rounds / (time.monotonic() - begin):.0f} pairs/s")

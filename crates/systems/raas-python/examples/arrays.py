"""Moves numpy arrays from one process to another by reference: the bytes stay where the sender computed them.

    python arrays.py receive 7400
    python arrays.py send 127.0.0.1:7400

The sender has a region with room for several arrays. It computes an array in place, lends that part as a message, and goes
on with the next part. The receiver works on the sender's memory and gives it back; only then does the sender use that part
again. On one host no byte is copied; from another host each array is fetched once.
"""

import sys

import numpy

import raas

ROWS, COLUMNS = 512, 512
ARRAYS = 24
PARTS = 4
BYTES = ROWS * COLUMNS * 8


def content(number):
    """What array `number` has: each value is another."""
    return numpy.arange(ROWS * COLUMNS, dtype="f8").reshape(ROWS, COLUMNS) * 0.5 + number * 1e9


def send(host, port):
    name = f"arrays for {host}:{port}"
    with raas.Region.create(name, PARTS * BYTES, access="read") as region:
        with raas.connect_messages((host, port), timeout=60) as messages:
            parts = numpy.frombuffer(region, dtype="f8").reshape(PARTS, ROWS, COLUMNS)
            lent = [None] * PARTS
            for number in range(ARRAYS):
                part = number % PARTS
                if lent[part] is not None:
                    lent[part].wait()
                numpy.copyto(parts[part], content(number))
                lent[part] = messages.lend(region, part * BYTES, BYTES)
            for one in lent:
                one.wait()
        del parts
    print(f"sent {ARRAYS} arrays of {BYTES} bytes")


def receive(port):
    with raas.listen_messages(("0.0.0.0", port)) as listener:
        print(f"listening on {listener.getsockname()[1]}", flush=True)
        messages, _ = listener.accept()
    count = lent = 0
    with messages:
        while (view := messages.receive_view()) is not None:
            with view:
                array = numpy.frombuffer(view, dtype="f8").reshape(ROWS, COLUMNS)
                if not (array == content(count)).all():
                    sys.exit(f"array {count} is not what was sent")
                lent += view.is_lent
                count += 1
                del array
    if count != ARRAYS:
        sys.exit(f"{count} arrays came, not {ARRAYS}")
    print(f"received {count} arrays, {lent} of them without a copy")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        host, _, port = sys.argv[2].rpartition(":")
        send(host, int(port))
    else:
        receive(int(sys.argv[2]))

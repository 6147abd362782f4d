"""The examples do what they say, in processes of their own."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def test_arrays_move_without_a_copy():
    pytest.importorskip("numpy")
    program = [sys.executable, str(EXAMPLES / "arrays.py")]
    with subprocess.Popen([*program, "receive", "0"], stdout=subprocess.PIPE, text=True) as receiver:
        port = receiver.stdout.readline().split()[-1]
        sent = subprocess.run([*program, "send", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=120)
        told, _ = receiver.communicate(timeout=120)
    assert sent.returncode == 0, sent
    assert "sent 24 arrays of 2097152 bytes" in sent.stdout
    assert receiver.returncode == 0 and told == "received 24 arrays, 24 of them without a copy\n"

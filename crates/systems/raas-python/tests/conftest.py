"""A daemon for the tests. `RAAS` names its binary; the package is found by PYTHONPATH."""

import os
import subprocess

import pytest


@pytest.fixture(scope="session", autouse=True)
def daemon(tmp_path_factory):
    """Serves the process-wide session of all tests; ends with them."""
    directory = tmp_path_factory.mktemp("daemon")
    key = directory / "key"
    key.write_bytes(b"7" * 32)
    key.chmod(0o600)
    path = directory / "raasd.sock"
    words = [os.environ["RAAS"], "daemon", "--listen", "127.0.0.1", "--until-stdin-closes"]
    words += ["--socket", str(path), "--key-file", str(key)]
    with open(directory / "log", "wb") as log:
        running = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    ready = running.stdout.readline()
    assert ready.startswith(b"ready"), (directory / "log").read_text()
    os.environ["RAAS_SOCKET"] = str(path)
    yield path
    running.stdin.close()
    assert running.wait(60) == 0
    running.stdout.close()

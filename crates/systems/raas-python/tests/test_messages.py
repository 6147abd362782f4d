"""Messages: boundaries, sizes, and waits."""

import random
import threading

import pytest

import raas


@pytest.fixture
def pair():
    with raas.listen_messages(("127.0.0.1", 0)) as listener:
        client = raas.connect_messages(listener.getsockname(), timeout=60)
        server, _ = listener.accept()
        server.settimeout(60)
        with client, server:
            yield client, server


def test_boundaries_are_kept(pair):
    client, server = pair
    source = random.Random(4)
    sent = [b"", b"one"] + [source.randbytes(source.randrange(20_000)) for _ in range(200)]

    def send():
        for message in sent:
            client.send(message)
        client.close()

    thread = threading.Thread(target=send)
    thread.start()
    assert list(server) == sent
    assert server.receive() is None
    thread.join()


def test_a_message_that_does_not_fit_is_kept(pair):
    client, server = pair
    client.send(b"longer than four")
    with pytest.raises(ValueError) as small:
        server.receive_into(bytearray(4))
    assert small.value.reason == "buffer-too-small"
    room = bytearray(100)
    assert server.receive_into(room) == 16
    assert room[:16] == b"longer than four"
    with pytest.raises(raas.Invalid) as long:
        client.send(bytes(client.len_max + 1))
    assert long.value.reason == "too-long"
    server.settimeout(0)
    with pytest.raises(BlockingIOError):
        server.receive()
    server.settimeout(0.05)
    with pytest.raises(TimeoutError):
        server.receive()

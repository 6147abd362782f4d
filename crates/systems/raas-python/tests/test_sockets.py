"""Sockets: the calls of the standard socket, its exceptions, and its waits."""

import array
import errno
import os
import random
import select
import selectors
import signal
import socket as std
import subprocess
import sys
import threading
import time

import pytest

import raas


@pytest.fixture
def pair():
    with raas.create_server(("127.0.0.1", 0)) as server:
        client = raas.create_connection(server.getsockname(), timeout=30)
        accepted, peer = server.accept()
        accepted.settimeout(30)
        assert peer == client.getsockname() and client.getpeername() == server.getsockname()
        with client, accepted:
            yield client, accepted


def test_bytes_come_as_they_were_sent(pair):
    client, server = pair
    sent = random.Random(1).randbytes(3 << 20)

    def send():
        client.sendall(sent)
        client.shutdown(std.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    got = bytearray()
    while piece := server.recv(100_000):
        got += piece
    thread.join()
    assert got == sent
    assert server.recv(1) == b""
    assert client.path == "shm" and client.reason == "same-host" and client.id > 0


def test_any_buffer_is_sent_and_received_into(pair):
    client, server = pair
    numbers = array.array("d", [1.5, -2.0, 1e300])
    client.sendall(numbers)
    back = array.array("d", [0.0] * 3)
    assert server.recv_into(back, flags=std.MSG_WAITALL) == 24
    assert back == numbers
    client.sendall(memoryview(b"abcdef")[1:4])
    room = bytearray(b"......")
    assert server.recv_into(memoryview(room)[2:]) == 3
    assert room == b"..bcd."
    assert client.send(b"") == 0
    with pytest.raises(TypeError):
        server.recv_into(b"read only")
    with pytest.raises(BufferError):
        client.send(memoryview(b"abcdef")[::2])
    with pytest.raises(ValueError):
        server.recv_into(bytearray(2), 3)
    with pytest.raises(TypeError):
        client.send("text")


def test_peek_and_waitall(pair):
    client, server = pair
    client.sendall(b"hello")
    assert server.recv(2, std.MSG_PEEK) == b"he"
    threading.Timer(0.05, client.sendall, [b" world"]).start()
    assert server.recv(11, std.MSG_WAITALL) == b"hello world"
    with pytest.raises(raas.Error) as refused:
        client.send(b"x", std.MSG_OOB)
    assert refused.value.errno == errno.EOPNOTSUPP


def test_numpy_arrays_are_sent_and_received_into(pair):
    numpy = pytest.importorskip("numpy")
    client, server = pair
    sent = numpy.arange(10_000, dtype="f8").reshape(100, 100)
    thread = threading.Thread(target=client.sendall, args=[sent])
    thread.start()
    got = numpy.empty_like(sent)
    assert server.recv_into(got, flags=std.MSG_WAITALL) == sent.nbytes
    thread.join()
    assert (got == sent).all()


def test_refusals_are_standard_exceptions_with_reasons():
    with raas.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with pytest.raises(OSError) as taken:
            raas.create_server(address)
        assert taken.value.errno == errno.EADDRINUSE and taken.value.reason == "port-in-use"
    with pytest.raises(ConnectionRefusedError) as refused:
        raas.create_connection(address, timeout=30)
    assert isinstance(refused.value, raas.Error) and refused.value.reason == "no-listener"
    assert refused.value.errno == errno.ECONNREFUSED
    assert raas.socket().connect_ex(address) == errno.ECONNREFUSED
    with pytest.raises(ConnectionRefusedError) as kind:
        with raas.listen_messages(("127.0.0.1", 0)) as messages:
            raas.create_connection(messages.getsockname(), timeout=30)
    assert kind.value.reason == "wrong-kind"
    with pytest.raises(FileNotFoundError) as missing:
        raas.Session("/nowhere/raasd.sock")
    assert missing.value.reason == "no-daemon"


def test_ends_and_resets(pair):
    client, server = pair
    client.close()
    assert server.recv(1) == b""
    with pytest.raises(BrokenPipeError):
        for _ in range(1000):
            server.sendall(b"x" * 1000)
    with pytest.raises(OSError) as closed:
        client.send(b"x")
    assert closed.value.errno == errno.EBADF
    assert client.fileno() == -1


def test_timeouts(pair):
    client, server = pair
    server.settimeout(0.05)
    assert server.gettimeout() == 0.05 and server.getblocking()
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        server.recv(1)
    assert time.monotonic() - begin >= 0.05
    # Longer than one wait of the library.
    server.settimeout(0.6)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        server.recv(1)
    assert time.monotonic() - begin >= 0.6
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.sendall(bytes(100 << 20))
    with pytest.raises(ValueError):
        client.settimeout(-1)
    with raas.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_blocking_read_waits_longer_than_one_wait_of_the_library(pair):
    client, server = pair
    server.settimeout(None)
    threading.Timer(0.7, client.sendall, [b"late"]).start()
    assert server.recv(10) == b"late"


def test_other_threads_run_while_one_waits(pair):
    client, server = pair
    got = []
    thread = threading.Thread(target=lambda: got.append(server.recv(5)))
    thread.start()
    # With the interpreter's lock held in `recv` this would never be reached.
    client.sendall(b"there")
    thread.join(30)
    assert got == [b"there"]


def test_signals_are_handled_during_a_wait(pair):
    class Ring(Exception):
        pass

    def ring(*_):
        raise Ring

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Ring):
            pair[0].recv(1)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_nonblocking_and_select(pair):
    client, server = pair
    server.setblocking(False)
    assert select.select([server], [], [], 0)[0] == []
    with pytest.raises(BlockingIOError):
        server.recv(1)
    client.sendall(b"one two")
    assert select.select([server], [], [], 30)[0] == [server]
    assert server.recv(3) == b"one"
    assert select.select([server], [], [], 0)[0] == [server]
    assert server.recv(100) == b" two"
    with pytest.raises(BlockingIOError):
        server.recv(1)
    assert select.select([server], [], [], 0)[0] == []
    assert not server.readiness() & raas.READ and server.readiness() & raas.WRITE


def test_selectors_serve_several_connections():
    """An echo server on one selector, and clients in threads."""
    random_bytes = random.Random(2)
    texts = [random_bytes.randbytes(1 + random_bytes.randrange(200_000)) for _ in range(8)]
    with raas.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        got = {}

        def call(text):
            with raas.create_connection(listener.getsockname(), timeout=60) as client:
                sender = threading.Thread(target=lambda: (client.sendall(text), client.shutdown(std.SHUT_WR)))
                sender.start()
                with client.makefile("rb") as file:
                    got[text] = file.read()
                sender.join()

        threads = [threading.Thread(target=call, args=[text]) for text in texts]
        for thread in threads:
            thread.start()
        ended = 0
        while ended < len(texts):
            events = selector.select(60)
            assert events, "nothing came"
            for key, _ in events:
                sock = key.fileobj
                try:
                    if sock is listener:
                        accepted, _peer = listener.accept()
                        accepted.setblocking(False)
                        selector.register(accepted, selectors.EVENT_READ)
                        continue
                    piece = sock.recv(4096)
                except BlockingIOError:
                    continue
                if piece:
                    sock.settimeout(60)
                    sock.sendall(piece)
                    sock.setblocking(False)
                else:
                    selector.unregister(sock)
                    sock.close()
                    ended += 1
        for thread in threads:
            thread.join(60)
        assert got == {text: text for text in texts}


def test_nonblocking_connect():
    with raas.create_server(("127.0.0.1", 0)) as listener:
        client = raas.socket()
        client.setblocking(False)
        result = client.connect_ex(listener.getsockname())
        while result:
            assert result == errno.EINPROGRESS
            assert select.select([client], [], [], 30)[0]
            result = client.connect_ex(listener.getsockname())
        accepted, _ = listener.accept()
        client.sendall(b"made")
        assert accepted.recv(10) == b"made"
        address = listener.getsockname()
    refused = raas.socket()
    refused.setblocking(False)
    while (result := refused.connect_ex(address)) == errno.EINPROGRESS:
        assert select.select([refused], [], [], 30)[0]
    assert result == errno.ECONNREFUSED


def test_makefile(pair):
    client, server = pair
    with client.makefile("w", encoding="utf-8", newline="\n") as file:
        print("first", file=file)
        print("zweite Zeile: ä", file=file)
        client.close()
        # The file keeps the connection open.
        print("third", file=file)
    with server.makefile("r", encoding="utf-8") as file:
        assert file.readlines() == ["first\n", "zweite Zeile: ä\n", "third\n"]


def test_sendfile(pair, tmp_path):
    client, server = pair
    content = random.Random(3).randbytes(100_000)
    (tmp_path / "file").write_bytes(content)
    with open(tmp_path / "file", "rb") as file:
        assert client.sendfile(file, 1000, 50_000) == 50_000
        assert file.tell() == 51_000
    assert server.recv(50_000, std.MSG_WAITALL) == content[1000:51_000]


def test_a_forked_child_has_a_session_of_its_own(pair):
    client, server = pair
    listener = raas.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(raas.Error) as forked:
                client.send(b"from the child")
            assert forked.value.errno == errno.EOPNOTSUPP, forked.value
            with raas.create_connection(listener.getsockname(), timeout=30) as own:
                own.sendall(b"own")
            code = 0
        finally:
            os._exit(code)
    listener.settimeout(30)
    accepted, _ = listener.accept()
    assert accepted.recv(10, std.MSG_WAITALL) == b"own"
    assert os.waitpid(child, 0)[1] == 0
    client.sendall(b"from the parent")
    assert server.recv(100) == b"from the parent"
    listener.close()


def test_a_peer_that_is_killed_resets():
    script = (
        "import raas, sys\n"
        "s = raas.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=30)\n"
        "s.sendall(b'alive')\n"
        "sys.stdin.read()\n"
    )
    with raas.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        words = [sys.executable, "-c", script, str(listener.getsockname()[1])]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
            accepted, _ = listener.accept()
            assert accepted.recv(5, std.MSG_WAITALL) == b"alive"
            child.kill()
            accepted.settimeout(60)
            with pytest.raises(ConnectionResetError) as reset:
                accepted.recv(1)
            assert reset.value.reason == "peer-app-died"


def test_fallback_to_kernel_tcp():
    with std.create_server(("127.0.0.1", 0)) as plain:
        with pytest.raises(ConnectionRefusedError):
            raas.create_connection(plain.getsockname(), timeout=30)
    with raas.create_server(("127.0.0.1", 0), fallback=True) as listener:
        listener.settimeout(30)
        with std.create_connection(listener.getsockname(), timeout=30) as plain:
            accepted, _ = listener.accept()
            plain.sendall(b"over TCP")
            assert accepted.recv(8, std.MSG_WAITALL) == b"over TCP"
            assert accepted.path == "tcp"


def test_sessions_of_the_programs_own(daemon):
    session = raas.Session(daemon, name="own")
    assert session.is_usable and "127.0.0.1" in session.addresses
    with raas.create_server(("127.0.0.1", 0), session=session) as listener:
        with raas.create_connection(listener.getsockname(), timeout=30, session=session) as client:
            accepted, _ = listener.accept()
            accepted.sendall(b"x")
            assert client.recv(1) == b"x"

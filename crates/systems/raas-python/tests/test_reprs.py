"""What `repr` says: what an object is, its ends, how it is. Never a region's key."""

import asyncio
import os
import re

import raas
import raas.aio
from raas import _raas

HERE = ("127.0.0.1", 0)
END = r"\('127\.0\.0\.1', [1-9]\d*\)"


def says(thing, words):
    kind = type(thing)
    assert re.fullmatch(rf"<{re.escape(kind.__module__)}\.{kind.__name__} {words}>", repr(thing)), repr(thing)


def test_every_class_has_its_own():
    for module in (_raas, raas):
        for name, kind in vars(module).items():
            if isinstance(kind, type) and not issubclass(kind, BaseException):
                assert kind.__repr__ is not object.__repr__, name


def test_connections_of_bytes():
    listener = _raas.Listener(HERE)
    says(listener, f"laddr={END}")
    at = listener.getsockname()
    client = _raas.connect([at], timeout=60)
    server, peer = listener.accept()
    says(client, f"laddr={END} raddr={END} path=shm")
    assert f"laddr={peer!r} raddr={at!r}" in repr(client) and f"laddr={at!r} raddr={peer!r}" in repr(server)
    connecting = _raas.start_connect(at)
    says(connecting, rf"raddr={re.escape(repr(at))}")
    for thing in (client, server, listener, connecting):
        thing.close()
        says(thing, "closed")


def test_sockets():
    with raas.socket() as new:
        assert repr(new) == "<raas.socket new>"
    assert repr(new) == "<raas.socket closed>"
    with raas.create_server(HERE) as listener:
        assert repr(listener) == f"<raas.socket listener laddr={listener.getsockname()!r}>"
        with raas.create_connection(listener.getsockname(), timeout=60) as client:
            ends = f"laddr={client.getsockname()!r} raddr={listener.getsockname()!r}"
            assert repr(client) == f"<raas.socket connection {ends} path=shm>"


def test_messages_by_reference_and_datagrams():
    with raas.listen_messages(HERE) as listener, raas.DatagramSocket(HERE) as datagrams:
        says(listener, f"laddr={END}")
        says(datagrams, f"laddr={END}")
        client = raas.connect_messages(listener.getsockname(), timeout=60)
        server, _ = listener.accept()
        says(client, f"laddr={END} raddr={END} path=shm")
        with raas.Region.create(f"repr-{os.getpid()}", 4096) as region:
            lent = client.lend(region, 0, 100)
            says(lent, "out")
            with server.receive_view() as view:
                says(view, "nbytes=100 lent")
            says(view, "nbytes=100 released")
            assert lent.wait(60)
            says(lent, "back")
        client.send(b"copied")
        says(server.receive_view(), "nbytes=6 copied")
        client.close()
        says(client, "closed")
        server.close()
    says(listener, "closed")
    says(datagrams, "closed")


def test_regions_never_say_their_key():
    name = f"repr \"{os.getpid()}\""
    with raas.Region.create(name, 4096) as region:
        quoted = re.escape(name.replace('"', '\\"'))
        says(region, rf'name="{quoted}" nbytes=4096 epoch=1 access={region.access} owner')
        assert region.key not in repr(region)
        with raas.Region.open(HERE[0], name, region.key, access="read") as other:
            says(other, rf'name="{quoted}" nbytes=4096 epoch=1 access=read')
        batch = raas.Batch()
        batch.fetch_add(region, 0, 1)
        says(batch, "operations=1")
    says(region, "closed")


def test_sessions(daemon):
    session = raas.Session(daemon)
    says(session, rf'socket="{re.escape(str(daemon))}" usable')


def test_tasks():
    async def main():
        server = await raas.aio.start_server(lambda _reader, writer: writer.close(), *HERE)
        at = server.address
        assert repr(server) == f"<raas.aio.Server serving laddr={at!r}>"
        reader, writer = await raas.aio.open_connection(*at)
        ends = f"laddr={writer.get_extra_info('sockname')!r} raddr={at!r} path=shm"
        assert repr(writer.transport) == f"<raas.aio.Transport open {ends}>"
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert repr(writer.transport) == "<raas.aio.Transport closed>"
        server.close()
        assert repr(server) == "<raas.aio.Server closed>"

    asyncio.run(main())

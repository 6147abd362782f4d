"""asyncio: the standard streams and protocols over RaaS."""

import asyncio
import random

import pytest

import raas
import raas.aio

HERE = "127.0.0.1"
LIMIT = 120


def run(main):
    return asyncio.run(asyncio.wait_for(main(), LIMIT))


async def echo(reader, writer):
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    writer.close()


def test_many_connections_echo_at_once():
    source = random.Random(5)
    texts = [source.randbytes(1 + source.randrange(600_000)) for _ in range(20)]

    async def call(address, text):
        reader, writer = await raas.aio.open_connection(*address)
        assert writer.get_extra_info("path") == "shm" and writer.get_extra_info("peername") == address

        async def send():
            writer.write(text)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.ensure_future(send())
        got = await reader.read()
        await sending
        writer.close()
        await writer.wait_closed()
        return got

    async def main():
        async with await raas.aio.start_server(echo, HERE, 0) as server:
            got = await asyncio.gather(*(call(server.address, text) for text in texts))
            assert got == texts
            assert server.is_serving()
        assert not server.is_serving()

    run(main)


def test_lines_go_back_and_forth():
    async def serve(reader, writer):
        async for line in reader:
            writer.write(line.upper())
        writer.close()

    async def main():
        async with await raas.aio.start_server(serve, HERE, 0) as server:
            reader, writer = await raas.aio.open_connection(*server.address)
            for number in range(2000):
                writer.write(b"line %d\n" % number)
                assert await reader.readline() == b"LINE %d\n" % number
            writer.close()

    run(main)


def test_back_pressure_pauses_the_writer():
    async def main():
        may_read = asyncio.Event()
        got = bytearray()
        done = asyncio.Event()

        async def serve(reader, writer):
            await may_read.wait()
            while data := await reader.read(1 << 20):
                got.extend(data)
            done.set()

        async with await raas.aio.start_server(serve, HERE, 0) as server:
            _, writer = await raas.aio.open_connection(*server.address)
            sent = random.Random(6).randbytes(8 << 20)
            writer.write(sent)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(writer.drain(), 0.1)
            assert writer.transport.get_write_buffer_size() > 0
            may_read.set()
            await writer.drain()
            writer.close()
            await done.wait()
            assert got == sent

    run(main)


def test_refusals_resets_and_cancelled_connects():
    async def main():
        async with await raas.aio.start_server(echo, HERE, 0) as server:
            address = server.address
        with pytest.raises(ConnectionRefusedError) as refused:
            await raas.aio.open_connection(*address)
        assert refused.value.reason == "no-listener"

        async def abort(reader, writer):
            await reader.readexactly(1)
            writer.transport.abort()

        async with await raas.aio.start_server(abort, HERE, 0) as server:
            reader, writer = await raas.aio.open_connection(*server.address)
            # More than the peer reads, so that its end is a reset.
            writer.write(bytes(8 << 20))
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                await reader.readexactly(1)
            connecting = asyncio.ensure_future(raas.aio.connect(*server.address))
            await asyncio.sleep(0)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting

    run(main)


def test_the_loop_runs_while_nothing_comes():
    async def main():
        async with await raas.aio.start_server(echo, HERE, 0) as server:
            reader, writer = await raas.aio.open_connection(*server.address)
            waiting = asyncio.ensure_future(reader.read(1))
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert not waiting.done()
            writer.write(b"x")
            assert await waiting == b"x"
            writer.close()

    run(main)

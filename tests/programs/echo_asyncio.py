"""An echo server and its clients on asyncio. Usage: echo_asyncio.py server HOST PORT | client HOST PORT CLIENTS ROUNDS"""

import asyncio
import os
import sys
import time


async def serve(reader, writer):
    while part := await reader.read(65536):
        writer.write(part)
        await writer.drain()
    writer.close()


async def client(host, port, rounds):
    reader, writer = await asyncio.open_connection(host, port)
    for turn in range(rounds):
        message = os.urandom(1 + turn * 37 % 3000)
        writer.write(message)
        assert await reader.readexactly(len(message)) == message
    large = os.urandom(400_000)
    writer.write(large)
    writer.write_eof()
    assert await reader.read(-1) == large
    writer.close()
    await writer.wait_closed()


async def main():
    role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "server":
        server = await asyncio.start_server(serve, host, port)
        await server.serve_forever()
    clients, rounds = int(sys.argv[4]), int(sys.argv[5])
    begin = time.monotonic()
    await asyncio.gather(*(client(host, port, rounds) for _ in range(clients)))
    print(f"speed {clients * rounds / (time.monotonic() - begin):.0f} rounds/s")


asyncio.run(main())

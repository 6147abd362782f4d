"""asyncio over RaaS: the standard streams, transports and protocols, on any event loop that has `add_reader`.

    reader, writer = await raas.aio.open_connection("10.0.0.2", 7000)
    server = await raas.aio.start_server(handle, "0.0.0.0", 7000)

A connection costs one descriptor, which turns readable when the connection's readiness has changed.
"""

from __future__ import annotations

import asyncio
import socket as _std
from typing import Any, Awaitable, Callable, List, Optional, Tuple, Union

from . import _raas
from ._socket import Address, resolve

_READ, _WRITE = 1, 2
#: Reads in one turn of the loop, so that others have theirs.
_READS_MAX = 16
_READ_BYTES = 256 << 10
_HIGH_WATER = 64 << 10

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Union[None, Awaitable[None]]]


class Transport(asyncio.Transport):
    """A connection of bytes, driven by the loop. Made by `create_connection` and by servers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: _raas.Stream, protocol: Any) -> None:
        super().__init__({"peername": stream.getpeername(), "sockname": stream.getsockname(), "path": stream.path})
        self._loop = loop
        self._stream = stream
        self._protocol = protocol
        self._buffer = bytearray()
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._wants_pause = self._paused = self._closing = self._lost = self._at_end = self._ends = False
        self._again: Optional[asyncio.Handle] = None
        stream.settimeout(0)
        self._fd = stream.fileno()
        loop.call_soon(self._begin)

    def __repr__(self) -> str:
        if self._lost:
            return "<raas.aio.Transport closed>"
        return f"<raas.aio.Transport {'closing' if self._closing else 'open'} {repr(self._stream).split(' ', 1)[1]}"

    def _begin(self) -> None:
        if self._lost:
            return
        self._protocol.connection_made(self)
        self._loop.add_reader(self._fd, self._on_change)
        self._on_change()

    # ---- what changed

    def _on_change(self) -> None:
        """The descriptor is readable: asking for the readiness makes it unreadable until the next change."""
        if self._lost:
            return
        ready = self._stream.readiness()
        if ready & _WRITE and self._buffer:
            self._write_on()
        if ready & _READ and not self._paused and not self._at_end and not self._lost:
            self._read_on()

    def _look_again(self) -> None:
        """What is still ready signals nothing."""
        if self._again is None and not self._lost:
            self._again = self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._again = None
        self._on_change()

    def _read_on(self) -> None:
        if self._closing:
            return
        try:
            for _ in range(_READS_MAX):
                data = self._stream.recv(_READ_BYTES)
                if not data:
                    self._at_end = True
                    if not self._protocol.eof_received():
                        self.close()
                    return
                self._protocol.data_received(data)
                if self._paused or self._closing or self._lost:
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {"message": "a protocol failed", "exception": error, "transport": self, "protocol": self._protocol}
            )
            self._fail(error)
            return
        self._look_again()

    # ---- reading

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._look_again()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    # ---- writing

    def write(self, data: Any) -> None:
        if self._ends:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or not data:
            return
        if self._buffer:
            self._buffer += data
        else:
            view = memoryview(data).cast("B")
            try:
                while view:
                    view = view[self._stream.send(view) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self._fail(error)
                return
            self._buffer += view
        self._watermarks()

    def _write_on(self) -> None:
        try:
            while self._buffer:
                with memoryview(self._buffer) as view:
                    count = self._stream.send(view)
                del self._buffer[:count]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)
            return
        self._watermarks()
        if not self._buffer:
            self._written()

    def _written(self) -> None:
        if self._closing:
            self._end(None)
        elif self._ends:
            self._shut()

    def _shut(self) -> None:
        try:
            self._stream.shutdown(_std.SHUT_WR)
        except OSError as error:
            self._fail(error)

    def _watermarks(self) -> None:
        if len(self._buffer) > self._high and not self._wants_pause:
            self._wants_pause = True
            self._protocol.pause_writing()
        elif len(self._buffer) <= self._low and self._wants_pause:
            self._wants_pause = False
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: Optional[int] = None, low: Optional[int] = None) -> None:
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._watermarks()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_write_buffer_limits(self) -> Tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ends and not self._closing:
            self._ends = True
            if not self._buffer:
                self._shut()

    # ---- the end

    def close(self) -> None:
        """Closes when everything is written."""
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._end(None)

    def abort(self) -> None:
        self._end(None)

    def is_closing(self) -> bool:
        return self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def _fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, error: Optional[BaseException]) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._buffer.clear()
        self._loop.remove_reader(self._fd)
        self._loop.call_soon(self._finish, error)

    def _finish(self, error: Optional[BaseException]) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._stream.close()


async def _ready(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    """Waits until a descriptor is readable."""
    waiting = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await waiting
    finally:
        loop.remove_reader(fd)


async def connect(
    host: str, port: int, *, ring_bytes: int = 0, session: Optional[_raas.Session] = None
) -> _raas.Stream:
    """Connects to the first address of a host that answers. Cancelling it stops the connect."""
    loop = asyncio.get_running_loop()
    failed: Optional[OSError] = None
    for to in await loop.run_in_executor(None, resolve, (host, port)):
        connecting = None
        try:
            connecting = _raas.start_connect(to, ring_bytes=ring_bytes, session=session)
            while (stream := connecting.finish()) is None:
                await _ready(loop, connecting.fileno())
            return stream
        except OSError as error:
            failed = error
        finally:
            if connecting is not None:
                connecting.close()
    raise failed or OSError(f"{host} has no address")


async def create_connection(
    protocol_factory: Callable[[], Any], host: str, port: int, **options: Any
) -> Tuple[Transport, Any]:
    """As `loop.create_connection`. Options: `ring_bytes`, `session`."""
    stream = await connect(host, port, **options)
    protocol = protocol_factory()
    return Transport(asyncio.get_running_loop(), stream, protocol), protocol


async def open_connection(
    host: str, port: int, *, limit: int = 1 << 16, **options: Any
) -> Tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`. Options: `ring_bytes`, `session`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await create_connection(lambda: protocol, host, port, **options)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class Server:
    """Listens, and makes a transport of each connection. An asynchronous context manager, as `asyncio.Server`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: _raas.Listener, factory: Callable[[], Any]) -> None:
        self._loop = loop
        self._listener = listener
        self._factory = factory
        self._closed = loop.create_future()
        listener.settimeout(0)
        self._fd = listener.fileno()
        loop.add_reader(self._fd, self._on_change)
        loop.call_soon(self._on_change)

    def __repr__(self) -> str:
        if not self.is_serving():
            return "<raas.aio.Server closed>"
        return f"<raas.aio.Server serving {repr(self._listener).split(' ', 1)[1]}"

    def _on_change(self) -> None:
        if self._closed.done():
            return
        self._listener.readiness()
        try:
            for _ in range(_READS_MAX):
                stream, _peer = self._listener.accept()
                Transport(self._loop, stream, self._factory())
        except BlockingIOError:
            return
        except OSError as error:
            # The daemon was lost: said once. The listener goes on with the next one.
            self._loop.call_exception_handler({"message": "accept failed", "exception": error})
        self._loop.call_soon(self._on_change)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.getsockname()

    def is_serving(self) -> bool:
        return not self._closed.done()

    def close(self) -> None:
        """Accepts no more; connections go on."""
        if not self._closed.done():
            self._loop.remove_reader(self._fd)
            self._listener.close()
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def serve_forever(self) -> None:
        try:
            await asyncio.shield(self._closed)
        finally:
            self.close()

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()


async def create_server(
    protocol_factory: Callable[[], Any],
    host: str,
    port: int,
    *,
    backlog: int = 128,
    ring_bytes: int = 0,
    fallback: bool = False,
    session: Optional[_raas.Session] = None,
) -> Server:
    """As `loop.create_server`, of one address."""
    loop = asyncio.get_running_loop()
    at: List[Address] = await loop.run_in_executor(None, resolve, (host, port))

    def listen() -> _raas.Listener:
        return _raas.Listener(at[0], backlog=backlog, ring_bytes=ring_bytes, fallback=fallback, session=session)

    return Server(loop, await loop.run_in_executor(None, listen), protocol_factory)


async def start_server(
    client_connected: Handler, host: str, port: int, *, limit: int = 1 << 16, **options: Any
) -> Server:
    """As `asyncio.start_server`. Options: those of `create_server`."""
    loop = asyncio.get_running_loop()

    def factory() -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return asyncio.StreamReaderProtocol(reader, client_connected, loop=loop)

    return await create_server(factory, host, port, **options)

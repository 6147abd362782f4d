"""Sockets with the methods of the standard `socket.socket`, over RaaS."""

from __future__ import annotations

import errno
import io
import os
import socket as _std
from typing import Any, List, Optional, Tuple

from . import _errors, _raas

Address = Tuple[str, int]


def resolve(address: Tuple[Any, ...], kind: int = _std.SOCK_STREAM) -> List[Address]:
    """All addresses that a host and a port stand for; an empty host stands for every address of this host."""
    host, port = address[0], address[1]
    found = _std.getaddrinfo(host or "0.0.0.0", port, type=kind, flags=0 if host else _std.AI_PASSIVE)
    return list(dict.fromkeys((str(where[0]), int(where[1])) for *_, where in found))


class socket:
    """A connection or a listener, with the methods of `socket.socket`.

    The bytes travel through memory. `fileno()` is a descriptor for waiting alone: it is readable when something can be
    read or accepted (see docs/use/python.md for what select and selectors may expect of it).
    """

    family = _std.AF_INET
    type = _std.SOCK_STREAM
    proto = _std.IPPROTO_TCP

    def __init__(self, *, ring_bytes: int = 0, fallback: bool = False, session: Optional[_raas.Session] = None) -> None:
        self._ring_bytes = ring_bytes
        self._fallback = fallback
        self._session = session
        self._timeout: Optional[float] = _std.getdefaulttimeout()
        self._bound: Optional[Address] = None
        self._native: Any = None
        self._connecting: Optional[_raas.Connecting] = None
        self._to: List[Address] = []
        self._io_refs = 0
        self._closed = False

    @classmethod
    def _of(cls, stream: _raas.Stream) -> "socket":
        made = cls()
        made._native = stream
        if made._timeout is not None:
            stream.settimeout(made._timeout)
        return made

    # ---- which of the two it is

    def _open(self) -> None:
        if self._closed:
            raise _errors.make(errno.EBADF, os.strerror(errno.EBADF))

    def _stream(self) -> _raas.Stream:
        if isinstance(self._native, _raas.Stream):
            return self._native
        self._open()
        raise _errors.make(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    def _listener(self) -> _raas.Listener:
        if isinstance(self._native, _raas.Listener):
            return self._native
        self._open()
        raise _errors.make(errno.EINVAL, "the socket does not listen")

    # ---- listening

    def bind(self, address: Tuple[Any, ...]) -> None:
        """Names the address to listen on. It is taken, or refused, by `listen`."""
        self._open()
        if self._native is not None or self._bound is not None:
            raise _errors.make(errno.EINVAL, "the socket is bound or connected already")
        self._bound = resolve(address)[0]

    def listen(self, backlog: int = 128) -> None:
        self._open()
        if self._bound is None:
            raise _errors.make(errno.EINVAL, "bind the socket to an address first")
        if self._native is None:
            self._native = _raas.Listener(
                self._bound,
                backlog=max(1, backlog),
                ring_bytes=self._ring_bytes,
                fallback=self._fallback,
                session=self._session,
            )
            self._native.settimeout(self._timeout)

    def accept(self) -> Tuple["socket", Address]:
        stream, peer = self._listener().accept()
        return self._of(stream), peer

    # ---- connecting

    def connect(self, address: Tuple[Any, ...]) -> None:
        """Connects to the first address that answers. A socket that does not block raises `BlockingIOError` and goes on
        by itself: call `connect` again when `fileno()` is readable."""
        self._open()
        if self._native is not None:
            raise _errors.make(errno.EISCONN, os.strerror(errno.EISCONN))
        if self._bound is not None:
            raise _errors.make(errno.EOPNOTSUPP, "a socket that is bound listens: the daemon chooses a caller's port")
        if self._timeout == 0:
            return self._connect_later(address)
        self._native = _raas.connect(
            resolve(address),
            timeout=self._timeout,
            ring_bytes=self._ring_bytes,
            fallback=self._fallback,
            session=self._session,
        )
        self._native.settimeout(self._timeout)

    def _connect_later(self, address: Tuple[Any, ...]) -> None:
        if self._connecting is None:
            self._to = resolve(address)
            self._start()
        while True:
            assert self._connecting is not None
            try:
                stream = self._connecting.finish()
            except OSError:
                self._connecting = None
                if not self._to:
                    raise
                self._start()
                continue
            if stream is None:
                raise _errors.make(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
            stream.settimeout(0)
            self._native, self._connecting = stream, None
            return

    def _start(self) -> None:
        to = self._to.pop(0)
        self._connecting = _raas.start_connect(to, ring_bytes=self._ring_bytes, session=self._session)

    def connect_ex(self, address: Tuple[Any, ...]) -> int:
        try:
            self.connect(address)
        except OSError as error:
            if error.errno is None:
                raise
            return error.errno
        return 0

    # ---- bytes

    def send(self, data: Any, flags: int = 0) -> int:
        _refuse(flags & ~_std.MSG_NOSIGNAL)
        return self._stream().send(data)

    def sendall(self, data: Any, flags: int = 0) -> None:
        _refuse(flags & ~_std.MSG_NOSIGNAL)
        self._stream().sendall(data)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        _refuse(flags & ~(_std.MSG_PEEK | _std.MSG_WAITALL))
        if bufsize < 0:
            raise ValueError("negative buffersize in recv")
        if flags & _std.MSG_PEEK:
            return self._stream().peek(bufsize)
        if not flags & _std.MSG_WAITALL:
            return self._stream().recv(bufsize)
        room = bytearray(bufsize)
        return bytes(room[: self.recv_into(room, flags=flags)])

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        _refuse(flags & ~_std.MSG_WAITALL)
        if nbytes < 0:
            raise ValueError("negative buffersize in recv_into")
        if not flags & _std.MSG_WAITALL:
            return self._stream().recv_into(buffer, nbytes)
        room = memoryview(buffer).cast("B")
        room = room[: nbytes or len(room)]
        done = 0
        while done < len(room):
            count = self._stream().recv_into(room[done:])
            if count == 0:
                break
            done += count
        return done

    def sendfile(self, file: Any, offset: int = 0, count: Optional[int] = None) -> int:
        """Sends a file opened for bytes, from `offset` on, and returns how many bytes it was."""
        if self._timeout == 0:
            raise ValueError("non-blocking sockets are not supported")
        file.seek(offset)
        sent, piece = 0, memoryview(bytearray(256 << 10))
        while count is None or sent < count:
            got = file.readinto(piece[: len(piece) if count is None else min(len(piece), count - sent)])
            if not got:
                break
            self.sendall(piece[:got])
            sent += got
        file.seek(offset + sent)
        return sent

    def shutdown(self, how: int) -> None:
        self._stream().shutdown(how)

    # ---- waiting

    def settimeout(self, value: Optional[float]) -> None:
        if value is not None and value < 0:
            raise ValueError("Timeout value out of range")
        self._timeout = None if value is None else float(value)
        if self._native is not None:
            self._native.settimeout(self._timeout)

    def gettimeout(self) -> Optional[float]:
        return self._timeout

    @property
    def timeout(self) -> Optional[float]:
        return self._timeout

    def setblocking(self, flag: bool) -> None:
        self.settimeout(None if flag else 0.0)

    def getblocking(self) -> bool:
        return self._timeout != 0

    def fileno(self) -> int:
        if self._connecting is not None:
            return self._connecting.fileno()
        return -1 if self._native is None else self._native.fileno()

    def readiness(self) -> int:
        """What can be done without waiting, as bits: `raas.READ`, `WRITE`, `HUP`, `ERR`. `fileno()` turns readable when
        that changes."""
        self._open()
        return 0 if self._native is None else self._native.readiness()

    # ---- what it is

    def getsockname(self) -> Address:
        self._open()
        if self._native is not None:
            address: Address = self._native.getsockname()
            return address
        return self._bound or ("0.0.0.0", 0)

    def getpeername(self) -> Address:
        return self._stream().getpeername()

    @property
    def path(self) -> str:
        """How the bytes travel: `shm`, `lane`, `leased`, `tcp-direct` or `tcp`."""
        return self._stream().path

    @property
    def reason(self) -> str:
        """Why they travel that way: a key of docs/reasons.md."""
        return self._stream().reason

    @property
    def id(self) -> int:
        """The connection's number, as in `raas ss`."""
        return self._stream().id

    def setsockopt(self, level: int, option: int, value: Any, optlen: Optional[int] = None) -> None:
        """Accepts what has no effect here (`TCP_NODELAY`, `SO_REUSEADDR`, `SO_KEEPALIVE`), and refuses the rest."""
        if (level, option) not in _HARMLESS:
            raise _errors.make(errno.ENOPROTOOPT, f"RaaS has no socket option {option} of level {level}")

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> int:
        if (level, option) == (_std.SOL_SOCKET, _std.SO_ERROR):
            return 0
        if (level, option) == (_std.SOL_SOCKET, _std.SO_TYPE):
            return int(_std.SOCK_STREAM)
        if (level, option) not in _HARMLESS:
            raise _errors.make(errno.ENOPROTOOPT, f"RaaS has no socket option {option} of level {level}")
        return 1

    # ---- files

    def makefile(
        self,
        mode: str = "r",
        buffering: Optional[int] = None,
        *,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> Any:
        """A file of the connection, as `socket.socket.makefile`."""
        if not set(mode) <= {"r", "w", "b"}:
            raise ValueError(f"invalid mode {mode!r} (only r, w, b allowed)")
        writing = "w" in mode
        reading = "r" in mode or not writing
        raw = _std.SocketIO(self, ("r" if reading else "") + ("w" if writing else ""))  # type: ignore[arg-type]
        self._io_refs += 1
        if buffering is None or buffering < 0:
            buffering = io.DEFAULT_BUFFER_SIZE
        if buffering == 0:
            if "b" not in mode:
                raise ValueError("unbuffered streams must be binary")
            return raw
        buffer: Any
        if reading and writing:
            buffer = io.BufferedRWPair(raw, raw, buffering)
        elif reading:
            buffer = io.BufferedReader(raw, buffering)
        else:
            buffer = io.BufferedWriter(raw, buffering)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding, errors, newline)
        text.mode = mode  # type: ignore[misc]
        return text

    def _decref_socketios(self) -> None:
        self._io_refs = max(0, self._io_refs - 1)
        if self._closed and self._io_refs == 0:
            self._really_close()

    # ---- the end

    def close(self) -> None:
        """Closes it; if files of `makefile` are open, when the last of them is closed."""
        self._closed = True
        if self._io_refs == 0:
            self._really_close()

    def _really_close(self) -> None:
        native, self._native = self._native, None
        connecting, self._connecting = self._connecting, None
        for held in (native, connecting):
            if held is not None:
                held.close()

    def __enter__(self) -> "socket":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native is None:
            state = "closed" if self._closed else "connecting" if self._connecting is not None else "new"
            return f"<raas.socket {state}>"
        kind = "connection" if isinstance(self._native, _raas.Stream) else "listener"
        return f"<raas.socket {kind} {repr(self._native).split(' ', 1)[1]}"


_HARMLESS = {
    (_std.IPPROTO_TCP, _std.TCP_NODELAY),
    (_std.SOL_SOCKET, _std.SO_REUSEADDR),
    (_std.SOL_SOCKET, _std.SO_REUSEPORT),
    (_std.SOL_SOCKET, _std.SO_KEEPALIVE),
}


def _refuse(flags: int) -> None:
    if flags:
        raise _errors.make(errno.EOPNOTSUPP, f"RaaS does not have these flags: {flags:#x}")


def create_connection(address: Tuple[Any, ...], timeout: Optional[float] = None, **options: Any) -> socket:
    """Connects to a host and a port. Options: those of `socket`."""
    made = socket(**options)
    if timeout is not None:
        made.settimeout(timeout)
    try:
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def create_server(address: Tuple[Any, ...], *, backlog: int = 128, **options: Any) -> socket:
    """Listens on a host and a port; an empty host is every address of this host. Options: those of `socket`."""
    made = socket(**options)
    try:
        made.bind(address)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made


def connect_messages(
    address: Tuple[Any, ...],
    timeout: Optional[float] = None,
    *,
    ring_bytes: int = 0,
    session: Optional[_raas.Session] = None,
) -> _raas.MessageStream:
    """Connects to a listener for messages. `timeout` bounds the connecting, and then each call."""
    made = _raas.connect_messages(resolve(address), timeout=timeout, ring_bytes=ring_bytes, session=session)
    made.settimeout(timeout)
    return made


def listen_messages(
    address: Tuple[Any, ...],
    *,
    backlog: int = 128,
    ring_bytes: int = 0,
    session: Optional[_raas.Session] = None,
) -> _raas.MessageListener:
    """Listens for connections of messages."""
    return _raas.MessageListener(resolve(address)[0], backlog=backlog, ring_bytes=ring_bytes, session=session)

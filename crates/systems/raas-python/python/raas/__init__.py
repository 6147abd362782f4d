"""RDMA as a Service: sockets, messages and shared memory between programs of one host or of several.

A daemon runs on each host (`raas daemon`). `raas.socket` has the methods of the standard socket:

    with raas.create_connection(("10.0.0.2", 7000)) as sock:
        sock.sendall(b"hello")
        print(sock.recv(100), sock.path)

docs/use/python.md says what else there is, and what the package does not do.
"""

from . import _raas
from ._errors import (
    BrokenPipe,
    ConnectionAborted,
    ConnectionRefused,
    ConnectionReset,
    Denied,
    Error,
    Exists,
    Invalid,
    NotFound,
    Revoked,
    TimedOut,
    WouldBlock,
)
from ._raas import Batch, DatagramSocket, Lent, MessageListener, MessageStream, Region, Session, View
from ._socket import connect_messages, create_connection, create_server, listen_messages, socket

__version__ = _raas.RELEASE

#: Bits of `readiness()`: a read, or an accept, returns at once.
READ = 1
#: A write returns at once.
WRITE = 2
#: The peer writes no more.
HUP = 4
#: The connection is broken.
ERR = 8

__all__ = [
    "Batch",
    "BrokenPipe",
    "ConnectionAborted",
    "ConnectionRefused",
    "ConnectionReset",
    "DatagramSocket",
    "Denied",
    "ERR",
    "Error",
    "Exists",
    "HUP",
    "Invalid",
    "Lent",
    "MessageListener",
    "MessageStream",
    "NotFound",
    "READ",
    "Region",
    "Revoked",
    "Session",
    "TimedOut",
    "View",
    "WRITE",
    "WouldBlock",
    "connect_messages",
    "create_connection",
    "create_server",
    "listen_messages",
    "socket",
]

"""The exceptions: each is a `raas.Error`, and also the standard exception of its errno."""

from __future__ import annotations

from typing import Dict, Optional, Type

import errno as _errno


class Error(OSError):
    """What went wrong. `reason` is a stable key, of docs/reasons.md or docs/use/python.md, if there is one.

    `may_have_landed`: of an operation on a region, whether it may have been done although it failed.
    """

    reason: Optional[str] = None
    may_have_landed: bool = False


class ConnectionRefused(Error, ConnectionRefusedError):
    """Nobody listens there, or the peer's daemon said no."""


class ConnectionReset(Error, ConnectionResetError):
    """The connection broke; `reason` says why."""


class ConnectionAborted(Error, ConnectionAbortedError):
    """This host's daemon was lost or stops."""


class BrokenPipe(Error, BrokenPipeError):
    """The peer reads no more."""


class TimedOut(Error, TimeoutError):
    """The time of `settimeout`, or of the call, is over."""


class WouldBlock(Error, BlockingIOError):
    """Nothing can be done without waiting."""


class Denied(Error, PermissionError):
    """Not allowed: by a policy, a key, or the access of a handle."""


class NotFound(Error, FileNotFoundError):
    """There is no daemon, or no region of this name."""


class Exists(Error, FileExistsError):
    """There is a region of this name already."""


class Invalid(Error, ValueError):
    """An argument that cannot be; nothing was done."""


class Revoked(Error):
    """The region was revoked: open it again."""


_CLASSES: Dict[int, Type[Error]] = {
    _errno.ECONNREFUSED: ConnectionRefused,
    _errno.ECONNRESET: ConnectionReset,
    _errno.ECONNABORTED: ConnectionAborted,
    _errno.EPIPE: BrokenPipe,
    _errno.ETIMEDOUT: TimedOut,
    _errno.EAGAIN: WouldBlock,
    _errno.EINPROGRESS: WouldBlock,
    _errno.EALREADY: WouldBlock,
    _errno.EACCES: Denied,
    _errno.EPERM: Denied,
    _errno.ENOENT: NotFound,
    _errno.EEXIST: Exists,
    _errno.EINVAL: Invalid,
    _errno.ESTALE: Revoked,
}


def make(number: int, text: str, reason: Optional[str] = None, may_have_landed: bool = False) -> Error:
    """The exception for an errno."""
    error = _CLASSES.get(number, Error)(number, text)
    error.reason = reason
    error.may_have_landed = may_have_landed
    return error

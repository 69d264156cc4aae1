"""Ports of this machine.

No two processes of a user are given the same port: whoever is given one holds a lock on it until it ends, and by then the server that
the port is for listens there.
"""

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import socket
from collections import deque

from hoss.errors import HossError, InvalidInput

# Below the ports that the system gives to outgoing connections: one of these could take a port before its server does.
_FIRST, _PORTS = 20_000, 12_000
_HELD = 1_000  # a process that was given more has long started the servers of the first
_held: deque[int] = deque()


def free_ports(count: int) -> list[int]:
    """Different ports of loopback that nothing listens on and nobody else was given.

    No seed decides which, so that programs that run side by side with equal seeds do not choose alike. Raises HossError where
    nearly all are taken.
    """
    found: list[int] = []
    with contextlib.ExitStack() as probes:
        for _ in range(_PORTS):
            if len(found) == count:
                return found
            port = _FIRST + secrets.randbelow(_PORTS)
            probe = probes.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                if _hold(port):
                    found.append(port)
    raise HossError(f"nearly all ports of loopback from {_FIRST} to {_FIRST + _PORTS} are in use; stop what holds them")


def _hold(port: int) -> bool:
    """Whether the port is this process's from now on: one byte of a file stands for each port."""
    if port in _held:
        return False
    lock = _lock_file()
    if lock is not None:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
    _held.append(port)
    if len(_held) > _HELD:
        oldest = _held.popleft()
        if lock is not None:
            fcntl.lockf(lock, fcntl.LOCK_UN, 1, oldest)
    return True


@functools.cache
def _lock_file() -> int | None:
    """None where there can be none: then chance alone keeps processes apart."""
    path = f"/tmp/hoss-ports-{os.getuid()}"  # noqa: S108 - one for all, whatever TMPDIR each has; links are not followed
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return None


def check_free(port: int, *, where: str) -> None:
    """Before anything is started for nothing. Raises InvalidInput where the port is taken or not for us; 0 is always free."""
    if not port:
        return
    with socket.socket() as probe:
        # As servers do: connections of the last one may linger.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            taken = exc.errno == errno.EADDRINUSE
            problem = "is in use: stop what holds it" if taken else f"cannot be had ({exc.strerror})"
            raise InvalidInput(f"{port} {problem}, or leave the option out for a free one", where=where) from exc

"""Free ports of this machine.

No two processes of a user get the same port. A process holds a lock on the port that it got until it ends; by
then the server that the port is for listens there."""

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import socket
import tempfile
from collections import deque

from hoss.errors import HossError, InvalidInput

# Below the ports of outgoing connections: such a connection could take a port before its server does. A
# Redis of a Cluster also listens 10,000 above its own port, so nobody is given a port that far above another.
_FIRST, _PORTS = 20_000, 10_000
_HELD = 1_000  # locks of one process; by the time that it needs more, the oldest ports have their servers
_held: deque[int] = deque()
_CONNECT_SECONDS = 10.0
_OUTGOING = 16  # ports of the system's choice at once: a small platform has more


def free_ports(count: int) -> list[int]:
    """Different ports of loopback that nothing listens on and no other process of this user got.

    The choice does not depend on a seed: programs that run side by side with equal seeds must not choose
    alike. Raises HossError where nearly all ports are taken."""
    found: list[int] = []
    with contextlib.ExitStack() as probes:
        for _ in range(_PORTS):
            if len(found) == count:
                break
            port = _FIRST + secrets.randbelow(_PORTS)
            # The lock comes first: a probe of another process's port could be what its server finds there.
            if not _hold(port):
                continue
            with contextlib.ExitStack() as tried:
                tried.callback(_release, port)
                probe = tried.enter_context(socket.socket())  # fails where no more files may be opened
                with contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    tried.pop_all()
                    probes.enter_context(probe)
                    found.append(port)
    if len(found) < count:
        raise HossError(
            f"nearly all ports of loopback from {_FIRST} to {_FIRST + _PORTS} are in use; stop what"
            " holds them"
        )
    return found


def check_loopback() -> None:
    """Raise HossError where processes of this machine cannot talk to each other over loopback. Without this
    check they wait for each other, and each ends with another message."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(_OUTGOING + 1)]
        *listening, calling = sockets
        try:
            for each in listening:
                each.bind(("127.0.0.1", 0))
        except OSError as exc:
            if exc.errno == errno.EADDRNOTAVAIL:
                raise _unreachable(exc) from exc
            raise HossError(
                f"the system gives fewer than {_OUTGOING} ports of loopback ({exc.strerror}): end what holds"
                " them, or widen net.ipv4.ip_local_port_range"
            ) from exc
        try:
            listening[0].listen()
            calling.settimeout(_CONNECT_SECONDS)
            calling.connect(listening[0].getsockname())
        except OSError as exc:
            raise _unreachable(exc) from exc


def _unreachable(exc: OSError) -> HossError:
    return HossError(
        f"127.0.0.1 cannot be reached ({exc.strerror or exc}): see that the loopback interface is up (ip link"
        " set lo up) and that no firewall closes it"
    )


def _hold(port: int) -> bool:
    """Whether this process got the lock of a port, which is one byte of a file."""
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
        _release(_held[0])
    return True


def _release(port: int) -> None:
    """Let others have a port that this process holds."""
    _held.remove(port)
    lock = _lock_file()
    if lock is not None:
        fcntl.lockf(lock, fcntl.LOCK_UN, 1, port)


@functools.cache
def _lock_file() -> int | None:
    """None where it cannot be opened: then only chance keeps processes apart."""
    # The first is the same for every TMPDIR; links are not followed.
    for folder in ("/tmp", ""):  # noqa: S108
        with contextlib.suppress(OSError):
            path = f"{folder or tempfile.gettempdir()}/hoss-ports-{os.getuid()}"
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return None


def check_free(port: int, *, where: str) -> None:
    """Raise InvalidInput where a port is in use or not allowed; 0 is always free."""
    if not port:
        return
    with socket.socket() as probe:
        # As servers do: connections of an earlier server may linger.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            taken = exc.errno == errno.EADDRINUSE
            problem = "is in use: stop what holds it" if taken else f"cannot be had ({exc.strerror})"
            raise InvalidInput(
                f"{port} {problem}, or leave the option out for a free one", where=where
            ) from exc

"""Ports of this machine."""

import contextlib
import errno
import secrets
import socket

from hoss.errors import InvalidInput


def free_ports(count: int) -> list[int]:
    """Different ports of loopback that nothing listens on, below those that the system gives to outgoing connections: one of
    these could take a port before the server does that it is for. No seed decides which, so that programs that run side by
    side with equal seeds do not choose alike."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            port = 20_000 + secrets.randbelow(12_000)
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


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

"""HOSS: many schedulers, one ledger. This package holds what the services share."""

import os
from functools import cache


@cache
def version() -> str:
    """The installed version of HOSS."""
    from importlib.metadata import version as installed  # noqa: PLC0415 - a slow import that few calls need

    return installed("hoss")


def speak_tls_1_3_alone() -> None:
    """Have gRPC refuse TLS 1.2 in this process. gRPC reads this when it is imported, so services call it
    before.

    gRPC for Python has no setting for the least version. BoringSSL chooses these suites for TLS 1.2 alone,
    and this one needs a shared key that nobody has: no handshake of TLS 1.2 succeeds."""
    os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305")


def quieten_grpc() -> None:
    """Have gRPC log errors alone in this process. It reads this when it is imported.

    Otherwise it writes a line of its own to stderr for each handshake that fails, beside the sentence that a
    user gets, and whoever reaches a service's port could fill its log. GRPC_VERBOSITY=INFO shows them."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

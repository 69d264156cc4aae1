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

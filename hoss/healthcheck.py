"""`python -m hoss.healthcheck HOST:PORT [TLS_DIR [SERVICE]]` exits with 0 if the service there serves: a
health check.

With TLS it connects by the service's own certificate, and expects a service of that kind. SERVICE: one of the
server's, as hoss.v1.Resolver, instead of the server as a whole."""

# ruff: noqa: T201 - a command prints

import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hoss.errors import HossError

_DEADLINE_SECONDS = 5.0


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2, 3):
        print("usage: python -m hoss.healthcheck HOST:PORT [TLS_DIR [SERVICE]]", file=sys.stderr)
        return 2
    try:
        opened = _channel(arguments[0], *map(Path, arguments[1:2]))
    except HossError as exc:
        print(exc, file=sys.stderr)
        return 2
    with opened as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="".join(arguments[2:])), timeout=_DEADLINE_SECONDS
            )
        except grpc.RpcError as exc:
            print(f"{arguments[0]} does not answer: {exc.code().name}", file=sys.stderr)
            return 1
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    print(f"{arguments[0]} is {status}")
    return 0 if reply.status == health_pb2.HealthCheckResponse.SERVING else 1


def _channel(address: str, tls_dir: Path | None = None) -> grpc.Channel:
    if tls_dir is None:
        return grpc.insecure_channel(address)
    # Without TLS a probe imports gRPC alone.
    from hoss.security.identity import Identity  # noqa: PLC0415
    from hoss.security.transport import TlsFiles, server_name, uris  # noqa: PLC0415

    held = TlsFiles(tls_dir).latest()
    kind = Identity.from_uri("".join(uris(held.certificate)[:1])).kind
    credentials = grpc.ssl_channel_credentials(held.authority, held.key, held.certificate)
    name = ("grpc.ssl_target_name_override", server_name(kind.value))
    return grpc.secure_channel(address, credentials, options=[name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

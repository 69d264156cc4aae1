"""`python -m hoss.healthcheck HOST:PORT`: exit 0 if the service there says it serves. For container health checks."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_DEADLINE_SECONDS = 5.0


def main(arguments: list[str]) -> int:
    """Ask once; one line says what came back."""
    if len(arguments) != 1:
        print("usage: python -m hoss.healthcheck HOST:PORT", file=sys.stderr)  # noqa: T201 - a command
        return 2
    with grpc.insecure_channel(arguments[0]) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_DEADLINE_SECONDS
            )
        except grpc.RpcError as exc:
            print(f"{arguments[0]} does not answer: {exc.code().name}", file=sys.stderr)  # noqa: T201 - a command
            return 1
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    print(f"{arguments[0]} is {status}")  # noqa: T201 - a command
    return 0 if reply.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the probes in deploy/ ask of a resolver: whether it is alive, and whether its ledger is there."""

import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from waiting import DEADLINE_SECONDS, wait_until

from hossctl.local.process import ServiceProcess, stop_all
from hossctl.local.redis_server import RedisServer

SERVING = health_pb2.HealthCheckResponse.SERVING


def test_a_resolver_without_its_ledger_is_alive_and_not_ready(tmp_path: Path):
    redis = RedisServer.start(tmp_path / "redis")
    arguments = ["--listen", "127.0.0.1:0", "--redis-url", redis.url]
    resolver = ServiceProcess("resolver", "resolver", arguments, tmp_path)
    try:
        address = resolver.wait_ready(time.monotonic() + DEADLINE_SECONDS).address
        with grpc.insecure_channel(address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check

            def serves(service: str) -> bool:
                return bool(
                    check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_SECONDS).status
                    == SERVING
                )

            assert serves("")
            redis.kill()
            wait_until(lambda: not serves(""), "it to say that it is not ready")
            assert serves("hoss.v1.Resolver")
    finally:
        stop_all([resolver.record])
        redis.kill()

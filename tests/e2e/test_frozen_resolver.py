"""Two resolvers, one of which is frozen as by SIGSTOP: its connections stay open, and nothing answers on
them."""

from pathlib import Path

from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, prepare, submit
from waiting import until

from hossctl.endpoints import Endpoints, clients_of

# Far more than the two seconds after which a frozen resolver is left, and far less than the minute after
# which the kernel or gRPC would leave it by themselves.
SECONDS = 30.0


async def test_a_frozen_resolver_holds_up_nothing_where_another_serves(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, resolvers=2, workers=["w1", "w2"])
    healthy = Endpoints(cluster.endpoints.dispatcher, cluster.address("resolver-2"))
    try:
        async with clients_of(healthy) as clients:
            await prepare(clients, workers=2)
            await submit(clients, jobs=20, replicas=20, name="before")
            await until(lambda: all_bound(clients, 400))
            cluster.freeze("resolver")
            await submit(clients, jobs=20, replicas=20, name="after")
            await until(lambda: all_bound(clients, 800), "proposals and confirmations", seconds=SECONDS)

            async def released() -> bool:
                return (await clients.resolver.status()).reservations == 400

            for number in range(20):
                await clients.dispatcher.delete("default", jobs=[f"before-{number}"])
            await until(released, "releases", seconds=SECONDS)

            def fenced() -> bool:
                return any(event["worker"] == "w1" for event in cluster.events("dispatcher", "worker_fenced"))

            cluster.kill("w1")
            await until(fenced, "a grant and a look-up", seconds=SECONDS)
            cluster.thaw("resolver")
            cluster.start_worker("w1")
            await assert_clean(clients, bound=400)
    finally:
        cluster.stop()

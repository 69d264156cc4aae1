"""What a platform asks of Redis while nobody asks anything of it, counted in virtual time."""

import asyncio
from collections import Counter

from hossctl.history.events import History
from tools.simulation import plan as p
from tools.simulation.clients import SimulatedClients
from tools.simulation.loop import discarding
from tools.simulation.plan import Act
from tools.simulation.world import DISPATCHER, RESOLVER, World

SHARDS, SECONDS = 2, 60


def commands_of_an_idle_platform(server):
    """Counts by kind of service, the command with its first key, and whether it wrote."""
    found: Counter[tuple[str, str, bool]] = Counter()
    world = World(1, server, shards=SHARDS, dispatchers=2, resolvers=2, workers=2)

    async def story():
        for name in world.services:
            world.start(name)
        clients = SimulatedClients(world, History(world.loop.time, source="test", sees=[]), named_nodes=True)
        await clients.register(4)
        await clients.ask(Act(0.0, p.SUBMIT, "job", options={"replicas": 4, "cpu": 50}))
        await asyncio.sleep(60)  # until everything is bound, and nobody has a lease
        world.on_command = lambda seen: found.update(
            [(seen.process.partition("-")[0], f"{seen.command} {seen.key}", seen.wrote)]
        )
        await asyncio.sleep(SECONDS)
        world.on_command = lambda _seen: None

    process, _ = world.new_host("test")
    with world.logging():
        world.loop.run_until_complete(world.loop.spawn(process, story()))
        world.close()
    return found


def test_an_idle_platform_asks_little_of_redis_and_hardly_writes(server):
    with discarding():
        found = commands_of_an_idle_platform(server)

    def a_second(kind, what="", *, writes_only=False):
        return (
            sum(
                count
                for (of, text, wrote), count in found.items()
                if of == kind and what in text and (wrote or not writes_only)
            )
            / SECONDS
        )

    # Each resolver reaps each shard every second, and goes on with its lease time every five.
    assert a_second(RESOLVER, writes_only=True) <= SHARDS * 2 / 4
    assert a_second(RESOLVER, ":moved") < 1, "moves are looked for where the reaper has seen some"
    assert a_second(RESOLVER) < 56
    # The leader's renewals; a standby asks eight times a second.
    assert a_second(DISPATCHER, writes_only=True) < 3
    assert a_second(DISPATCHER) < 14

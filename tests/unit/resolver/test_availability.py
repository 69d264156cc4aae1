"""What a resolver says of a ledger that is lost, until it is rebuilt."""

import asyncio
from collections import Counter
from types import SimpleNamespace

from structlog.testing import capture_logs
from waiting import until

from hoss.v1 import resolver_pb2 as pb
from resolver.api.maintenance import Availability
from resolver.api.service import ResolverService
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.port import LedgerLostError


class Lost(MemoryLedger):
    """Lost until told otherwise."""

    lost = True

    async def check(self) -> dict[str, str]:
        if self.lost:
            raise LedgerLostError("Redis is empty")
        return {}


async def test_a_lost_ledger_is_told_with_what_to_do_once_nobody_comes_and_is_back_when_taken_up() -> None:
    ledger, told = Lost(1, lambda: 0), []

    async def on_change(serving: bool) -> None:
        told.append(serving)

    async def recover() -> None:
        if ledger.lost:
            raise LedgerLostError("the ledger is being rebuilt")

    availability = Availability(ledger, on_change, recover, rebuild_wait_seconds=0.3)
    running = asyncio.ensure_future(availability.run())

    def so_it_is(serving: bool, text: str) -> bool:
        return (
            availability.recovering is not serving and text in availability.problem and told[-1:] == [serving]
        )

    await until(lambda: so_it_is(False, "being rebuilt"))
    await until(lambda: so_it_is(False, "`hoss ledger bootstrap`"))
    ledger.lost = False
    await until(lambda: so_it_is(True, ""))
    assert (availability.problem, told) == ("", [False, True])
    running.cancel()


async def test_while_a_dispatcher_says_that_it_waits_nobody_is_advised_to_do_without_it() -> None:
    ledger, now = Lost(1, lambda: 0), [0.0]

    async def on_change(_serving: bool) -> None:
        pass

    async def recover() -> None:
        raise LedgerLostError("Redis is empty")

    availability = Availability(ledger, on_change, recover, rebuild_wait_seconds=30.0, clock=lambda: now[0])
    availability.announce_rebuild("an earlier loss")
    now[0] = 1.0
    assert await availability._check() == "Redis is empty"
    for now[0] in (2.0, 32.0, 62.0):
        availability.announce_rebuild("the API server")
        assert await availability._check() == (
            "Redis is empty; a dispatcher rebuilds it, and waits for the API server"
        )
    now[0] = 92.5
    assert "no dispatcher has told of itself for 30 s" in await availability._check()
    assert "`hoss ledger bootstrap`" in await availability._check()


async def test_reservations_that_were_set_aside_are_told_once(make_node, make_proposal) -> None:
    ledger, now = MemoryLedger(1, lambda: 0), [0.0]
    await ledger.upsert_nodes(0, [make_node("a")])
    await ledger.grant("w1")
    proposal = make_proposal([1, 2], [[0], [0]])
    await ledger.commit(0, [proposal])
    ledger.damage(0, proposal.uids[0].tobytes(), b"")
    await ledger.lookup(0, proposal.uids)

    async def ignore(_serving: bool = True) -> None:
        now[0] += 100.0

    availability = Availability(ledger, ignore, ignore, clock=lambda: now[0])
    with capture_logs() as logged:
        for _ in range(2):
            assert await availability._check() == ""
            now[0] += 100.0
    assert [(entry["event"], entry["set_aside"]) for entry in logged] == [("reservations_damaged", 1)]


async def test_a_shard_with_more_reservations_than_advised_is_told_once_and_in_every_status_and_audit(
    make_node, make_proposal
) -> None:
    ledger, now = MemoryLedger(2, lambda: 0), [0.0]
    await ledger.upsert_nodes(0, [make_node("a")])
    await ledger.grant("w1")
    proposal = make_proposal([1, 2, 3], [[0]] * 3)
    await ledger.commit(0, [proposal])
    told: list[str] = []
    audited: list[list[str]] = []

    async def ignore(_serving: bool = True) -> None:
        pass

    async def looks(times: int) -> None:
        for _ in range(times):
            now[0] += 100.0
            await availability._check()
            told.append(availability.facts.get("advice", ""))
            audited.append(list((await service.Audit(pb.AuditRequest(), None)).reports))

    availability = Availability(
        ledger, ignore, ignore, advised_reservations_per_shard=2, clock=lambda: now[0]
    )
    service = ResolverService(
        ledger,
        [],
        SimpleNamespace(decide=None),  # an audit needs nothing of these
        availability,
        quarantine=None,
        counters=Counter,
        rebuilding=None,
        existing_pods=None,
        unix_clock=lambda: 0.0,
    )
    with capture_logs() as logs:
        await looks(2)
        await ledger.release(0, proposal.uids[:1])
        await looks(1)
    assert [entry["event"] for entry in logs] == ["shard_crowded"]
    assert told[0] == told[1] != "" == told[2]
    assert audited == [[told[0]], [told[0]], []]
    assert told[0].startswith("a shard has 3 reservations (advised_reservations_per_shard: 2)")

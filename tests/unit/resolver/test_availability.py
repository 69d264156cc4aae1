"""What a resolver says of a ledger that is lost, until it is rebuilt."""

import asyncio

from waiting import until

from resolver.api.maintenance import Availability
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

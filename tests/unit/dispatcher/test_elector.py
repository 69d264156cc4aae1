"""Leader electors that share a lease: which one serves, what a failed renewal does, and when a term ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from waiting import until

from dispatcher.leader.elector import LeaderElector
from dispatcher.leader.leadership import LeaderTerm, LeaseValidity
from dispatcher.leader.lease import MemoryLease
from dispatcher.ledger.client import FencedLedger
from dispatcher.ports import Knowledge
from dispatcher.runtime import TermFailed
from hoss.errors import LedgerUnavailable

SECONDS = 0.2


# So that no elector is ever delayed for longer than its lease.
pytestmark = pytest.mark.usefixtures("virtual_time")


class Store(MemoryLease):
    """A lease whose store can be away."""

    def __init__(self) -> None:
        super().__init__(SECONDS, lambda: asyncio.get_running_loop().time())
        self.away = False

    async def acquire(self, address: str):
        self._check()
        return await super().acquire(address)

    async def renew(self, term: int, address: str) -> bool:
        self._check()
        return await super().renew(term, address)

    def _check(self) -> None:
        if self.away:
            raise LedgerUnavailable("it is away")


class Dispatcher:
    """A dispatcher with an elector that records its calls."""

    def __init__(self, lease: Store, address: str) -> None:
        self.terms: list[LeaderTerm] = []
        self.serving = False
        self.standby_calls: list[tuple[str, str]] = []
        self.uncertain: list[bool] = []
        self.newest_term = 0
        self.elector = LeaderElector(
            lease, address, serve=self._serve,
            on_standby=self._on_standby, on_lease_uncertain=self._on_lease_uncertain,
            newest_term=self._ask_newest_term, clock=lambda: asyncio.get_running_loop().time(),
        )  # fmt: skip
        self.task = asyncio.ensure_future(self.elector.run())

    @contextlib.asynccontextmanager
    async def _serve(self, term: LeaderTerm) -> AsyncIterator[None]:
        self.terms.append(term)
        self.serving = True
        try:
            yield
        finally:
            self.serving = False

    async def _on_standby(self, why: str, active: str) -> None:
        self.standby_calls.append((why, active))

    async def _on_lease_uncertain(self, uncertain: bool) -> None:
        self.uncertain.append(uncertain)

    async def _ask_newest_term(self) -> int:
        return self.newest_term

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def lease() -> Store:
    return Store()


@pytest.fixture
async def new(lease: Store) -> AsyncIterator[Callable[[str], Dispatcher]]:
    made: list[Dispatcher] = []

    def make(address: str) -> Dispatcher:
        made.append(Dispatcher(lease, address))
        return made[-1]

    yield make
    for dispatcher in made:
        await dispatcher.end()


async def test_the_second_stands_by_and_serves_when_the_first_has_ended(new):
    first = new("a:1")
    await until(lambda: first.serving)
    second = new("b:2")
    await second.elector.role_known.wait()
    assert not second.serving
    assert second.standby_calls[-1] == ("this dispatcher stands by", "a:1")
    await first.end()
    await until(lambda: second.serving)
    assert [term.term for term in second.terms] == [2]


async def test_a_term_goes_on_when_the_store_is_back_and_nobody_had_a_newer_one(new, lease):
    dispatcher = new("a:1")
    await until(lambda: dispatcher.serving)
    lease.away = True
    await until(lambda: dispatcher.uncertain == [True])
    assert dispatcher.serving
    assert not dispatcher.terms[0].lease_valid()
    assert dispatcher.terms[0].uncertainty() == "it is away"
    lease.away = False
    await until(lambda: dispatcher.uncertain == [True, False])
    assert dispatcher.terms[0].lease_valid()
    assert dispatcher.terms[0].renewal_error == ""
    assert len(dispatcher.terms) == 1


async def test_a_term_is_over_once_another_has_had_a_newer_one(new, lease):
    dispatcher = new("a:1")
    await until(lambda: dispatcher.serving)
    await lease.release(1)
    await lease.acquire("b:2")
    await until(lambda: not dispatcher.serving)
    assert not dispatcher.task.done()
    await until(lambda: dispatcher.standby_calls[-1:] == [("this dispatcher stands by", "b:2")])
    await until(lambda: [term.term for term in dispatcher.terms] == [1, 3])


async def test_a_term_is_over_once_the_ledger_has_seen_a_newer_one_where_the_store_cannot_be_reached(
    new, lease
):
    """So that workers and watchers do not stay with a dispatcher that is cut off."""
    dispatcher = new("a:1")
    await until(lambda: dispatcher.serving)
    dispatcher.newest_term = 1
    lease.away = True
    await until(lambda: dispatcher.uncertain == [True])
    await asyncio.sleep(4 * SECONDS)
    assert dispatcher.serving
    dispatcher.newest_term = 2
    await until(lambda: not dispatcher.serving)
    assert dispatcher.standby_calls[-1] == ("this dispatcher does not know who is active: it is away", "")


async def test_a_fault_in_serving_ends_the_process_and_gives_the_lease_up(lease):
    @contextlib.asynccontextmanager
    async def broken(term: LeaderTerm) -> AsyncIterator[None]:
        raise RuntimeError(f"term {term.term} cannot be served")
        yield

    async def ignore(*_told: object) -> None: ...

    elector = LeaderElector(
        lease, "a:1", serve=broken, on_standby=ignore, on_lease_uncertain=ignore, newest_term=ignore,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="term 1 cannot be served"):
        await elector.run()
    assert (await lease.acquire("b:2")).term == 2


async def test_a_term_that_fails_is_counted_and_followed_by_another_of_whoever_asks_first(lease):
    standby_calls: list[tuple[str, str]] = []

    @contextlib.asynccontextmanager
    async def fails_at_first(term: LeaderTerm) -> AsyncIterator[None]:
        if term.term < 3:
            raise TermFailed("the job _fence failed")
        yield

    async def on_standby(why: str, active: str) -> None:
        standby_calls.append((why, active))

    async def ignore(*_told: object) -> None: ...

    elector = LeaderElector(
        lease, "a:1", serve=fails_at_first, on_standby=on_standby, on_lease_uncertain=ignore,
        newest_term=ignore, clock=lambda: asyncio.get_running_loop().time(),
    )  # fmt: skip
    running = asyncio.ensure_future(elector.run())
    await until(lambda: elector.failed_terms == 1)
    assert (await lease.acquire("b:2")).term == 2
    await lease.release(2)
    await elector.role_known.wait()
    assert elector.failed_terms == 1
    assert "_fence failed" in standby_calls[0][0]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_while_the_lease_is_uncertain_the_ledger_is_asked_to_change_nothing():
    class Noting:
        """A ledger that notes what it is asked."""

        def __init__(self) -> None:
            self.asked: list[str] = []

        def __getattr__(self, name: str):
            async def ask(*_arguments: object) -> int:
                self.asked.append(name)
                return 1

            return ask

    validity, inner = LeaseValidity(1.0, 0.0), Noting()
    times = [0.0]
    ledger = FencedLedger(inner, LeaderTerm(1, "a:1", validity, lambda: times[0]))
    uids = np.zeros((1, 16), np.uint8)
    changes = (
        lambda: ledger.grant_epoch("w1"),
        lambda: ledger.release(uids, None, Knowledge("", {})),
        lambda: ledger.confirm({0: np.ones(1, np.uint64)}),
    )
    for change in changes:
        await change()
    times[0] = 1.0
    for change in changes:
        with pytest.raises(LedgerUnavailable, match="another may be active"):
            await change()
    await ledger.lookup(uids)
    assert inner.asked == ["grant_epoch", "release", "confirm", "lookup"]

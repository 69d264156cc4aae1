"""Candidates for one lease: who serves, what becomes of a term whose renewals fail, and when it is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from waiting import until

from dispatcher.candidate import Candidate, Term
from dispatcher.lease import MemoryLease
from dispatcher.ledger import FencedLedger
from hoss.errors import LedgerUnavailable

SECONDS = 0.2


# So that no candidate is ever held up for longer than its lease lasts.
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
    """One candidate that notes what becomes of it."""

    def __init__(self, lease: Store, address: str) -> None:
        self.terms: list[Term] = []
        self.serving = False
        self.told: list[tuple[str, str]] = []
        self.doubts: list[bool] = []
        self.candidate = Candidate(
            lease, address, serve=self._serve, standing_by=self._standing_by, doubted=self._doubted,
            clock=lambda: asyncio.get_running_loop().time(),
        )  # fmt: skip
        self.task = asyncio.ensure_future(self.candidate.stand())

    @contextlib.asynccontextmanager
    async def _serve(self, term: Term) -> AsyncIterator[None]:
        self.terms.append(term)
        self.serving = True
        try:
            yield
        finally:
            self.serving = False

    async def _standing_by(self, why: str, active: str) -> None:
        self.told.append((why, active))

    async def _doubted(self, in_doubt: bool) -> None:
        self.doubts.append(in_doubt)

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
    await second.candidate.settled.wait()
    assert not second.serving
    assert second.told[-1] == ("this dispatcher stands by", "a:1")
    await first.end()
    await until(lambda: second.serving)
    assert [term.number for term in second.terms] == [2]


async def test_a_term_in_doubt_goes_on_when_the_store_is_back_and_nobody_had_a_newer_one(new, lease):
    dispatcher = new("a:1")
    await until(lambda: dispatcher.serving)
    lease.away = True
    await until(lambda: dispatcher.doubts == [True])
    assert dispatcher.serving
    assert not dispatcher.terms[0].certain()
    assert dispatcher.terms[0].doubt() == "it is away"
    lease.away = False
    await until(lambda: dispatcher.doubts == [True, False])
    assert dispatcher.terms[0].certain()
    assert dispatcher.terms[0].trouble == ""
    assert len(dispatcher.terms) == 1


async def test_a_term_is_over_once_another_has_had_a_newer_one(new, lease):
    dispatcher = new("a:1")
    await until(lambda: dispatcher.serving)
    await lease.release(1)
    await lease.acquire("b:2")
    await until(lambda: not dispatcher.serving)
    assert not dispatcher.task.done()
    await until(lambda: dispatcher.told[-1:] == [("this dispatcher stands by", "b:2")])
    await until(lambda: [term.number for term in dispatcher.terms] == [1, 3])


async def test_a_fault_in_serving_ends_the_process_and_gives_the_lease_up(lease):
    @contextlib.asynccontextmanager
    async def broken(term: Term) -> AsyncIterator[None]:
        raise RuntimeError(f"term {term.number} cannot be served")
        yield

    async def ignore(*_told: object) -> None: ...

    candidate = Candidate(lease, "a:1", serve=broken, standing_by=ignore, doubted=ignore)
    with pytest.raises(RuntimeError, match="term 1 cannot be served"):
        await candidate.stand()
    assert (await lease.acquire("b:2")).term == 2


async def test_while_in_doubt_the_ledger_is_asked_to_change_nothing():
    class Noting:
        """A ledger that notes what it is asked."""

        def __init__(self) -> None:
            self.asked: list[str] = []

        def __getattr__(self, name: str):
            async def ask(*_arguments: object) -> int:
                self.asked.append(name)
                return 1

            return ask

    certain, inner = True, Noting()
    ledger = FencedLedger(inner, lambda: certain)
    uids = np.zeros((1, 16), np.uint8)
    changes = (
        lambda: ledger.grant_epoch("w1"),
        lambda: ledger.release(uids, None),
        lambda: ledger.confirm({0: np.ones(1, np.uint64)}),
    )
    for change in changes:
        await change()
    certain = False
    for change in changes:
        with pytest.raises(LedgerUnavailable, match="another may be active"):
            await change()
    await ledger.lookup(uids)
    assert inner.asked == ["grant_epoch", "release", "confirm", "lookup"]

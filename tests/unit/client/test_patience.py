"""Waiting for a dispatcher that is full."""

import asyncio

import pytest

from hoss.client.backoff import Patience
from hoss.errors import Overloaded

SOON = Overloaded("full", 0.001)


def test_every_wait_is_reported():
    waits = []
    asyncio.run(Patience(waits.append).wait(SOON))
    assert waits == [SOON]


def test_patience_runs_out_and_the_error_is_raised():
    with pytest.raises(Overloaded, match="full"):
        asyncio.run(Patience(print, seconds=1.0).wait(Overloaded("full", 2.0)))


def test_progress_makes_it_patient_again():
    async def waits() -> None:
        patience = Patience(lambda _: None, seconds=0.05)
        for _ in range(20):
            await patience.wait(Overloaded("full", 0.01))
            patience.progressed()

    asyncio.run(waits())

"""Kubernetes mode: when the ledger has reservations for all existing pods."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from dispatcher.core import messages as m
from dispatcher.kubernetes.existing_pods import ExistingPods
from hoss.wire.columns import decode_uids


class SlowLedger:
    """A runtime that releases reservations on a signal, and records which."""

    def __init__(self) -> None:
        self.jobs: dict[type, Callable[[Any], Coroutine[Any, Any, None]]] = {}
        self.go = asyncio.Event()
        self.released: list[int] = []

    def set_executor(self, kind: type, job: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        self.jobs[kind] = job

    async def release(self, wanted: m.Release) -> None:
        await self.go.wait()
        self.released += wanted.rows.tolist()


async def test_all_that_was_asked_for_before_is_done_when_it_says_so():
    ledger = SlowLedger()
    existing = ExistingPods(ledger, None, None, None, None)  # type: ignore[arg-type]
    rows = [np.array([row], np.uint32) for row in range(3)]
    wanted = [m.Release(row, decode_uids(bytes(16)), row) for row in rows]
    jobs = [asyncio.create_task(ledger.jobs[m.Release](release)) for release in wanted]
    done = asyncio.create_task(existing.done())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not done.done()
    ledger.go.set()
    await done
    assert ledger.released == [0, 1, 2]
    await asyncio.gather(*jobs)

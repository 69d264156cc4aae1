"""Fixtures of simulations."""

from collections.abc import Iterator

import pytest

from tools.simulation.redis_backend import DrivenRedis


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenRedis]:
    """A Redis that simulations drive step by step, for the tests of a file."""
    made = DrivenRedis.start()
    yield made
    made.close()

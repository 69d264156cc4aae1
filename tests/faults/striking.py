"""One run of a fault, as a test sees it."""

from pathlib import Path

import pytest

from tools.faults.catalogue import BY_NAME
from tools.faults.run import Outcome, Trial

_SEED = 1
_FEWEST_PODS = 100  # judged: with less a run shows nothing


async def kept_every_promise(name: str, directory: Path) -> Outcome:
    """The outcome of a run in which no promise was broken. A run whose fault did not happen raises. Skips
    where this machine cannot make the fault."""
    fault = BY_NAME[name]
    if missing := fault.missing():
        pytest.skip(missing)
    async with Trial.opened(directory, fault) as trial:
        outcome = await trial.run(_SEED)
    assert outcome.problems() == []
    assert outcome.pods > _FEWEST_PODS
    return outcome

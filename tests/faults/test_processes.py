"""Processes are killed and frozen under load. Every pod that was accepted is there afterwards, once."""

from pathlib import Path

import pytest
from faults.striking import kept_every_promise


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fault", ["kill-dispatcher", "freeze-dispatcher", "freeze-redis", "kill-resolvers", "restart-services"]
)
async def test_nothing_is_lost_doubled_or_overcommitted_when_processes_fail(
    fault: str, tmp_path: Path
) -> None:
    await kept_every_promise(fault, tmp_path)

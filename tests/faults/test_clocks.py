"""The clock of a process jumps."""

from pathlib import Path

import pytest
from faults.striking import kept_every_promise


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["clock-dispatcher", "clock-redis"])
async def test_nothing_is_lost_doubled_or_overcommitted_when_a_clock_jumps(
    fault: str, tmp_path: Path
) -> None:
    await kept_every_promise(fault, tmp_path)

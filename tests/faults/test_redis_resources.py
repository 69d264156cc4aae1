"""Redis fails over without its last writes, and runs out of disk and of memory."""

from pathlib import Path

import pytest
from faults.striking import kept_every_promise


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fault", ["failover", "disk-full", "disk-full-always", "memory-full", "out-of-memory"]
)
async def test_nothing_is_lost_doubled_or_overcommitted_when_redis_loses_or_refuses_writes(
    fault: str, tmp_path: Path
) -> None:
    await kept_every_promise(fault, tmp_path)

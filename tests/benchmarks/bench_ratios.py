"""The guard: what one thing costs, or takes, by what another does, never seconds: `make bench-check`. Limits
are in limits.yaml."""

from pathlib import Path

import pytest
import yaml
from benchmarks.measuring import Limit, lowest, ratio


def read_limits() -> list[Limit]:
    """Those of limits.yaml."""
    document = yaml.safe_load((Path(__file__).parent / "limits.yaml").read_text(encoding="utf-8"))
    return [
        Limit(**{**part["unless_told"], **entry}) for part in document.values() for entry in part["limits"]
    ]


@pytest.mark.parametrize("limit", read_limits(), ids=lambda limit: limit.claim)
def test_claim(limit, bench_of, found_ratio):
    over, under = bench_of(limit.over), bench_of(limit.under)
    found = lowest(lambda: ratio(over, under, rounds=limit.rounds, warm_ups=limit.warm_ups), limit.limit)
    found_ratio(found, limit)
    if found > limit.limit:
        pytest.fail(
            f"{limit.over} costs {found:.3f} of {limit.under}; at most {limit.limit:.3f}", pytrace=False
        )

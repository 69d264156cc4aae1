"""What each core's operations cost, by the clock of this machine: `make bench`."""

import pytest
from benchmarks.conftest import CORES

_ROUNDS = 15


@pytest.mark.parametrize("name", CORES)
def test_cost(name, bench_of, benchmark, found_cost):
    bench, operations = bench_of(name)
    benchmark.extra_info["operations"] = operations
    benchmark.pedantic(
        lambda action: action(), setup=lambda: ((bench.fresh(),), {}), rounds=_ROUNDS, warmup_rounds=1
    )
    found_cost(name, benchmark.stats.stats.median / operations, benchmark.stats.stats.min / operations)

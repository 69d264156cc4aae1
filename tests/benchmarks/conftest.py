"""Cases that are set up at their first use, and a table of the results at the end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from benchmarks import dispatcher_cases, platform_cases, resolver_cases, worker_cases
from benchmarks.measuring import Bench, Case, Limit, cost_table, ratio_table

CORES = {c.name: c for part in (dispatcher_cases, worker_cases, resolver_cases) for c in part.cases()}
CASES = {**CORES, **{c.name: c for c in platform_cases.cases()}}
_RATIOS = pytest.StashKey[list[tuple[float, Limit]]]()
_COSTS = pytest.StashKey[list[tuple[str, float, float]]]()


@pytest.fixture(scope="session")
def bench_of() -> Iterator[Callable[[str], tuple[Bench, int]]]:
    """`bench_of(name)`: the case set up, and how many operations an action has."""
    made: dict[str, Bench] = {}
    with ExitStack() as stack:

        def find(name: str) -> tuple[Bench, int]:
            case: Case = CASES[name]
            if name not in made:
                made[name] = case.build(stack)
            return made[name], case.operations

        yield find


@pytest.fixture
def found_ratio(request: pytest.FixtureRequest) -> Callable[[float, Limit], None]:
    """Records a ratio for the table."""
    rows = request.config.stash.setdefault(_RATIOS, [])
    return lambda *row: rows.append(row)


@pytest.fixture
def found_cost(request: pytest.FixtureRequest) -> Callable[[str, float, float], None]:
    """Takes down what an operation costs: its name, median and least seconds."""
    rows = request.config.stash.setdefault(_COSTS, [])
    return lambda *row: rows.append(row)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ratios, costs = config.stash.get(_RATIOS, []), config.stash.get(_COSTS, [])
    for line in [*(ratio_table(ratios) if ratios else ()), *(cost_table(costs) if costs else ())]:
        terminalreporter.write_line(line)

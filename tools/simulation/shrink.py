"""Makes a plan that fails smaller, so that a person can read what happens.

Acts are left out as long as the same promise is still broken: halves first, then single ones (delta
debugging, Zeller and Hildebrandt 2002). The services' own order of events changes with that, so a smaller
plan may fail by another path; it fails in the same way."""

from collections.abc import Callable, Sequence

from tools.simulation.plan import Act, Plan
from tools.simulation.run import Result


def kind_of(result: Result) -> str:
    """What went wrong first, without names: the promise, or the beginning of the complaint."""
    problems = result.problems()
    return problems[0].partition(":")[0].partition(" after ")[0] if problems else ""


def shrink(failed: Result, carry_out: Callable[[Plan], Result], *, most_runs: int = 200) -> Result:
    """The smallest plan found, carried out. `most_runs`: simulations that this may take."""
    kind, smallest, size, runs = kind_of(failed), failed, len(failed.plan.acts) // 2, 0
    while size:
        start = 0
        while start < len(smallest.plan.acts) and runs < most_runs:
            runs += 1
            acts = smallest.plan.acts
            tried = carry_out(smallest.plan.with_acts(_without(acts, start, size)))
            if kind_of(tried) == kind:
                smallest = tried
            else:
                start += size
        size //= 2
    return smallest


def _without(acts: Sequence[Act], start: int, size: int) -> list[Act]:
    return [*acts[:start], *acts[start + size :]]

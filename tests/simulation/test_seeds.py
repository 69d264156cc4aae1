"""No promise is broken by any seed that was searched, in whole platforms in one process.

Seeds run in a process of their own with a fixed hash order, as `make simulate` runs them, so that a seed that
fails here fails there too."""

import pytest
from simulation.seeded import simulate

AT_ONCE = 20  # a line for each that fails


@pytest.mark.parametrize(
    "first",
    [
        *range(0, 200, AT_ONCE),
        *(
            pytest.param(first, marks=pytest.mark.thorough)
            for start, end in ((200, 300), (600, 700), (2000, 2140))
            for first in range(start, end, AT_ONCE)
        ),
    ],
)
def test_no_promise_is_broken_by_seeds_from(first):
    done = simulate("--seeds", AT_ONCE, "--first", first)
    assert done.returncode == 0, done.stdout + done.stderr

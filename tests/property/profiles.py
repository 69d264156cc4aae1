"""How many examples a property test tries, and which ones: HOSS_TESTS says it.

`quick` is `make test`, and whatever is run without saying; `all` is `make test-all`. Both try known examples,
the same for the same code, so that a run is about a change and not about luck; `quick` tries two fifths of
them. `soak` is `make soak`: as many as `all`, and other ones with every run, by a seed that is printed (see
tests/soak.py). A failing example is printed as a decorator, `@reproduce_failure`, to be tried with; what it
found is then added to the test as an `@example` or a test of its own.

Property tests share their machine with real servers: an example that takes long, or is long in the making, is
no failure.
"""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

_SHARES = {"quick": 0.4, "all": 1.0, "soak": 1.0}
_FEWEST = 10
_DEFAULT = 100

_PROFILE = os.environ.get("HOSS_TESTS") or "quick"


def load_profile() -> None:
    """Before any property test is imported: its settings begin with the profile's."""
    if _PROFILE not in _SHARES:
        raise SystemExit(f"HOSS_TESTS is {_PROFILE!r}, which is none of {', '.join(_SHARES)}")
    settings.register_profile(
        "hoss",
        max_examples=_count(_DEFAULT),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=_PROFILE != "soak",
        print_blob=True,
    )
    settings.load_profile("hoss")
    if _PROFILE != "soak":
        # Hypothesis also tries constants of whatever modules are imported. Then the examples of a file would
        # be others where it is run alone, and every process would read the whole source for it.
        providers._get_local_constants = lambda: providers._local_constants


def examples(count: int, **more: Any) -> settings:
    """Of a test that tries so many in `make test-all`, where 100 are too few or more than need be."""
    return settings(max_examples=_count(count), **more)


def _count(count: int) -> int:
    return max(_FEWEST, round(_SHARES[_PROFILE] * count))

"""The models of the ledger protocol (docs/model): the small ones hold in every state, and a search finds each
known fault that is switched on. `make model` checks all of them."""

import pytest

from tools.model import CASES, Case, as_expected, check, counterexample, no_checker

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def checker() -> None:
    if problem := no_checker():
        pytest.skip(problem)


@pytest.mark.parametrize("case", [case for case in CASES if case.quick], ids=lambda case: case.name)
def test_a_model_holds_unless_a_fault_is_switched_on(case: Case) -> None:
    verdict = check(case)
    assert as_expected(case, verdict), verdict
    assert verdict.states > 1


def test_a_counterexample_is_shown_by_the_names_of_its_steps() -> None:
    (case,) = (case for case in CASES if case.name == "confirm-prepared")
    steps = counterexample(case).splitlines()
    assert any(step.startswith("Resolver") and "prepare" in step.split(", ") for step in steps)
    assert any(step.startswith("Dispatcher") and "confirm" in step.split(", ") for step in steps)
    assert steps[-1] == "assertion violated"

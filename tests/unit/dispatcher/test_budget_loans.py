"""Who may draw on a disruption budget."""

from dispatcher.core.budget_loans import LOAN_SECONDS, BudgetLoans
from hoss.model.cluster_objects import PodDisruptionBudget

A, B = PodDisruptionBudget("default", "a"), PodDisruptionBudget("default", "b")


def test_a_budget_is_one_workers_until_its_loan_is_over():
    loans = BudgetLoans()
    assert loans.lend([A], "w1", 0.0) == [True]
    assert loans.lend([A, B], "w2", 0.5) == [False, True]
    assert loans.lend([A, B], "w1", 1.0) == [True, False]
    assert loans.lend([A], "w2", LOAN_SECONDS) == [False], "w1 asked again in between"
    assert loans.lend([A], "w2", 1.0 + LOAN_SECONDS) == [True]
    assert loans.lend([A], "w1", 1.0 + LOAN_SECONDS) == [False]


def test_budgets_of_one_name_in_two_namespaces_are_two():
    loans = BudgetLoans()
    assert loans.lend([A], "w1", 0.0) == [True]
    assert loans.lend([PodDisruptionBudget("other", "a")], "w2", 0.0) == [True]


def test_what_is_over_is_not_remembered():
    loans = BudgetLoans()
    loans.lend([A, B], "w1", 0.0)
    loans.lend([], "w2", LOAN_SECONDS)
    assert not loans._lent

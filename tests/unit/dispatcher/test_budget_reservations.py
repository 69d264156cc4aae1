"""Which worker may count on a disruption budget."""

from dispatcher.core.bound.disruption_budgets import RESERVATION_SECONDS, BudgetReservations
from hoss.model.cluster import PodDisruptionBudget

A, B = PodDisruptionBudget("default", "a"), PodDisruptionBudget("default", "b")


def test_a_budget_belongs_to_one_worker_until_its_reservation_is_over():
    reservations = BudgetReservations()
    assert reservations.reserve([A], "w1", 0.0) == [True]
    assert reservations.reserve([A, B], "w2", 0.5) == [False, True]
    assert reservations.reserve([A, B], "w1", 1.0) == [True, False]
    assert reservations.reserve([A], "w2", RESERVATION_SECONDS) == [False], "w1 asked again in between"
    assert reservations.reserve([A], "w2", 1.0 + RESERVATION_SECONDS) == [True]
    assert reservations.reserve([A], "w1", 1.0 + RESERVATION_SECONDS) == [False]


def test_budgets_of_one_name_in_two_namespaces_are_two():
    reservations = BudgetReservations()
    assert reservations.reserve([A], "w1", 0.0) == [True]
    assert reservations.reserve([PodDisruptionBudget("other", "a")], "w2", 0.0) == [True]


def test_what_is_over_is_not_remembered():
    reservations = BudgetReservations()
    reservations.reserve([A, B], "w1", 0.0)
    reservations.reserve([], "w2", RESERVATION_SECONDS)
    assert not reservations._reserved

"""How long a holder of the lease may rely on it."""

from dispatcher.core.tenure import Tenure


def test_a_tenure_ends_before_the_lease_can_have_ended():
    tenure = Tenure(2.0, asked_at=100.0)
    assert tenure.certain(101.7)
    assert not tenure.certain(101.9)


def test_a_renewal_counts_from_when_it_was_asked_for():
    tenure = Tenure(2.0, asked_at=100.0)
    tenure.renewed(101.0)
    assert tenure.certain(102.7)
    assert not tenure.certain(102.9)


def test_a_late_answer_to_an_older_question_shortens_nothing():
    tenure = Tenure(2.0, asked_at=100.0)
    tenure.renewed(101.0)
    tenure.renewed(100.5)
    assert tenure.certain(102.7)


def test_one_that_slept_through_its_end_is_uncertain_until_renewed():
    tenure = Tenure(2.0, asked_at=100.0)
    assert not tenure.certain(500.0)
    tenure.renewed(500.0)
    assert tenure.certain(501.0)

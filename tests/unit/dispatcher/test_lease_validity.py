"""How long the holder of a lease may rely on it."""

from dispatcher.leader.leadership import LeaseValidity


def test_validity_ends_before_the_lease_can_have_ended():
    validity = LeaseValidity(2.0, requested_at=100.0)
    assert validity.valid(101.7)
    assert not validity.valid(101.9)


def test_a_renewal_counts_from_when_it_was_requested():
    validity = LeaseValidity(2.0, requested_at=100.0)
    validity.renewed(101.0)
    assert validity.valid(102.7)
    assert not validity.valid(102.9)


def test_a_late_answer_to_an_older_question_shortens_nothing():
    validity = LeaseValidity(2.0, requested_at=100.0)
    validity.renewed(101.0)
    validity.renewed(100.5)
    assert validity.valid(102.7)


def test_one_that_slept_through_its_end_is_uncertain_until_renewed():
    validity = LeaseValidity(2.0, requested_at=100.0)
    assert not validity.valid(500.0)
    validity.renewed(500.0)
    assert validity.valid(501.0)

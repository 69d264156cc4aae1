"""Workers that claim labels they may not have."""

import pytest

from dispatcher.workers.link import AllowedLabels
from hoss.errors import InvalidInput

BY_PATTERN = {"gpu-*": {"accelerator": ("gpu",), "tier": ("batch", "service")}, "*": {"tier": ("batch",)}}


def test_without_allowances_workers_are_trusted():
    AllowedLabels({}).check("w1", {"anything": "goes"})


@pytest.mark.parametrize(
    ("name", "labels"),
    [("gpu-1", {"accelerator": "gpu", "tier": "service"}), ("gpu-2", {}), ("w1", {"tier": "batch"})],
)
def test_a_worker_may_have_the_labels_of_the_first_pattern_that_its_name_matches(name, labels):
    AllowedLabels(BY_PATTERN).check(name, labels)


@pytest.mark.parametrize(
    ("name", "labels", "told"),
    [
        (
            "w1",
            {"accelerator": "gpu"},
            ["accelerator=gpu is not w1's", "no accelerator at all", "worker_labels[*]"],
        ),
        ("gpu-1", {"tier": "gold"}, ["tier=gold", "tier=batch or tier=service", "worker_labels[gpu-*]"]),
    ],
)
def test_a_worker_that_claims_more_is_turned_away_and_told_what_it_may_have(name, labels, told):
    with pytest.raises(InvalidInput) as caught:
        AllowedLabels(BY_PATTERN).check(name, labels)
    assert all(part in str(caught.value) for part in told)


def test_a_name_that_no_pattern_matches_is_turned_away():
    with pytest.raises(InvalidInput, match=r"'stranger' matches none .*gpu-\*"):
        AllowedLabels({"gpu-*": {}}).check("stranger", {})

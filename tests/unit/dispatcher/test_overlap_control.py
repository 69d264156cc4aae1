"""The choice of overlap and number of workers, on simulated workers whose conflicts follow from both."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from dispatcher.core.dispatch.overlap_control import (
    OverlapControl,
    OverlapControlRules,
    OverlapSetting,
    Totals,
    WorkInHand,
)
from hoss.model.conflicts import Overlap

SHUFFLED, SOFT = Overlap.SHUFFLED, Overlap.SOFT_PARTITION


@dataclass
class Contention:
    """Workers that propose so many pods a second together; which share of them is refused depends on the
    setting."""

    share: dict[Overlap, float]  # refused, where all workers propose
    workers: int = 4
    proposed_each: int = 1000  # a second
    demand: float = float("inf")  # pods a second that there are to be bound
    overhead: float = 0.0  # how much less each proposes for each worker beyond one
    control: OverlapControl = field(default_factory=OverlapControl)
    now: float = 100.0
    totals: Totals = field(default_factory=lambda: Totals(0, 0, 0, loaded=False, workers=4))

    def __post_init__(self) -> None:
        self.control.begin(self.now)

    def run(self, seconds: float, *, loaded: bool = True) -> list[str]:
        """The reasons of the steps taken meanwhile."""
        told = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            if loaded:
                self._propose(0.1)
            step = self.control.observe(self.totals._replace(loaded=loaded, workers=self.workers), self.now)
            told += [step.reason] if step else []
        return told

    def _propose(self, seconds: float) -> None:
        overlap, at_once = self.control.setting
        working = min(at_once or self.workers, self.workers)
        share = self.share[overlap] * (working - 1) / (self.workers - 1)
        able = working * self.proposed_each * (1 - self.overhead * (working - 1))
        proposed = min(able, self.demand / (1 - share)) * seconds
        refused = proposed * share
        before = self.totals
        self.totals = before._replace(
            proposed=before.proposed + round(proposed),
            refused=before.refused + round(refused),
            bound=before.bound + round(proposed - refused),
        )


def test_nothing_is_changed_while_few_pods_are_refused():
    cluster = Contention({SHUFFLED: 0.05})
    assert cluster.run(600) == []
    assert cluster.control.setting == OverlapSetting(SHUFFLED, 0)


def test_conflicts_bring_a_soft_partition_which_stays_when_more_pods_are_bound():
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.05})
    tried, kept = cluster.run(10)
    assert "40.0% conflicts, 2,400 pods/s: conflicts are above 10%" in tried
    assert kept.startswith("kept: 40.0% conflicts, 2,400 pods/s before, 5.0% conflicts, 3,800 pods/s since")
    assert cluster.control.setting == OverlapSetting(SOFT, 0)


def test_a_partition_that_brings_nothing_is_taken_back_and_tried_ever_more_seldom():
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.4})
    reasons = cluster.run(300)
    assert sum(reason.startswith("taken back") for reason in reasons) in (3, 4)  # after 30, 60 and 120 s more
    assert cluster.control.setting.overlap is SHUFFLED


def test_a_step_may_be_taken_back_any_number_of_times_in_a_row():
    seldom = OverlapControlRules(
        window_seconds=1, settle_seconds=0, retry_seconds=1.0, longest_retry_seconds=2
    )
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.4}, control=OverlapControl(seldom))
    taken_back = 0
    while taken_back < 1100:
        reasons = cluster.run(10)
        assert reasons
        taken_back += sum(reason.startswith("taken back") for reason in reasons)


def test_fewer_workers_at_once_are_tried_where_a_partition_is_not_enough():
    cluster = Contention({SHUFFLED: 0.9, SOFT: 0.8}, overhead=0.2)
    cluster.run(120)
    overlap, workers = cluster.control.setting
    assert overlap is SOFT
    assert 1 <= workers < 4


def test_never_fewer_than_one_worker():
    cluster = Contention({SHUFFLED: 0.99, SOFT: 0.98}, overhead=0.24)
    cluster.run(3600)
    assert cluster.control.setting.workers >= 1


def test_a_step_that_saves_half_the_conflicts_at_the_same_throughput_is_kept():
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.02}, demand=1000)
    assert cluster.run(10)[-1].startswith("kept: ")
    assert cluster.control.setting.overlap is SOFT


def test_calm_brings_the_looser_way_back_step_by_step():
    cluster = Contention({SHUFFLED: 0.9, SOFT: 0.8}, overhead=0.2)
    cluster.run(120)
    cluster.share = {SHUFFLED: 0.0, SOFT: 0.0}
    cluster.overhead = 0.0
    settings = [cluster.control.setting]
    for _ in range(600):
        cluster.run(1)
        if cluster.control.setting != settings[-1]:
            settings.append(cluster.control.setting)
    assert settings[-1] == OverlapSetting(SHUFFLED, 0)
    assert all((a.overlap is b.overlap) or (a.workers == b.workers) for a, b in pairwise(settings))


def test_an_idle_platform_returns_to_where_it_began():
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.05})
    cluster.run(10)
    reasons = cluster.run(200, loaded=False)
    assert reasons == ["conflicts below 2% for 60 s"]
    assert cluster.control.setting == OverlapSetting(SHUFFLED, 0)


def test_conflicts_that_come_back_with_the_looser_way_end_it_and_the_next_try_waits_longer():
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.01})
    cluster.run(10)
    first = cluster.run(70)
    assert first[-1].startswith("taken back: 1.0% conflicts")
    assert cluster.control.setting.overlap is SOFT
    assert cluster.run(100) == []
    assert "for 120 s" in cluster.run(30)[0]


def test_time_without_work_is_not_measured():
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.4})
    cluster.run(2)
    assert cluster.run(30, loaded=False) == []
    assert cluster.control.setting == OverlapSetting(SHUFFLED, 0)
    assert cluster.run(2)[0].startswith("40.0% conflicts, 2,3")


def test_a_handful_of_pods_proves_nothing():
    cluster = Contention({SHUFFLED: 0.9}, proposed_each=5)
    assert cluster.run(50) == []


def test_one_worker_has_nobody_to_be_parted_from():
    cluster = Contention({SHUFFLED: 0.4}, workers=1)
    cluster._propose = lambda _seconds: None
    for _ in range(200):
        cluster.totals = cluster.totals._replace(
            proposed=cluster.totals.proposed + 100,
            refused=cluster.totals.refused + 90,
            bound=cluster.totals.bound + 10,
        )
        assert cluster.run(0.1) == []


def test_what_was_fixed_by_hand_is_not_changed():
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.0, Overlap.SHARED: 0.9})
    step = cluster.control.fix(Overlap.SHARED, 0, cluster.now)
    assert (step.setting, step.reason) == (OverlapSetting(Overlap.SHARED, 0), "by hand")
    assert cluster.run(600) == []
    assert cluster.control.setting == OverlapSetting(Overlap.SHARED, 0)


def test_what_was_left_open_is_still_chosen():
    cluster = Contention({Overlap.SHARED: 0.9}, overhead=0.2)
    cluster.control.fix(Overlap.SHARED, None, cluster.now)
    cluster.run(60)
    overlap, workers = cluster.control.setting
    assert overlap is Overlap.SHARED
    assert 1 <= workers < 4


def test_auto_gives_the_choice_back():
    cluster = Contention({SHUFFLED: 0.4, SOFT: 0.0, Overlap.SHARED: 0.4})
    cluster.control.fix(Overlap.SHARED, 2, cluster.now)
    cluster.run(60)
    cluster.control.fix(None, None, cluster.now)
    cluster.run(10)
    assert cluster.control.setting.overlap is SOFT


@pytest.mark.parametrize("overlap", [SHUFFLED, SOFT])
def test_configuration_fixes_from_the_start(overlap):
    cluster = Contention(
        {SHUFFLED: 0.4, SOFT: 0.4}, control=OverlapControl(OverlapControlRules(overlap=overlap, workers=3))
    )
    assert cluster.control.steps[0].reason == "by configuration"
    assert cluster.run(100) == []
    assert cluster.control.setting == OverlapSetting(overlap, 3)


def test_only_the_latest_steps_are_kept():
    cluster = Contention({SHUFFLED: 0.4})
    for _ in range(50):
        cluster.control.fix(SHUFFLED, 0, cluster.now)
    assert len(cluster.control.steps) == 20


BULK, LITTLE = WorkInHand(5000, 1000, 4), WorkInHand(50, 1000, 4)


def test_a_partition_that_was_taken_back_is_not_begun_for_a_bulk_until_it_may_be_tried_again():
    load = Contention({SHUFFLED: 0.2, SOFT: 0.2})
    load.run(12)
    assert load.control.setting == OverlapSetting(SHUFFLED, 0)
    assert load.control.foresee(BULK, load.now) is None
    assert load.control.foresee(BULK, load.now + 30) is not None


def test_during_a_bulk_calm_does_not_end_its_partition_and_conflicts_still_take_workers_from_it():
    load = Contention({SHUFFLED: 0.3, SOFT: 0.0})
    load.control.foresee(BULK, load.now)
    load.run(100)
    assert load.control.setting == OverlapSetting(SOFT, 0)
    load.share[SOFT] = 0.3
    assert any("conflicts are above 10%" in reason for reason in load.run(5))
    assert load.control.setting == OverlapSetting(SOFT, 3)


def test_a_partition_that_conflicts_had_brought_before_is_not_ended_with_a_bulk():
    load = Contention({SHUFFLED: 0.3, SOFT: 0.0})
    load.run(12)
    assert load.control.setting == OverlapSetting(SOFT, 0)
    assert load.control.foresee(BULK, load.now) is None
    assert load.control.foresee(LITTLE, load.now + 100) is None
    assert load.control.setting == OverlapSetting(SOFT, 0)

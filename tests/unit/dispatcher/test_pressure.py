"""Back pressure: how full the dispatcher is, and what it replies."""

import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Settings
from dispatcher.core.pods.sets import NewJob, Order
from dispatcher.core.policy.rules import Policy, Rule, Sharing
from dispatcher.core.queue.pressure import IDLE_RETRY_SECONDS, LONGEST_PAUSE_SECONDS, PressureLimits
from hoss.model.pod import PodSpec
from hoss.model.slices import finished


def full_bench(new_bench, *, pods: int = 1000, record_bytes: int = 10_000, policy: Policy | None = None):
    return new_bench(
        policy,
        settings=Settings(
            worker_timeout_seconds=1e9, limits=PressureLimits(pods, record_bytes, slow_from=0.8)
        ),
    )


def refusal(bench, pods: int, record_bytes: int = 0, tenant: str = ""):
    return finished(bench.machine.pressure.refusal(pods, record_bytes, bench.now, tenant))


def test_streams_are_slowed_the_more_the_fuller_it_is(new_bench):
    bench = full_bench(new_bench)
    pauses = []
    for number in range(5):
        bench.job(f"job-{number}", 200)
        bench.now += 1.0
        pauses.append(bench.machine.pressure.pause_seconds(bench.now))
    assert pauses[:4] == [0, 0, 0, 0]
    assert pauses[4] == pytest.approx(LONGEST_PAUSE_SECONDS)


def test_what_does_not_fit_is_refused_and_what_fits_is_not(new_bench):
    bench = full_bench(new_bench)
    bench.job("job", 900)
    bench.now += 1.0
    assert "900 pods wait and 1000 may: nothing of these 101 was accepted" in refusal(bench, 101).text
    assert refusal(bench, 100) is None


def test_several_that_come_at_once_do_not_fit_together(new_bench):
    bench = full_bench(new_bench)
    assert [refusal(bench, 400) is None for _ in range(4)] == [True, True, False, False]


def test_pods_that_are_bound_make_room_and_pods_that_are_deleted_too(new_bench):
    bench = full_bench(new_bench)
    rows = bench.job("job", 1000)
    bench.now += 1.0
    assert refusal(bench, 500) is not None
    bench.join("w1")
    bench.answer("w1", m.OutcomeCode.BOUND)
    bench.now += 1.0
    assert refusal(bench, 500) is None
    bench.handle(m.Deleted(rows[500:]))
    bench.now += 1.0
    assert refusal(bench, 1000) is None


def test_how_long_to_wait_follows_from_how_fast_the_queue_drains(new_bench):
    bench = full_bench(new_bench)
    bench.job("job", 1000)
    bench.now += 1.0
    assert refusal(bench, 500).retry_after_seconds == IDLE_RETRY_SECONDS  # nothing drains
    bench.join("w1", window=100)
    bench.answer("w1", m.OutcomeCode.BOUND)  # 50 pods in a second
    bench.now += 1.0
    assert refusal(bench, 500).retry_after_seconds == pytest.approx(450 / 50)


def test_records_of_submissions_have_a_limit_of_their_own(new_bench):
    bench = full_bench(new_bench)
    bench.machine.registry.record_bytes = 9_000
    assert "deleting jobs makes room" in refusal(bench, 1, 2_000).text
    assert refusal(bench, 1, 1_000) is None
    assert bench.machine.pressure.pause_seconds(bench.now) == pytest.approx(LONGEST_PAUSE_SECONDS / 2)


@pytest.mark.parametrize(("pods", "record_bytes"), [(1001, 0), (1, 10_001)])
def test_what_never_fits_is_refused_for_good(new_bench, pods, record_bytes):
    found = refusal(full_bench(new_bench), pods, record_bytes)
    assert found.retry_after_seconds is None
    assert "submit them in parts" in found.text


def test_a_forgotten_submission_gives_its_bytes_back(bench):
    rows = bench.job("job", 10)
    submission = bench.machine.registry.set_of(int(rows[0])).submission
    submission.record_bytes = bench.machine.registry.record_bytes = 500
    bench.handle(m.Deleted(rows))
    bench.pass_time(2.0)
    assert bench.machine.registry.record_bytes == 0


def test_a_tenants_client_fills_the_dispatcher_up_to_its_share_and_leaves_the_rest_to_others(new_bench):
    bench = full_bench(new_bench)
    bench.job("flood", 790, spec=PodSpec(namespace="red"))
    bench.job("other", 10, spec=PodSpec(namespace="blue"))
    bench.now += 10.0
    text = "790 pods of tenant 'red' wait, and its share of a full dispatcher is 500: nothing of these 1 "
    assert text in refusal(bench, 1, 0, "red").text
    assert refusal(bench, 100, 0, "blue") is None
    assert refusal(bench, 50, 0) is None  # a client that is limited to no tenant
    assert refusal(bench, 40, 0, "green") is None  # a third tenant
    # What was accepted since the count is counted, and the limit holds for everybody.
    assert "990 pods wait and 1000 may" in refusal(bench, 11, 0, "blue").text


def test_pods_of_tenants_are_counted_in_slices(new_bench):
    bench = full_bench(new_bench, pods=400_000)
    bench.job("flood", 390_000, spec=PodSpec(namespace="red"))
    bench.job("other", 10, spec=PodSpec(namespace="blue"))
    bench.now += 10.0
    steps = bench.machine.pressure.refusal(1, 0, bench.now, "red")
    slices_micros = [next(steps) for _ in range(3)]
    assert max(slices_micros) < 1000
    assert "390000 pods of tenant 'red' wait" in finished(steps).text


def test_with_room_a_tenant_may_have_more_than_its_share(new_bench):
    bench = full_bench(new_bench)
    bench.job("other", 10, spec=PodSpec(namespace="blue"))
    bench.job("flood", 600, spec=PodSpec(namespace="red"))
    bench.now += 10.0
    assert refusal(bench, 100, 0, "red") is None


def test_weights_count_for_shares_of_a_full_dispatcher(new_bench):
    policy = Policy((Rule("all"),), sharing=Sharing(weights={"red": 9.0}))
    bench = full_bench(new_bench, policy=policy)
    bench.job("other", 1, spec=PodSpec(namespace="blue"))
    bench.job("flood", 820, spec=PodSpec(namespace="red"))
    bench.now += 10.0
    refusals = [refusal(bench, 50, 0, "red") for _ in range(2)]
    assert refusals[0] is None
    assert "its share of a full dispatcher is 900" in refusals[1].text


def test_records_of_a_tenants_clients_are_held_to_its_share_and_forgotten_with_their_jobs(new_bench):
    bench = full_bench(new_bench)
    registry = bench.machine.registry

    def submitted(tenant: str, record_bytes: int):
        order = Order(
            f"of-{tenant}",
            (bench._template(PodSpec(namespace=tenant)),),
            (NewJob("job", 0, 1),),
            None,
            record_bytes=record_bytes,
            submitted_by=f"client/{tenant}@{tenant}",
        )
        return bench.admit_order(order)

    floods = submitted("red", 7000)
    submitted("blue", 500)
    text = "records of tenant 'red' hold 7000 bytes, and its share of a full dispatcher is 5000"
    assert text in refusal(bench, 1, 600, "red").text
    assert refusal(bench, 1, 600, "blue") is None
    assert registry.tenant_bytes == {"red": 7000, "blue": 500}
    bench.handle(m.Deleted(floods))
    bench.pass_time(10.0)
    assert registry.tenant_bytes == {"blue": 500}

"""Deletions and submissions of any size: others get their turn meanwhile, and nothing is left half done."""

import asyncio
import random

import numpy as np
import pytest

from dispatcher.api.admission import Admission
from dispatcher.api.cluster_objects import ClusterObjectStore
from dispatcher.api.intake import read_order
from dispatcher.core import messages as m
from dispatcher.core.pods.sets import AlreadyExists
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.rules import Policy, Rule, Sharing
from dispatcher.journal.memory import MemoryJournal
from dispatcher.runtime import Runtime
from hoss.errors import AccessDenied, InvalidInput
from hoss.model.cluster import PriorityClass
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb

PODS = 350_000  # several slices


@pytest.fixture
def journal():
    return MemoryJournal()


async def at_once(_prefixes):
    """No pods are moved."""


@pytest.fixture
def admission(bench, journal):
    runtime = Runtime(bench.machine, None, journal, clock=lambda: bench.now)
    return admission_of(runtime)


def admission_of(runtime, until_moved=at_once):
    objects = ClusterObjectStore(runtime, follows_cluster=False)
    return Admission(runtime, objects, None, rng=random.Random(1), until_moved=until_moved)


def finds(rows):
    async def find(_newest):
        return rows

    return find


async def seen_meanwhile(bench, rows, task) -> set[int]:
    """How many pods were deleted at the turns that others got while the task ran."""
    seen = set()
    while not task.done():
        await asyncio.sleep(0)
        seen.add(bench.phases(rows[:: PODS // 50]).count(Phase.DELETED))
    return seen


async def test_while_a_large_job_is_deleted_others_get_their_turn(bench, admission):
    rows = bench.job("large", PODS)
    deleting = asyncio.ensure_future(admission.delete(finds(rows)))
    assert len(await seen_meanwhile(bench, rows, deleting)) >= 4
    assert await deleting == PODS
    assert bench.all_are(rows, Phase.DELETED)


async def test_while_gates_of_a_large_job_are_removed_others_get_their_turn(bench, admission):
    rows = bench.job("large", PODS, gates=("a.io/quota",))
    removing = asyncio.ensure_future(admission.remove_gates(finds(rows), frozenset()))
    before, seen = 0, set()
    while not removing.done():
        await asyncio.sleep(0)
        seen.add(bench.phases(rows[:: PODS // 50]).count(Phase.UNSCHEDULABLE))
        before += len(seen) == 1
    assert before >= 3 * 4  # slices are looked at, sorted by gates, and noted for the journal
    assert len(seen) >= 4
    assert await removing == (PODS, PODS)


async def test_each_pod_loses_the_gates_that_are_named_whatever_others_it_has(bench, admission, journal):
    both = bench.job("both", 2, gates=("a.io/quota", "a.io/data"))
    one, none = bench.job("one", 3, gates=("a.io/quota",)), bench.job("none", 2)
    named = np.concatenate([both, one, none])
    assert await admission.remove_gates(finds(named), frozenset({"a.io/quota"})) == (5, 3)
    assert bench.all_are(both, Phase.UNSCHEDULABLE)
    assert bench.all_are(one, Phase.QUEUED)
    assert await admission.remove_gates(finds(both[:1]), frozenset()) == (1, 1)
    removals = (await journal.recover()).ungated.values()
    assert sorted((gate, int(mask.sum())) for of_set in removals for gate, mask in of_set.items()) == [
        ("a.io/data", 1),
        ("a.io/quota", 2),
        ("a.io/quota", 3),
    ]


async def test_while_failed_pods_are_looked_for_others_get_their_turn(bench, admission):
    rows = bench.job("large", PODS)
    looking, turns = asyncio.ensure_future(admission.retry(finds(rows))), 0
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1
    assert await looking == 0
    assert turns >= 4


async def test_a_deletion_is_in_the_journal_before_the_first_pod_is_deleted(bench, admission, journal):
    rows = bench.job("large", PODS)
    deleting = asyncio.ensure_future(admission.delete(finds(rows)))
    while Phase.DELETED not in bench.phases(rows[:1]):  # noqa: ASYNC110 - turn by turn
        await asyncio.sleep(0)
    assert not deleting.done()
    (bitmap,) = (await journal.recover()).deletions.values()
    assert bitmap.all()
    await deleting


async def test_a_deletion_whose_client_leaves_is_not_left_half_done(bench, admission):
    rows = bench.job("large", PODS)
    deleting = asyncio.ensure_future(admission.delete(finds(rows)))
    while Phase.DELETED not in bench.phases(rows[:1]):  # noqa: ASYNC110 - turn by turn
        await asyncio.sleep(0)
    deleting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    another = bench.job("small", 3)
    assert await admission.delete(finds(another)) == 3  # after the large one
    assert bench.all_are(rows, Phase.DELETED)


async def test_pods_that_got_rows_of_deleted_ones_while_a_deletion_looks_at_its_rows_are_not_deleted(
    bench, admission
):
    rows, gone = bench.job("large", PODS), bench.job("gone", PODS)
    bench.handle(m.Deleted(gone))
    named = asyncio.Event()

    async def find(_newest):
        named.set()
        return np.concatenate([rows, gone])

    deleting = asyncio.ensure_future(admission.delete(find))
    await named.wait()
    for _ in range(5):
        bench.pass_time(40)
    others = bench.job("others", 1000)
    assert np.isin(others, gone).all(), "they have other rows"
    assert not deleting.done()
    assert await deleting == PODS
    assert bench.all_are(rows, Phase.DELETED)
    assert not {Phase.DELETED, Phase.ABSENT} & set(bench.phases(others))


async def test_pods_that_got_rows_of_deleted_ones_while_rows_are_looked_up_are_not_deleted(bench, admission):
    gone, others = bench.job("gone", 1000), []
    bench.handle(m.Deleted(gone))

    async def find(_newest):
        for _ in range(5):
            bench.pass_time(40)
        others.extend(bench.job("others", 1000))
        return gone

    assert await admission.delete(find) == 0
    assert np.isin(others, gone).all(), "they have other rows"
    assert not {Phase.DELETED, Phase.ABSENT} & set(bench.phases(others))


async def test_a_large_job_comes_in_slices_and_each_of_its_pods_once(bench, admission):
    spec = common_pb2.PodSpec(namespace="default")
    job = pb.Job(name="large", replicas=PODS)
    submitting = asyncio.ensure_future(
        admission.submit(pb.SubmitRequest(templates=[pb.PodTemplate(spec=spec)], jobs=[job]))
    )
    seen = set()
    while not submitting.done():
        await asyncio.sleep(0)
        seen.add(bench.machine.counters["accepted"])
    assert {100_000, 200_000, 300_000} <= seen
    assert bench.machine.counters["accepted"] == PODS
    assert bench.machine.queues.active.count(0) == PODS


async def test_rows_that_are_named_twice_are_deleted_once(bench, admission):
    rows = bench.job("j", 5000)
    assert await admission.delete(finds(rows[[*range(3000), *range(2000)]])) == 3000
    assert bench.phases(rows).count(Phase.DELETED) == 3000


def request(*, request_id="r", templates=1, replicas=0, names=0, job="large") -> pb.SubmitRequest:
    message = pb.SubmitRequest(request_id=request_id)
    for number in range(templates):
        template = message.templates.add(scheduler_name="hoss")
        template.spec.namespace = "default"
        template.spec.requests.add(resource="cpu", amount=number)
    if replicas:
        message.jobs.add(name=job, template=0, replicas=replicas)
    if names:
        message.pods.names.extend(f"pod-{number}" for number in range(names))
        message.pods.templates = (np.arange(names) % templates).astype("<u4").tobytes()
    return message


LARGE = [{"replicas": PODS}, {"templates": 5000, "names": 5000}, {"names": 30_000}]


@pytest.mark.parametrize("size", LARGE, ids=["replicas", "templates", "names"])
async def test_while_a_large_submission_is_accepted_others_get_their_turn(bench, admission, size):
    submitting = asyncio.ensure_future(admission.submit(request(**size)))
    turns = 0
    while not submitting.done():
        await asyncio.sleep(0)
        turns += 1
        bench.machine.check()
    reply = await submitting
    assert turns >= 12
    assert reply.accepted_pods == size.get("replicas", 0) + size.get("names", 0)
    pods = bench.machine.registry.pods
    assert (pods.phase[: reply.accepted_pods] == Phase.QUEUED).all()
    assert len(np.unique(pods.uid[: reply.accepted_pods], axis=0)) == reply.accepted_pods


@pytest.mark.parametrize("size", LARGE, ids=["replicas", "templates", "names"])
async def test_a_large_submission_in_slices_is_the_same_as_one_at_once(new_bench, bench, admission, size):
    await admission.submit(request(**size))
    whole = new_bench().machine.registry
    whole.accept(read_order(request(**size)), 0)
    registry, count = bench.machine.registry, whole.pods.size
    assert registry.pods.size == count
    for column in ("uid", "pod_set", "template", "node", "worker", "gang", "batch"):
        assert (getattr(registry.pods, column)[:count] == getattr(whole.pods, column)[:count]).all(), column
    assert (registry.templates.users[: size.get("templates", 1)] > 0).all()
    assert registry.templates.users.sum() == whole.templates.users.sum() == count


async def test_of_two_large_submissions_with_one_name_the_first_is_accepted(bench, admission):
    outcomes = await asyncio.gather(
        *(admission.submit(request(request_id=str(number), replicas=PODS)) for number in range(2)),
        return_exceptions=True,
    )
    assert outcomes[0].accepted_pods == PODS
    assert isinstance(outcomes[1], AlreadyExists)
    assert len(bench.machine.registry.directory.submissions) == 1


async def test_a_large_submission_that_comes_twice_at_once_is_accepted_once(bench, admission):
    replies = await asyncio.gather(*(admission.submit(request(replicas=PODS)) for _ in range(3)))
    assert [reply.accepted_pods for reply in replies] == [PODS] * 3
    assert bench.machine.registry.pods.size == PODS


async def test_a_large_submission_whose_client_leaves_is_accepted_whole(bench, admission, journal):
    submitting = asyncio.ensure_future(admission.submit(request(replicas=PODS)))
    for _ in range(3):
        await asyncio.sleep(0)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert (await admission.submit(request(replicas=PODS))).accepted_pods == PODS
    assert len((await journal.recover()).records) == 1


async def test_a_deletion_that_comes_while_a_large_job_is_admitted_deletes_all_of_it(bench, admission):
    directory = bench.machine.registry.directory
    submitting = asyncio.ensure_future(admission.submit(request(replicas=PODS)))
    while not bench.machine.counters["accepted"]:  # noqa: ASYNC110 - turn by turn
        await asyncio.sleep(0)
    assert not submitting.done()

    async def find(_newest):
        return bench.machine.registry.rows_of(directory.job("default", "large"))

    assert await admission.delete(find) == PODS
    await submitting


async def test_a_request_that_is_made_again_is_accepted_once_moves_of_its_deleted_pods_have_ended(
    bench, journal
):
    asked, moved, prefixes = asyncio.Event(), asyncio.Event(), []

    async def until_moved(of):
        prefixes.extend(of)
        asked.set()
        await moved.wait()

    runtime = Runtime(bench.machine, None, journal, clock=lambda: bench.now)
    submitting = asyncio.ensure_future(admission_of(runtime, until_moved).submit(request(replicas=2)))
    await asked.wait()
    assert not (await journal.recover()).records
    moved.set()
    assert [each.uid_prefix for each in (await submitting).sets] == prefixes
    assert len((await journal.recover()).records) == 1


async def test_templates_that_no_pod_of_the_message_has_are_not_kept(bench, admission):
    message = request(templates=3, replicas=10)
    await admission.submit(message)
    assert len(bench.machine.registry.templates.live_ids()) == 1


@pytest.mark.parametrize("kind", ["required", "preferred", "anti_required", "anti_preferred", "spread"])
async def test_a_pod_with_too_many_terms_about_others_is_refused_by_the_name_of_the_limit(bench, kind):
    runtime = Runtime(bench.machine, None, MemoryJournal(), clock=lambda: bench.now)
    admission = Admission(
        runtime,
        ClusterObjectStore(runtime, follows_cluster=False),
        None,
        rng=random.Random(1),
        until_moved=at_once,
        max_pod_terms=3,
    )
    for terms, refused in ((4, True), (3, False)):
        message = request(replicas=2)
        spec = message.templates[0].spec
        for _ in range(terms):
            (spec.spread if kind == "spread" else getattr(spec.pod_affinity, kind)).add()
        if refused:
            with pytest.raises(InvalidInput, match=r"templates\[0\].*has 4 .*max_pod_terms .* allows 3"):
                await admission.submit(message)
        else:
            assert (await admission.submit(message)).accepted_pods == 2


def test_between_two_slices_of_a_growing_table_time_may_pass_and_waiting_pods_may_be_deleted(bench):
    """Deleted pods are swept from the queues, which looks at whole columns."""
    registry = bench.machine.registry
    bench.job("kept", 300)
    gone = [bench.job(f"gone-{number}", 3) for number in range(40)]
    steps = registry.accepting(read_order(request(replicas=PODS)), 0)
    taken = 0
    for _ in steps:
        if taken < len(gone):
            bench.handle(m.Deleted(gone[taken]))
            bench.pass_time(5)
            bench.machine.check()
        taken += 1
    assert taken > 20  # the columns, and slices of rows
    left = 3 * max(0, len(gone) - taken)
    assert (registry.pods.phase[: registry.pods.size] == Phase.QUEUED).sum() == 300 + left


def of_priority(priority: int, name: str, class_name: str = "") -> pb.SubmitRequest:
    spec = common_pb2.PodSpec(namespace="blue", priority=priority)
    template = pb.PodTemplate(spec=spec, owner_kind="Job", priority_class_name=class_name)
    return pb.SubmitRequest(
        request_id=name, templates=[template], jobs=[pb.Job(name=name, template=0, replicas=1)]
    )


async def test_a_tenants_client_gives_no_priority_by_which_it_would_take_others_place(bench, admission):
    """Neither as a number nor by the name of a class that operators made for others."""
    bench.handle(m.ObjectsApplied((PriorityClass("urgent", 1000),)))
    for message in (of_priority(1, "number"), of_priority(0, "class", "urgent")):
        with pytest.raises(
            AccessDenied, match="is over 0, the highest that clients of tenant 'blue' may give"
        ):
            await admission.submit(message, "blue")
    assert not list(bench.machine.registry.directory.jobs())
    for name, priority in (("plain", 0), ("modest", -5)):
        await admission.submit(of_priority(priority, name), "blue")
    await admission.submit(of_priority(1000, "of-an-operator"))  # of a client that is limited to no tenant


async def test_the_policy_says_how_high_a_tenants_priorities_may_be(new_bench, journal):
    sharing = Sharing(max_priorities={"blue": 100}, default_max_priority=-1)
    bench = new_bench(Policy((Rule("all"),), sharing=sharing))
    runtime = Runtime(bench.machine, None, journal, clock=lambda: bench.now)
    objects = ClusterObjectStore(runtime, follows_cluster=False)
    admission = Admission(runtime, objects, None, rng=random.Random(1), until_moved=at_once)
    await admission.submit(of_priority(100, "highest"), "blue")
    with pytest.raises(AccessDenied, match="priority 101 is over 100"):
        await admission.submit(of_priority(101, "higher"), "blue")
    with pytest.raises(AccessDenied, match="priority 0 is over -1"):
        await admission.submit(of_priority(0, "other"), "red")
    # What everybody gets who says nothing is not refused.
    bench.handle(m.ObjectsApplied((PriorityClass("usual", 500, global_default=True),)))
    await admission.submit(of_priority(0, "usual"), "red")
    assert bench.machine.registry.directory.job("blue", "usual") is not None

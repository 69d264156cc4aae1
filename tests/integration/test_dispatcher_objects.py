"""Cluster objects in a real dispatcher process with a real journal: applied, listed, removed, remembered."""

import pytest
from integration.test_dispatcher_process import (  # noqa: F401 - fixtures
    BOUND,
    FakeWorker,
    Platform,
    job,
    ledger,
    platform,
    until_phases,
)

from hoss.errors import InvalidInput
from hoss.model.cluster import Namespace, ObjectKey, PodDisruptionBudget, PriorityClass, Service, Threshold
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import workerlink_pb2
from hoss.wire.pages import PAGE_ENTRIES

WEB = LabelSelector((Requirement("app", "In", ("web",)),))
OBJECTS = [
    Namespace("shop", (("team", "a"),)),
    PodDisruptionBudget("shop", "web", WEB, max_unavailable=Threshold(25, percent=True)),
    PriorityClass("high", 1000, never_preempts=True),
    Service("shop", (("app", "web"),), "web"),
]


async def test_objects_survive_kill_9_of_the_dispatcher_and_workers_hear_of_them(platform: Platform):  # noqa: F811
    client = await platform.start()
    assert await client.apply_objects(OBJECTS) == ["created"] * 4
    assert await client.apply_objects(OBJECTS[:1]) == ["unchanged"]
    relabelled = Namespace("shop", (("team", "b"),))
    assert await client.apply_objects([relabelled, OBJECTS[1]]) == ["configured", "unchanged"]
    key = ObjectKey("PriorityClass", "", "high")
    assert await client.delete_objects([key, ObjectKey("Service", "else", "web")]) == [
        ObjectKey("Service", "else", "web")
    ]
    platform.kill()
    client = await platform.start()
    worker = await platform.worker("w1")
    assert await worker.hears_of("shop") == {"team": "b"}
    assert await client.list_objects() == [Namespace("default"), relabelled, OBJECTS[1], OBJECTS[3]]
    assert await client.list_objects("Service", "else") == []
    await client.apply_objects([Namespace("shop")])
    assert await worker.hears_of("shop") == {}


async def test_objects_come_in_pages_with_the_statuses_of_their_budgets(platform: Platform):  # noqa: F811
    client = await platform.start()
    budgets = [
        PodDisruptionBudget("default", f"b{number:04}", WEB, min_available=Threshold(number))
        for number in range(PAGE_ENTRIES + 50)
    ]
    await client.apply_objects([*budgets, *OBJECTS])
    listed = await client.list_objects()
    assert listed == [Namespace("default"), OBJECTS[0], *budgets, *OBJECTS[1:]]
    assert [
        (budget.name, status.desired_healthy) for budget, status in await client.list_budgets("default")
    ] == [(f"b{number:04}", number) for number in range(PAGE_ENTRIES + 50)]
    with pytest.raises(InvalidInput, match="page_token: '/Service/web' is not from an earlier reply"):
        await client._call(client.stub.ListObjects, pb.ListObjectsRequest(page_token="/Service/web"))


async def test_a_budget_allows_as_many_disruptions_as_more_pods_are_bound_than_it_desires(platform: Platform):  # noqa: F811
    client = await platform.start()
    every = LabelSelector()  # in policy/v1: all pods of the namespace
    await client.apply_objects(
        [
            PodDisruptionBudget("default", "every", every, min_available=Threshold(7)),
            PodDisruptionBudget("default", "none", None, max_unavailable=Threshold(1)),
            PodDisruptionBudget("default", "web", WEB, max_unavailable=Threshold(10, percent=True)),
        ]
    )

    async def standings():
        return [
            (b.name, s.expected_pods, s.current_healthy, s.desired_healthy, s.disruptions_allowed)
            for b, s in await client.list_budgets("default")
        ]

    worker = await platform.worker("w1")
    await client.submit(job("web", 10))
    (batch,) = await worker.take(10)
    assert await standings() == [("every", 10, 0, 7, 0), ("none", 0, 0, 0, 0), ("web", 0, 0, 0, 0)]
    await worker.answer(batch, BOUND)
    await until_phases(client, BOUND=10)
    assert await standings() == [("every", 10, 10, 7, 3), ("none", 0, 0, 0, 0), ("web", 0, 0, 0, 0)]
    assert await client.list_budgets("shop") == []


async def test_an_object_that_is_wrong_takes_none_of_its_message_along(platform: Platform):  # noqa: F811
    client = await platform.start()
    both = PodDisruptionBudget("shop", "web", WEB, Threshold(1), Threshold(1))
    with pytest.raises(InvalidInput, match="PodDisruptionBudget shop/web stands beside min_available"):
        await client.apply_objects([OBJECTS[0], both])
    assert await client.list_objects() == [Namespace("default")]


async def test_pods_have_the_priority_of_their_class_or_of_the_default_one(platform: Platform):  # noqa: F811
    client = await platform.start()
    await client.apply_objects([OBJECTS[2], PriorityClass("usual", 7, global_default=True)])
    named, plain = job("named", 1), job("plain", 1)
    named.templates[0].priority_class_name = "high"
    for request in (named, plain):
        await client.submit(request)
    template = (await client.get_pod("default", "named-0")).template
    assert (template.spec.priority, template.spec.never_preempts) == (1000, True)
    template = (await client.get_pod("default", "plain-0")).template
    assert (template.spec.priority, template.priority_class_name) == (7, "usual")
    other = job("other", 1)
    other.templates[0].priority_class_name, other.templates[0].spec.priority = "high", 5
    with pytest.raises(InvalidInput, match="is 5, but priority class high stands for 1000"):
        await client.submit(other)
    platform.kill()
    client = await platform.start()
    assert (await client.get_pod("default", "named-0")).template.spec.priority == 1000


async def told_as_allowed(worker: FakeWorker) -> list[int]:
    """What budgets allow a worker that asks who may go on the node."""
    await worker.say(
        preemption=workerlink_pb2.PreemptionQuestion(id=1, priority=10, nodes=b"\3\0\0\0", limit=100)
    )
    while not (message := await worker.read()).HasField("preemption"):
        pass
    return [budget.allowed for budget in message.preemption.budgets]


async def test_what_a_budget_allows_is_told_to_one_worker_at_a_time(platform: Platform):  # noqa: F811
    client = await platform.start()
    await client.apply_objects([PodDisruptionBudget("default", "web", WEB, min_available=Threshold(2))])
    first = await platform.worker("w1")
    await client.submit(job("web", 3, labels=(("app", "web"),)))
    for batch in await first.take(3):
        await first.answer(batch, BOUND)
    await until_phases(client, BOUND=3)
    second = await platform.worker("w2")
    assert [await told_as_allowed(worker) for worker in (first, second, first)] == [[1], [0], [1]]

"""Lists of jobs, pods, workers and tenants: in pages, and in slices between which others get their turn."""

import asyncio
from uuid import UUID

import numpy as np
import pytest

from dispatcher.api.pod_queries import PodQueries, UnplaceablePods
from dispatcher.api.queries import Queries
from dispatcher.api.tenancy import TenantView
from dispatcher.core import messages as m
from dispatcher.core.kubernetes.pod_objects import PodReader
from dispatcher.core.pods.sets import NewGang, NewJob, Order
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.moving import Mover
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ledger.rebinding import Rebinding
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput
from hoss.model.pod import PodSpec
from hoss.model.slices import finished
from hoss.tasks import in_turns
from hoss.v1 import dispatcher_pb2 as pb

JOBS = 2500


@pytest.fixture
def runtime(bench):
    return Runtime(bench.machine, None, None, clock=lambda: bench.now)


@pytest.fixture
def queries(runtime):
    return Queries(runtime, ClusterNodes(), None)


@pytest.fixture
def pod_queries(runtime):
    nodes = ClusterNodes()
    return PodQueries(runtime, nodes, Mover(runtime, nodes, Rebinding(runtime, nodes)))


def pages(queries, **request):
    """The names of the jobs, page by page."""
    found, token = [], ""
    while True:
        reply = finished(queries.jobs(pb.ListJobsRequest(page_token=token, **request)))
        found.append([job.name for job in reply.jobs])
        token = reply.next_page_token
        if not token:
            return found


def test_pages_hold_each_job_once_in_order_of_submission(bench, queries):
    names = [f"job-{number}" for number in range(7)]
    for name in names:
        bench.job(name, 2)
    assert pages(queries, limit=3) == [names[:3], names[3:6], names[6:]]
    assert pages(queries, limit=7) == [names]


def test_a_client_that_asks_for_no_pages_gets_all_jobs(bench, queries):
    for number in range(7):
        bench.job(f"job-{number}", 2)
    (page,) = pages(queries)
    assert len(page) == 7


def test_the_last_page_has_no_successor_where_the_jobs_after_it_are_others(bench, queries):
    for number in range(4):
        bench.job(f"job-{number}", 1)
    assert pages(queries, limit=1, name="job-1") == [["job-1"]]
    assert pages(queries, limit=1, namespace="another") == [[]]


def test_a_job_that_ends_between_two_pages_takes_no_other_from_them(bench, queries):
    rows = [bench.job(f"job-{number}", 1) for number in range(4)]
    first = finished(queries.jobs(pb.ListJobsRequest(limit=2)))
    for number in (0, 2):
        bench.handle(m.Deleted(rows[number]))
    bench.pass_time(2)
    bench.pass_time(2)
    rest = finished(queries.jobs(pb.ListJobsRequest(limit=2, page_token=first.next_page_token)))
    assert [job.name for job in rest.jobs] == ["job-3"]


def test_a_token_that_no_reply_gave_is_refused(bench, queries):
    with pytest.raises(InvalidInput, match="'x' is not from an earlier reply"):
        finished(queries.jobs(pb.ListJobsRequest(page_token="x")))


async def test_while_all_jobs_are_listed_others_get_their_turn_and_jobs_may_end(bench, queries):
    rows = [bench.job(f"job-{number}", 1) for number in range(JOBS)]
    listing = asyncio.ensure_future(in_turns(queries.jobs(pb.ListJobsRequest())))
    await asyncio.sleep(0)
    assert not listing.done()
    for row in rows[-5:]:
        bench.handle(m.Deleted(row))
    for _ in range(3):
        bench.pass_time(10)
    assert len((await listing).jobs) == JOBS - 5


async def test_while_a_page_of_pods_is_made_others_get_their_turn_and_rows_may_change_hands(
    bench, pod_queries
):
    rows = bench.job("large", 3000)
    listing = asyncio.ensure_future(in_turns(pod_queries.list_pods(pb.ListPodsRequest(limit=3000))))
    await asyncio.sleep(0)
    assert not listing.done()
    bench.handle(m.Deleted(rows))
    for _ in range(3):
        bench.pass_time(10)
    assert bench.all_are(rows, Phase.ABSENT)
    bench.job("another", 3000)  # in the same rows
    names = [pod.name for pod in (await listing).pods]
    assert 0 < len(names) < 3000
    assert all(name.startswith("large-") for name in names)


def all_pages(ask, request):
    """The names of the entries, page by page."""
    found = []
    while True:
        reply = finished(ask(request))
        entries = reply.workers if isinstance(reply, pb.ListWorkersReply) else reply.tenants
        found.append([entry.name for entry in entries])
        if not reply.next_page_token:
            return found
        request.page_token = reply.next_page_token


def test_pages_of_workers_hold_each_once_by_name(bench, queries):
    for name in ("w3", "w1", "w2"):
        bench.join(name)
    assert all_pages(queries.workers, pb.ListWorkersRequest(limit=2)) == [["w1", "w2"], ["w3"]]
    assert all_pages(queries.workers, pb.ListWorkersRequest(limit=1, steps=True)) == [["w1"], ["w2"], ["w3"]]
    assert all_pages(queries.workers, pb.ListWorkersRequest()) == [["w1", "w2", "w3"]]


def test_pages_of_tenants_hold_each_once_by_name(bench, queries):
    for namespace in ("c", "a", "b"):
        bench.job("job", 2, spec=PodSpec(namespace=namespace))
    assert all_pages(queries.tenants, pb.ListTenantsRequest(limit=2)) == [["a", "b"], ["c"]]
    assert all_pages(queries.tenants, pb.ListTenantsRequest()) == [["a", "b", "c"]]


async def test_while_workers_are_listed_others_get_their_turn(bench, queries):
    for number in range(1000):
        bench.join(f"w{number}")
    listing = asyncio.ensure_future(in_turns(queries.workers(pb.ListWorkersRequest())))
    await asyncio.sleep(0)
    assert not listing.done()
    assert len((await listing).workers) == 1000


def pod_pages(pod_queries, **request):
    found = []
    while True:
        reply = finished(pod_queries.list_pods(pb.ListPodsRequest(**request)))
        found.append([pod.name for pod in reply.pods])
        if not reply.next_page_token:
            return found
        request["page_token"] = reply.next_page_token


def test_pages_of_pods_hold_each_once_also_over_the_ends_of_slices(bench, pod_queries):
    bench.job("large", 250_000)
    rows = bench.job("few", 5)
    bench.handle(m.Deleted(rows[1:2]))
    assert pod_pages(pod_queries, job="few", limit=3) == [["few-0", "few-2", "few-3"], ["few-4"]]
    names = pod_pages(pod_queries, job="large", limit=10_000)
    assert [len(page) for page in names] == [10_000] * 25
    assert [name for page in names for name in page] == [f"large-{n}" for n in range(250_000)]


def test_pods_of_phases_that_there_are_not_are_none(bench, pod_queries):
    bench.job("job", 2)
    assert pod_pages(pod_queries, phases=[77]) == [[]]
    assert pod_pages(pod_queries, phases=[77, pb.QUEUED]) == [["job-0", "job-1"]]


def test_pods_are_found_by_namespace_and_label(bench, pod_queries):
    for name, labels in (("web", (("app", "web"),)), ("db", (("app", "db"),))):
        for namespace in ("a", "b"):
            bench.pods(f"{name}-{namespace}", spec=PodSpec(namespace=namespace, labels=labels))
    assert pod_pages(pod_queries, namespace="a") == [["web-a", "db-a"]]
    assert pod_pages(pod_queries, label_selector="app=web") == [["web-a", "web-b"]]
    assert pod_pages(pod_queries, namespace="b", label_selector="app!=web") == [["db-b"]]


async def test_while_pods_are_looked_for_others_get_their_turn(bench, pod_queries):
    bench.job("large", 1_500_000)
    bench.pods("last")
    looking = asyncio.ensure_future(in_turns(pod_queries.list_pods(pb.ListPodsRequest(phases=[pb.BOUND]))))
    turns = 0
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1
    assert not (await looking).pods
    assert turns >= 3


def audit_pages(queries, limit):
    request, found = pb.DispatcherAuditRequest(limit=limit), []
    while True:
        reply = finished(queries.audit(request))
        found.append(reply)
        if not reply.next_page_token:
            return found
        request.page_token = reply.next_page_token


@pytest.fixture
def bound(bench):
    """The UIDs of two bound jobs. There are also three gangs of three, of which two pods are bound each: the
    state machine would not allow that, so it is undone in the end."""
    bench.join("w1")
    bench.job("first", 3)
    bench.job("last", 2)
    while bench.sent["w1"]:
        bench.answer("w1", m.OutcomeCode.BOUND, node=7)
    gangs = []
    for number in range(3):
        new = (NewGang("default", f"gang-{number}", 3),)
        job = NewJob(f"job-{number}", 0, 3, gang=0)
        gangs.append(bench.admit_order(Order(f"r{number}", (bench._template(PodSpec()),), (job,), None, new)))
    phases = bench.machine.registry.pods.phase
    before = phases.copy()
    for rows in gangs:
        phases[rows[:2]] = Phase.BOUND
    yield [bytes(uid) for uid in bench.machine.registry.pods.uid[:5]]
    phases[:] = before


def test_pages_of_an_audit_hold_each_bound_pod_once_and_then_each_broken_gang(bound, queries):
    (whole,) = audit_pages(queries, 0)
    assert whole.bound_uids[: 5 * 16] == b"".join(bound)
    assert [gang.name for gang in whole.broken_gangs] == ["gang-0", "gang-1", "gang-2"]
    for limit in (1, 2, 3, 11):
        pages = audit_pages(queries, limit)
        assert all(len(page.bound_uids) <= 16 * limit for page in pages)
        assert all(len(page.broken_gangs) <= limit for page in pages)
        assert b"".join(page.bound_uids for page in pages) == whole.bound_uids
        assert b"".join(page.bound_nodes for page in pages) == whole.bound_nodes
        assert [gang for page in pages for gang in page.broken_gangs] == list(whole.broken_gangs)


@pytest.mark.parametrize("token", ["x", "gangs/x", "gangs/"])
def test_a_token_of_an_audit_that_no_reply_gave_is_refused(queries, token):
    with pytest.raises(InvalidInput, match=f"'{token}' is not from an earlier reply"):
        finished(queries.audit(pb.DispatcherAuditRequest(page_token=token)))


async def test_while_an_audit_is_made_others_get_their_turn(bench, queries):
    bench.job("large", 1_500_000)
    auditing = asyncio.ensure_future(in_turns(queries.audit(pb.DispatcherAuditRequest())))
    await asyncio.sleep(0)
    assert not auditing.done()
    assert not (await auditing).bound_uids


def test_a_gang_s_pods_say_how_many_it_lacks_for_a_plan(bound, pod_queries):
    """Of each gang of three, two are bound."""
    reply = finished(pod_queries.list_pods(pb.ListPodsRequest(job="job-1", templates=True)))
    assert {(pod.gang, pod.gang_lacks) for pod in reply.pods} == {("gang-1", 1)}
    assert finished(pod_queries.list_pods(pb.ListPodsRequest(job="job-1"))).pods[0].gang == ""


def test_the_template_of_equal_pods_is_written_once_for_a_page(bench, pod_queries):
    def for_templates():
        with_them, without = (
            sum(pod_queries.list_pods(pb.ListPodsRequest(templates=wanted))) for wanted in (True, False)
        )
        return with_them - without

    bench.job("one", 1, spec=PodSpec(labels=(("app", "one"),)))
    one = for_templates()
    bench.job("same", 9, spec=PodSpec(labels=(("app", "one"),)))
    assert for_templates() == one
    bench.job("other", 1, spec=PodSpec(labels=(("app", "other"),)))
    assert for_templates() == 2 * one


def test_a_template_whose_id_another_one_got_while_a_page_is_made_is_not_told_of_its_pods(bench, pod_queries):
    [first] = bench.job("first", 1, spec=PodSpec(labels=(("app", "first"),)), gates=("a",))
    [second] = bench.job("second", 1, spec=PodSpec(labels=(("app", "second"),)), gates=("b",))
    templates = bench.machine.registry.pods.template
    before = int(templates[first])
    steps = pod_queries.list_pods(pb.ListPodsRequest(templates=True))
    next(steps)  # the rows are found
    next(steps)  # the first pod is listed
    for row, gate in ((first, "a"), (second, "b")):
        bench.handle(m.GatesRemoved(np.array([row], np.uint32), frozenset({gate})))
    assert int(templates[second]) == before
    reply = finished(steps)
    assert [pod.template.spec.labels[0].value for pod in reply.pods] == ["first", "second"]


def unreadable(number, namespace="default", **labels):
    """A waiting pod of ours that asks for more than HOSS counts, as the API server has it."""
    container = {"name": "c", "resources": {"requests": {"memory": "1Ei"}}}
    metadata = {
        "uid": str(UUID(int=number)),
        "namespace": namespace,
        "name": f"huge-{number}",
        "labels": labels,
    }
    return {"metadata": metadata, "spec": {"schedulerName": "hoss", "containers": [container]}}


@pytest.fixture
def with_unplaceable(runtime):
    """Makes queries of a dispatcher that has seen these pods at the API server."""
    nodes, reader = ClusterNodes(), PodReader(["hoss"])

    def queries(*pods):
        seen = [reader.read(pod) for pod in pods]
        mover = Mover(runtime, nodes, Rebinding(runtime, nodes))
        return PodQueries(runtime, nodes, mover, UnplaceablePods({pod.uid: pod for pod in seen}))

    return queries


def test_pods_that_cannot_be_placed_at_all_are_listed_behind_the_others_where_they_are_asked_for(
    bench, with_unplaceable
):
    bench.job("job", 2)
    queries = with_unplaceable(*map(unreadable, (3, 1, 2)))
    huge = ["huge-1", "huge-2", "huge-3"]
    assert pod_pages(queries) == [["job-0", "job-1"]]
    assert pod_pages(queries, unplaceable=True) == [["job-0", "job-1", *huge]]
    assert pod_pages(queries, unplaceable=True, limit=2) == [["job-0", "job-1"], huge[:2], huge[2:]]
    assert pod_pages(queries, unplaceable=True, limit=3) == [["job-0", "job-1", "huge-1"], huge[1:]]
    (listed,) = finished(queries.list_pods(pb.ListPodsRequest(unplaceable=True, name="huge-2"))).pods
    assert (listed.namespace, listed.phase) == ("default", pb.UNSCHEDULABLE)
    assert "HOSS counts up to" in listed.reason


def test_pods_that_cannot_be_placed_at_all_are_found_by_what_is_known_of_them(bench, with_unplaceable):
    queries = with_unplaceable(unreadable(1, "a", app="web"), unreadable(2, "b", app="db"))
    for wanted, names in (
        ({"namespace": "a"}, ["huge-1"]),
        ({"label_selector": "app=db"}, ["huge-2"]),
        ({"phases": [pb.UNSCHEDULABLE]}, ["huge-1", "huge-2"]),
        ({"phases": [pb.BOUND]}, []),
        ({"node": "n1"}, []),
        ({"job": "job"}, []),
    ):
        assert pod_pages(queries, unplaceable=True, **wanted) == [names], wanted


def test_a_tenants_viewer_is_not_shown_pods_that_cannot_be_placed_at_all(bench, with_unplaceable):
    queries, request = with_unplaceable(unreadable(1)), pb.ListPodsRequest(unplaceable=True)
    assert not finished(queries.list_pods(request, TenantView(bench.machine, "default"))).pods
    assert finished(queries.list_pods(request, TenantView(bench.machine, ""))).pods


@pytest.mark.parametrize("token", ["x", "uxx", "u1"])
def test_a_page_of_pods_by_a_token_that_no_reply_gave_is_refused(pod_queries, token):
    with pytest.raises(InvalidInput, match="is not from an earlier reply"):
        finished(pod_queries.list_pods(pb.ListPodsRequest(page_token=token)))
